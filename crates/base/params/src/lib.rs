//! Named, documented model constants that a user can set.
//!
//! Every number of the model that is not a fact of arithmetic is a field of a struct made by
//! [`parameters!`]: it has a dotted name, a unit, a default and the source of that default, so it
//! can be set on the command line, written to a configuration, listed, and found in the docs.

mod value;

use std::borrow::Cow;

pub use value::{ParameterError, Value};

/// One parameter: what it is called, what it is now, and where the value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Dotted name, such as `thp.scan_sleep`.
    pub name: Cow<'static, str>,
    /// The value now, printed as it can be parsed.
    pub value: String,
    /// Unit; empty for counts, ratios and switches. Two have a range: a `share` is from 0 to 1, and
    /// cycles are at most 10^9, so that sums of them stay far from the end of 64 bits. `bytes` may be
    /// given with a unit, such as `2MiB`.
    pub unit: &'static str,
    /// What it does and where the value comes from.
    pub doc: Cow<'static, str>,
    /// Whether a source confirms the value. What a documentation comment declares says so itself.
    pub confirmed: bool,
}

/// A set of named parameters.
pub trait Parameters {
    /// Every parameter with its present value, in declaration order.
    fn parameters(&self) -> Vec<Parameter>;

    /// Sets a parameter by name.
    ///
    /// # Errors
    /// [`ParameterError::Unknown`] when this set has no such name, [`ParameterError::Invalid`]
    /// when the text is no value of the parameter's type or out of its range,
    /// [`ParameterError::Impossible`] when it goes with no other value.
    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError>;
}

/// Declares a struct of [`Parameters`].
///
/// ```
/// strata_params::parameters! {
///     /// What a fault costs.
///     pub struct Costs {
///         /// A minor fault, without zeroing the page. Measured on nothing; an example.
///         fault: u64 = 1000, "fault.cycles", "cycles";
///     }
/// }
/// use strata_params::Parameters;
/// let mut costs = Costs::default();
/// costs.set("fault.cycles", "2000").unwrap();
/// assert_eq!(costs.fault, 2000);
/// ```
#[macro_export]
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $struct:ident {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $name:literal, $unit:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $struct {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::Parameters for $struct {
            fn parameters(&self) -> Vec<$crate::Parameter> {
                vec![$($crate::Parameter {
                    name: $name.into(),
                    value: $crate::Value::print(&self.$field),
                    unit: $unit,
                    doc: concat!($($doc),+).trim_ascii().into(),
                    confirmed: true,
                },)*]
            }

            fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::ParameterError> {
                match name {
                    $($name => {
                        self.$field = $crate::Value::parse($name, value, $unit)?;
                        Ok(())
                    })*
                    _ => Err($crate::ParameterError::Unknown(name.to_owned())),
                }
            }
        }
    };
}

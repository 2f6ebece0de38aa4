//! The types a parameter can have.

use strata_text::parse_size;

/// A parameter could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// No parameter has this name.
    #[error("no parameter is called '{0}'")]
    Unknown(String),
    /// The text is not a value of the parameter.
    #[error("{name}={value}: expected {expected}")]
    Invalid {
        /// The parameter.
        name: String,
        /// The text given.
        value: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// A value that nothing could have, by itself or with the others.
    #[error("{name}: {cause}")]
    Impossible {
        /// The parameter, or those that do not go together.
        name: String,
        /// What is wrong, and what would be right.
        cause: String,
    },
}

/// A type of parameter.
pub trait Value: Sized {
    /// Reads a value with this unit.
    ///
    /// # Errors
    /// [`ParameterError::Invalid`] when the text is none, or out of the unit's range.
    fn parse(name: &str, text: &str, unit: &str) -> Result<Self, ParameterError>;

    /// Prints the value so that [`Value::parse`] reads it back.
    fn print(&self) -> String;
}

/// More than one event can cost: a third of a second.
const MOST_CYCLES: f64 = 1e9;

macro_rules! from_str_value {
    ($($type:ty, $expected:literal, $valid:expr;)*) => {$(
        impl Value for $type {
            fn parse(name: &str, text: &str, unit: &str) -> Result<Self, ParameterError> {
                let invalid = |expected| ParameterError::Invalid {
                    name: name.to_owned(),
                    value: text.to_owned(),
                    expected,
                };
                let size = if unit == "bytes" { parse_size(text).ok() } else { None };
                let plain = size.map_or_else(|| text.replace('_', ""), |size| size.to_string());
                let value = plain.parse().map_err(|_| invalid($expected))?;
                let valid: fn(&$type) -> bool = $valid;
                if !valid(&value) {
                    return Err(invalid($expected));
                }
                // Digits enough to compare with a limit, whatever the type.
                let number = plain.parse::<f64>().unwrap_or(0.0);
                match unit {
                    "share" if number > 1.0 => Err(invalid("a share from 0 to 1")),
                    _ if unit.starts_with("cycles") && number > MOST_CYCLES => {
                        Err(invalid("at most 1000000000 cycles"))
                    }
                    _ => Ok(value),
                }
            }

            fn print(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

from_str_value! {
    u64, "a whole number", |_| true;
    u32, "a whole number", |_| true;
    i64, "a whole number", |v| *v >= 0;
    f64, "a number of at least 0", |v| v.is_finite() && *v >= 0.0;
    bool, "true or false", |_| true;
}

#[cfg(test)]
mod tests {
    use crate::{ParameterError, Parameters};

    crate::parameters! {
        /// For the tests.
        struct Sample {
            /// Pages looked at.
            pages: u64 = 4096, "sample.pages", "pages";
            /// A share.
            share: f64 = 0.05, "sample.share", "share";
            /// What something costs.
            cost: u64 = 10, "sample.cost", "cycles per page";
            /// A size.
            size: u64 = 4096, "sample.size", "bytes";
            /// A switch.
            enabled: bool = true, "sample.enabled", "";
        }
    }

    #[test]
    fn what_is_printed_can_be_set() {
        let mut sample = Sample::default();
        sample.set("sample.pages", "1_000").unwrap();
        sample.set("sample.share", "0.5").unwrap();
        sample.set("sample.cost", "1_000_000_000").unwrap();
        sample.set("sample.enabled", "false").unwrap();
        sample.set("sample.size", "2MiB").unwrap();
        assert_eq!(sample.size, 2 << 20);
        let mut copy = Sample::default();
        for (parameter, default) in sample.parameters().iter().zip(copy.parameters()) {
            copy.set(&parameter.name, &parameter.value).unwrap();
            assert_ne!(parameter.value, default.value);
        }
        assert_eq!(copy, sample);
        assert_eq!(sample.parameters()[0].doc, "Pages looked at.");
    }

    #[test]
    fn wrong_values_are_refused_and_change_nothing() {
        let mut sample = Sample::default();
        for (name, value) in [
            ("sample.pages", "-1"),
            ("sample.share", "NaN"),
            ("sample.share", "1.01"),
            ("sample.cost", "1_000_000_001"),
            ("sample.cost", "1KiB"),
            ("sample.enabled", "yes"),
        ] {
            assert!(matches!(sample.set(name, value), Err(ParameterError::Invalid { .. })));
        }
        assert!(matches!(sample.set("sample.page", "1"), Err(ParameterError::Unknown(_))));
        assert_eq!(sample, Sample::default());
    }
}

//! The parameters of policies: each set belongs to the policies that read it.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::fmt;
use strata_params::{Parameter, ParameterError, Parameters};

/// A set of parameters of a type of its own, as [`strata_params::parameters!`] makes them.
trait Settable: Parameters + fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn boxed_clone(&self) -> Box<dyn Settable>;
}

impl<P: Parameters + fmt::Debug + Clone + Send + Sync + 'static> Settable for P {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn boxed_clone(&self) -> Box<dyn Settable> {
        Box::new(self.clone())
    }
}

/// A type of parameters that a policy reads; stands in its registry entry.
#[derive(Clone, Copy)]
pub struct ParameterSet {
    id: fn() -> TypeId,
    default: fn() -> Box<dyn Settable>,
}

impl ParameterSet {
    /// The set of this type.
    pub const fn of<P>() -> Self
    where
        P: Parameters + fmt::Debug + Clone + Default + Send + Sync + 'static,
    {
        Self { id: TypeId::of::<P>, default: || Box::new(P::default()) }
    }

    /// The names of its parameters.
    pub fn names(&self) -> impl Iterator<Item = Cow<'static, str>> {
        (self.default)().parameters().into_iter().map(|parameter| parameter.name)
    }
}

/// The parameters of several policies: every set once, whoever reads it.
#[derive(Debug)]
pub struct PolicyParameters {
    sets: Vec<Box<dyn Settable>>,
}

impl PolicyParameters {
    /// These sets at their defaults, each once.
    pub(crate) fn with<'a>(all: impl IntoIterator<Item = &'a ParameterSet>) -> Self {
        let (mut known, mut sets) = (Vec::new(), Vec::new());
        for set in all {
            if !known.contains(&(set.id)()) {
                known.push((set.id)());
                sets.push((set.default)());
            }
        }
        Self { sets }
    }

    /// The set of this type.
    ///
    /// # Panics
    /// When no policy says that it reads it.
    pub fn get<P: Parameters + Clone + 'static>(&self) -> P {
        let mut found = self.sets.iter().filter_map(|set| set.as_any().downcast_ref::<P>());
        let set = found.next().unwrap_or_else(|| {
            panic!("no registry entry reads {}", std::any::type_name::<P>());
        });
        set.clone()
    }
}

impl Clone for PolicyParameters {
    fn clone(&self) -> Self {
        Self { sets: self.sets.iter().map(|set| set.boxed_clone()).collect() }
    }
}

impl Parameters for PolicyParameters {
    fn parameters(&self) -> Vec<Parameter> {
        self.sets.iter().flat_map(|set| set.parameters()).collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        for set in &mut self.sets {
            match set.set(name, value) {
                Err(ParameterError::Unknown(_)) => {}
                done => return done,
            }
        }
        Err(ParameterError::Unknown(name.to_owned()))
    }
}

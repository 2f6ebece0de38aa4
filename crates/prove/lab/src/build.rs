//! Getting everything that the layers are put together from.

use crate::cache::Cache;
use crate::error::LabError;
use crate::intel;
use crate::kernel::{self, BuildProgress, KernelVariant};
use crate::make::Make;
use crate::parts::Parts;
use crate::stock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Gets Debian's image and builds the lab's kernels named, and the emulator of machines of this make if
/// Debian has none that will do; what is there already is not made again.
///
/// # Errors
///
/// Missing programs and packages by name, a failed build with the log it left. What was done until
/// then is kept, and the next build goes on from there.
pub fn build(
    cache: &Cache,
    (make, variants): (Make, &[KernelVariant]),
    (agent, strata): (PathBuf, PathBuf),
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Parts, LabError> {
    let _lock = cache.lock()?;
    let bochs = match make {
        Make::Amd => None,
        Make::Intel => Some(intel::get(cache, interrupt, tell, progress)?),
    };
    let stock = stock::get(cache, tell)?;
    let mut lab = BTreeMap::new();
    for &variant in variants {
        lab.insert(variant, kernel::get(cache, variant, interrupt, tell, progress)?);
    }
    Ok(Parts { agent, strata, make, lab, stock: Some(stock), bochs })
}

/// What is there for a machine of this make, without building anything.
pub fn built(cache: &Cache, make: Make, agent: PathBuf, strata: PathBuf) -> Parts {
    let lab = KernelVariant::ALL
        .into_iter()
        .filter_map(|variant| Some((variant, kernel::cached(cache, variant)?)))
        .collect();
    let bochs = match make {
        Make::Amd => None,
        Make::Intel => intel::cached(cache),
    };
    Parts { agent, strata, make, lab, stock: stock::cached(cache), bochs }
}

//! Getting everything that the layers are put together from.

use crate::cache::Cache;
use crate::error::LabError;
use crate::kernel::{self, BuildProgress, Variant};
use crate::parts::Parts;
use crate::stock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Gets Debian's image and builds the lab's kernels named; what is there already is not made again.
///
/// # Errors
///
/// Missing programs and packages by name, a failed build with the log it left. What was done until
/// then is kept, and the next build goes on from there.
pub fn build(
    cache: &Cache,
    variants: &[Variant],
    agent: PathBuf,
    strata: PathBuf,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Parts, LabError> {
    let _lock = cache.lock()?;
    let stock = stock::get(cache, tell)?;
    let mut lab = BTreeMap::new();
    for &variant in variants {
        lab.insert(variant, kernel::get(cache, variant, interrupt, tell, progress)?);
    }
    Ok(Parts { agent, strata, lab, stock: Some(stock) })
}

/// What is there without building anything.
pub fn built(cache: &Cache, agent: PathBuf, strata: PathBuf) -> Parts {
    let lab = Variant::ALL
        .into_iter()
        .filter_map(|variant| Some((variant, kernel::cached(cache, variant)?)))
        .collect();
    Parts { agent, strata, lab, stock: stock::cached(cache) }
}

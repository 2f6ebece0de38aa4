//! Getting everything that the layers are put together from.

use crate::cache::Cache;
use crate::error::LabError;
use crate::kernel::{self, BuildProgress};
use crate::parts::Parts;
use crate::stock;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Gets Debian's image and builds the lab's kernel; what is there already is not made again.
///
/// # Errors
///
/// Missing programs and packages by name, a failed build with the log it left. What was done until
/// then is kept, and the next build goes on from there.
pub fn build(
    cache: &Cache,
    agent: PathBuf,
    strata: PathBuf,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Parts, LabError> {
    let _lock = cache.lock()?;
    let stock = stock::get(cache, tell)?;
    let lab = kernel::get(cache, interrupt, tell, progress)?;
    Ok(Parts { agent, strata, lab: Some(lab), stock: Some(stock) })
}

/// What is there without building anything.
pub fn built(cache: &Cache, agent: PathBuf, strata: PathBuf) -> Parts {
    Parts { agent, strata, lab: kernel::cached(cache), stock: stock::cached(cache) }
}

//! Sweeps: the points of a grid, one point, all that came of them.

use crate::error;
use crate::policy::{Given, Policies};
use crate::runs::options;
use crate::table::Table;
use crate::wait::wait;
use pyo3::prelude::*;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use strata::sweep::{Cache, Done, Grid, Outcome, Outcomes, Point, Work, key, swept};

/// An outcome as Python has it: JSON, the hash of the input, why there is none, whether it was kept.
type Parts = (Option<String>, Option<String>, Option<String>, bool);

fn parts(outcome: Outcome) -> Parts {
    match outcome {
        Outcome::Found { json, input_sha256, was_kept } => {
            (Some(json), input_sha256, None, was_kept)
        }
        Outcome::Failed(why) => (None, None, Some(why), false),
    }
}

/// Runs one point: what a worker of an executor does.
#[pyfunction]
pub fn run_point(
    py: Python<'_>,
    options_json: &str,
    directory: Option<PathBuf>,
    cache: Option<PathBuf>,
    policies: Vec<Given>,
) -> PyResult<Parts> {
    let point = Point { place: Vec::new(), options: options(options_json)?, directory };
    let stop = Arc::new(AtomicBool::new(false));
    let policies = Policies::new(policies, stop.clone());
    let catalogue = policies.catalogue()?;
    let flag = stop.clone();
    let cache = cache.map(Cache::at);
    let outcome =
        wait(py, &stop, move || strata::sweep::run(&point, &catalogue, cache.as_ref(), flag))?;
    policies.trouble(py)?;
    if stop.load(Relaxed) {
        return Err(pyo3::exceptions::PyKeyboardInterrupt::new_err(()));
    }
    Ok(parts(outcome))
}

/// The points of a grid and what came of them.
#[pyclass(module = "strata", frozen)]
pub struct Sweep {
    grid: Grid,
    points: Vec<Point>,
    outcomes: std::sync::Mutex<Vec<Option<Outcome>>>,
}

impl Sweep {
    fn new(grid: Grid) -> Self {
        let points = grid.points();
        let outcomes = std::sync::Mutex::new(vec![None; points.len()]);
        Self { grid, points, outcomes }
    }

    fn with<T>(&self, of: impl FnOnce(Outcomes<'_>) -> T) -> T {
        let outcomes = self.outcomes.lock().expect("nothing panics with it");
        of(Outcomes::of(&self.grid, &self.points, &outcomes))
    }
}

#[pymethods]
impl Sweep {
    /// Of options with a table `grid`.
    #[staticmethod]
    fn of(options_json: &str) -> PyResult<Self> {
        Ok(Self::new(Grid::of(options(options_json)?, None).map_err(error::failed)?))
    }

    /// Of a file as `strata sweep` takes it.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<Self> {
        Ok(Self::new(Grid::read(&path).map_err(error::failed)?))
    }

    /// From the JSON of a sweep of before.
    #[staticmethod]
    fn swept(json: &str) -> PyResult<Self> {
        let (grid, points, outcomes) = swept(json).map_err(error::failed)?;
        Ok(Self { grid, points, outcomes: outcomes.into() })
    }

    /// The options of each point, as JSON.
    fn points(&self) -> Vec<String> {
        let text = |point: &Point| serde_json::to_string(&point.options);
        self.points.iter().map(|point| text(point).expect("options are plain data")).collect()
    }

    /// Where files are looked for that options name.
    #[getter]
    fn directory(&self) -> Option<PathBuf> {
        self.points.first().and_then(|point| point.directory.clone())
    }

    fn __len__(&self) -> usize {
        self.points.len()
    }

    /// What the result of a point is kept under; none where it is not kept.
    fn key(&self, number: usize) -> Option<String> {
        key(&self.points[number], &strata_engine::catalogue()).ok().flatten()
    }

    /// Says what came of a point, and keeps it, unless it is kept already.
    fn set(&self, number: usize, outcome: Parts, cache: Option<PathBuf>) -> PyResult<()> {
        let (json, input_sha256, failed, was_kept) = outcome;
        let outcome = match (json, failed) {
            (Some(json), _) => {
                if let (Some(cache), Some(key)) = (cache.map(Cache::at), self.key(number))
                    && cache.load(&key).is_none()
                {
                    cache.store(&key, &json)?;
                }
                Outcome::Found { json, input_sha256, was_kept }
            }
            (None, why) => Outcome::Failed(why.unwrap_or_default()),
        };
        self.outcomes.lock().expect("nothing panics with it")[number] = Some(outcome);
        Ok(())
    }

    /// Runs all points on this computer, as many at once as there is memory for.
    fn run(
        slf: Bound<'_, Self>,
        cache: Option<PathBuf>,
        jobs: Option<NonZeroUsize>,
        memory_bytes: Option<u64>,
        tell: Option<Py<PyAny>>,
        policies: Vec<Given>,
    ) -> PyResult<()> {
        let py = slf.py();
        let stop = Arc::new(AtomicBool::new(false));
        let policies = Policies::new(policies, stop.clone());
        let catalogue = policies.catalogue()?;
        let flag = stop.clone();
        let points = slf.get().points.clone();
        let cache = cache.map(Cache::at);
        let outcomes = wait(py, &stop, move || {
            let told = |done: Done| {
                let Some(tell) = &tell else { return };
                let left = done.left.map(|left| left.as_secs_f64());
                let told = Python::try_attach(|py| {
                    tell.call1(py, (done.done, done.of, left)).map(drop).map_err(|error| {
                        error.write_unraisable(py, None);
                    })
                });
                // What cannot be told changes no result.
                let _ = told;
            };
            let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let work = Work {
                points: &points,
                catalogue: &catalogue,
                cache: cache.as_ref(),
                at_once: jobs.unwrap_or_else(cores),
                memory: memory_bytes,
                stop: flag,
                tell: &told,
            };
            work.run()
        })?;
        policies.trouble(py)?;
        *slf.get().outcomes.lock().expect("nothing panics with it") = outcomes;
        Ok(())
    }

    /// What came of a point.
    fn get(&self, number: usize) -> Option<Parts> {
        self.outcomes.lock().expect("nothing panics with it")[number].clone().map(parts)
    }

    /// How many points failed, and how many were not reached.
    fn missing(&self) -> (usize, usize) {
        self.with(|outcomes| outcomes.missing())
    }

    /// Everything as one table.
    fn table(&self) -> PyResult<Table> {
        self.with(|outcomes| outcomes.columns()).map(Table::of).map_err(error::failed)
    }

    /// Everything as JSON.
    fn json(&self) -> PyResult<String> {
        self.with(|outcomes| outcomes.json()).map_err(error::failed)
    }
}

/// The user's cache, if there is one.
#[pyfunction]
pub fn user_cache() -> Option<PathBuf> {
    Cache::of_user().map(|cache| cache.directory().to_owned())
}

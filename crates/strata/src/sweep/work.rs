//! Running points on this computer: as many at once as there are cores and memory for.

use super::cache::Cache;
use super::grid::Point;
use super::point::{self, Outcome};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use strata_engine::{Catalogue, memory};

/// One point is done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Points done, this one included.
    pub done: usize,
    /// Of how many.
    pub of: usize,
    /// How long the rest will take, as long as those that were run until now took.
    pub left: Option<Duration>,
}

/// Points to be run.
pub struct Work<'a> {
    /// The points.
    pub points: &'a [Point],
    /// What machines are made of.
    pub catalogue: &'a Catalogue,
    /// Where results are kept.
    pub cache: Option<&'a Cache>,
    /// Most points at once.
    pub at_once: NonZeroUsize,
    /// Bytes of memory they may take together; `None` has this computer asked.
    pub memory: Option<u64>,
    /// Set when it is to stop.
    pub stop: Arc<AtomicBool>,
    /// Is told of each point that is done.
    pub tell: &'a (dyn Fn(Done) + Sync),
}

impl Work<'_> {
    /// Runs the points whose results are not known. Gives an outcome for each, in order; those that were
    /// not reached before it was to stop have none.
    pub fn run(&self) -> Vec<Option<Outcome>> {
        let (next, done, made) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = Mutex::new(vec![None; self.points.len()]);
        let room = Room::of(self.memory.or_else(memory::usable));
        let since = Instant::now();
        let work = || {
            while !self.stop.load(Relaxed) {
                let number = next.fetch_add(1, Relaxed);
                let Some(point) = self.points.get(number) else { break };
                let outcome = self.one(point, &room);
                let stopped = self.stop.load(Relaxed);
                match &outcome {
                    Outcome::Failed(_) if stopped => break,
                    Outcome::Found { was_kept: true, .. } => {}
                    _ => drop(made.fetch_add(1, Relaxed)),
                }
                outcomes.lock().expect("nobody panics with it")[number] = Some(outcome);
                let (done, of) = (done.fetch_add(1, Relaxed) + 1, self.points.len());
                let made = made.load(Relaxed);
                let each = (made > 0).then(|| since.elapsed().div_f64(made as f64));
                (self.tell)(Done {
                    done,
                    of,
                    left: each.map(|each| each.mul_f64((of - done) as f64)),
                });
            }
        };
        thread::scope(|scope| {
            let threads = self.at_once.get().min(self.points.len());
            (0..threads).for_each(|_| drop(scope.spawn(work)));
        });
        outcomes.into_inner().expect("nobody panics with it")
    }

    fn one(&self, point: &Point, room: &Room) -> Outcome {
        let need = point::need(point, self.catalogue).unwrap_or(0);
        let _held = room.take(need);
        point::run(point, self.catalogue, self.cache, self.stop.clone())
    }
}

/// Memory that points take while they run.
struct Room {
    all: Option<u64>,
    taken: Mutex<u64>,
    given: Condvar,
}

impl Room {
    fn of(all: Option<u64>) -> Self {
        Self { all, taken: Mutex::new(0), given: Condvar::new() }
    }

    /// Waits until there is so much memory. What alone is more than there is, is run alone.
    fn take(&self, bytes: u64) -> Held<'_> {
        let mut taken = self.taken.lock().expect("nobody panics with it");
        while *taken > 0 && self.all.is_some_and(|all| taken.saturating_add(bytes) > all) {
            taken = self.given.wait(taken).expect("nobody panics with it");
        }
        *taken += bytes;
        Held { room: self, bytes }
    }
}

/// Memory that is taken until this is dropped.
struct Held<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.room.taken.lock().expect("nobody panics with it") -= self.bytes;
        self.room.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::of(Some(100));
        let most = Mutex::new((0u64, 0u64));
        thread::scope(|scope| {
            for bytes in [60, 30, 70, 20, 90, 10] {
                let (room, most) = (&room, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let _held = room.take(bytes);
                        most.lock().unwrap().0 += bytes;
                        let now = most.lock().unwrap().0;
                        let mut seen = most.lock().unwrap();
                        seen.1 = seen.1.max(now);
                        seen.0 -= bytes;
                    }
                });
            }
        });
        assert!(most.into_inner().unwrap().1 <= 100);
        // What never fits is run alone.
        drop(room.take(1000));
    }
}

//! k-median of points, as the program streamcluster of PARSEC does it.
//!
//! ```text
//! coordinates    4 bytes for each dimension of each point, point after point
//! points         32 bytes each: weight, pointer to the coordinates, assigned centre, cost
//! is_center      1 byte for each point
//! switches       1 byte for each point
//! center_table   4 bytes for each point
//! lower          8 bytes for each centre and thread
//! ```
//!
//! A candidate for a centre is a random point. Threads, each with a part of the points, number the
//! centres; then compare every point's distance to the candidate with its cost and add up what each
//! centre would lose; and if the candidate pays, assign to it the points that are nearer to it (PARSEC
//! 3.0, `streamcluster.cpp`, `pgain`). Between these they wait for each other. Distances are not computed:
//! which points change and which candidates pay is drawn, in the proportions that were asked for.

use super::Common;
use super::kernel::{Kernel, Layout, Step, load, store};
use super::random::{SplitMix64, scale};
use super::spec::Spec;
use strata_stream::Access;

const POINT: u64 = 32;

/// Where the fields of a point are.
const WEIGHT: u64 = 0;
const COORDINATES: u64 = 8;
const ASSIGNED: u64 = 16;
const COST: u64 = 24;

/// Bytes of coordinates that one instruction loads: compilers make vectors of four of them.
const VECTOR: u32 = 16;

/// What is done with a candidate, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Number,
    Compare,
    AddUp,
    Assign,
}

/// The clustering.
pub struct StreamCluster {
    points: u64,
    dimensions: u64,
    centres: u64,
    opens: f64,
    coordinates: u64,
    structures: u64,
    is_center: u64,
    switches: u64,
    table: u64,
    lower: u64,
    seed: u64,
    random: SplitMix64,
    phase: Phase,
    candidate: u64,
    /// Candidates so far.
    round: u64,
    pays: bool,
    /// For each thread how far it is, in points or centres.
    cursors: Vec<u64>,
}

impl StreamCluster {
    /// The clustering that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: &Common) -> Result<Self, String> {
        let dimensions = spec.count("dimensions", 4, 1 << 16)?;
        if dimensions % 4 != 0 {
            return Err(spec.wrong("dimensions", &format!("{dimensions} is no multiple of 4")));
        }
        let centres = spec.count("centres", 1, 1 << 16)?;
        let sums = common.threads * centres * 8;
        // Each part begins at a multiple of 8.
        let points = common.size.saturating_sub(sums + 32) / (4 * dimensions + POINT + 6);
        if points == 0 {
            return Err(spec.wrong("size", "too small for a point and the sums of all threads"));
        }
        let mut layout = Layout::new();
        let mut clustering = Self {
            points,
            dimensions,
            centres,
            opens: spec.real("open", 0.0, 1.0)?,
            coordinates: layout.part(points * 4 * dimensions),
            structures: layout.part(points * POINT),
            is_center: layout.part(points),
            switches: layout.part(points),
            table: layout.part(points * 4),
            lower: layout.part(sums),
            seed: common.seed,
            random: SplitMix64::new(common.seed, 0),
            phase: Phase::Number,
            candidate: 0,
            round: 0,
            pays: false,
            cursors: vec![0; common.threads as usize],
        };
        clustering.take_candidate();
        Ok(clustering)
    }

    fn take_candidate(&mut self) {
        self.candidate = self.random.below(self.points);
        self.pays = self.random.unit() < self.opens;
        self.round += 1;
        self.begin(Phase::Number);
    }

    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        for thread in 0..self.cursors.len() {
            self.cursors[thread] = if phase == Phase::AddUp { 0 } else { self.part(thread) };
        }
    }

    /// The first point of a thread.
    fn part(&self, thread: usize) -> u64 {
        (u128::from(self.points) * thread as u128 / self.cursors.len() as u128) as u64
    }

    /// Where the present phase ends for a thread.
    fn end(&self, thread: usize) -> u64 {
        if self.phase == Phase::AddUp { self.centres } else { self.part(thread + 1) }
    }

    fn is_last(&self) -> bool {
        self.phase == Phase::Assign || self.phase == Phase::AddUp && !self.pays
    }

    fn next_phase(&mut self) {
        match self.phase {
            _ if self.is_last() => self.take_candidate(),
            Phase::Number => self.begin(Phase::Compare),
            Phase::Compare => self.begin(Phase::AddUp),
            Phase::AddUp | Phase::Assign => self.begin(Phase::Assign),
        }
    }

    fn is_centre(&self, point: u64) -> bool {
        point.is_multiple_of((self.points / self.centres).max(1))
    }

    /// Whether a point would change to the candidate, and the number of its centre.
    fn fate(&self, point: u64) -> (bool, u64) {
        let bits = SplitMix64::new(self.seed ^ self.round << 32, point).bits();
        let centre = SplitMix64::new(self.seed, point).bits();
        (scale(bits, self.centres) == 0, scale(centre, self.centres))
    }

    fn compare(&self, thread: usize, point: u64, out: &mut Vec<Access>) {
        let structure = self.structures + point * POINT;
        out.push(load(structure + COORDINATES, 8));
        let of = |point: u64| self.coordinates + point * 4 * self.dimensions;
        for at in (0..4 * self.dimensions).step_by(VECTOR as usize) {
            out.push(load(of(point) + at, VECTOR));
            out.push(load(of(self.candidate) + at, VECTOR));
        }
        out.extend([load(structure + WEIGHT, 4), load(structure + COST, 4)]);
        let (changes, centre) = self.fate(point);
        if changes {
            out.push(store(self.switches + point, 1));
        } else {
            let of_centre = centre * (self.points / self.centres);
            let sum = self.lower + 8 * (thread as u64 * self.centres + centre);
            out.push(load(structure + ASSIGNED, 8));
            out.push(load(self.table + 4 * of_centre, 4));
            out.extend([load(sum, 8), store(sum, 8)]);
        }
    }
}

impl Kernel for StreamCluster {
    fn step(&mut self, thread: usize, out: &mut Vec<Access>) -> Step {
        if self.cursors[thread] == self.end(thread) {
            if (0..self.cursors.len()).any(|other| self.cursors[other] < self.end(other)) {
                return Step::Waits;
            }
            self.next_phase();
            if self.cursors[thread] == self.end(thread) {
                return Step::Waits;
            }
        }
        let at = self.cursors[thread];
        match self.phase {
            Phase::Number => {
                out.push(load(self.is_center + at, 1));
                if self.is_centre(at) {
                    out.push(store(self.table + 4 * at, 4));
                }
            }
            Phase::Compare => self.compare(thread, at, out),
            Phase::AddUp => {
                out.push(load(self.lower + 8 * (thread as u64 * self.centres + at), 8));
            }
            Phase::Assign => {
                out.push(load(self.switches + at, 1));
                if self.fate(at).0 {
                    let structure = self.structures + at * POINT;
                    out.extend([store(structure + COST, 4), store(structure + ASSIGNED, 8)]);
                }
            }
        }
        self.cursors[thread] += 1;
        match self.is_last() && self.cursors[thread] == self.end(thread) {
            true => Step::Ended,
            false => Step::Within,
        }
    }
}

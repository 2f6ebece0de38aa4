//! A key-value store in memory: a tree of wide nodes, as Masstree's (Mao, Kohler and Morris, EuroSys 2012).
//!
//! ```text
//! nodes    256 bytes each: version, permutation, 12 keys, 13 children; in random order
//! values   one for each item, in random order
//! ```
//!
//! An operation goes from the root to a leaf. In each node it loads the version, seeks among the keys by
//! halves, loads the child, and loads the version again, since a writer might have come between. Then it
//! loads the value, or locks the leaf and stores it.

use super::Common;
use super::kernel::{Kernel, Layout, Step, load, store};
use super::random::{Permutation, SplitMix64};
use super::spec::Spec;
use super::zipf::Zipf;
use strata_stream::Access;

const NODE: u64 = 256;
/// Items in a leaf and children of any other node: three quarters of Masstree's most, rounded up, as in a
/// tree that has grown by splits.
const FAN: u64 = 12;

/// Where the fields of a node are.
const KEYS: u64 = 16;
const CHILDREN: u64 = 112;

/// Bytes of a value that one instruction moves.
const VECTOR: u64 = 16;

/// The store.
pub struct Tree {
    /// Nodes in each level, the leaves first, and how many there are in those before.
    levels: Vec<(u64, u64)>,
    nodes: u64,
    values: u64,
    value_bytes: u64,
    node_order: Permutation,
    value_order: Permutation,
    zipf: Zipf,
    /// Items by popularity.
    popular: Permutation,
    gets: f64,
    threads: Vec<SplitMix64>,
}

/// Nodes in each level of a tree of so many items, the leaves first.
fn levels(items: u64) -> Vec<u64> {
    let mut levels = vec![items.div_ceil(FAN)];
    while let Some(&below) = levels.last().filter(|below| **below > 1) {
        levels.push(below.div_ceil(FAN));
    }
    levels
}

/// The most items that fit into `size` bytes.
fn most_items(size: u64, value: u64) -> u64 {
    let bytes = |items: u64| items * value + NODE * levels(items).iter().sum::<u64>();
    let (mut fits, mut too_many) = (0, size / value + 1);
    while fits + 1 < too_many {
        let middle = fits + (too_many - fits) / 2;
        if bytes(middle) <= size {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    fits
}

impl Tree {
    /// The store that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: &Common) -> Result<Self, String> {
        let value_bytes = spec.size("value", VECTOR, 1 << 20)?;
        if value_bytes % VECTOR != 0 {
            return Err(spec.wrong("value", &format!("{value_bytes} is no multiple of {VECTOR}")));
        }
        let items = most_items(common.size, value_bytes);
        if items == 0 {
            return Err(spec.wrong("size", "too small for a node and a value"));
        }
        let mut before = 0;
        let levels = levels(items).into_iter().map(|nodes| {
            before += nodes;
            (nodes, before - nodes)
        });
        let levels: Vec<_> = levels.collect();
        let mut layout = Layout::new();
        Ok(Self {
            levels,
            nodes: layout.part(before * NODE),
            values: layout.part(items * value_bytes),
            value_bytes,
            node_order: Permutation::new(before, common.seed ^ 1 << 32),
            value_order: Permutation::new(items, common.seed ^ 2 << 32),
            zipf: Zipf::new(items, spec.real("theta", 0.0, 8.0)?),
            popular: Permutation::new(items, common.seed),
            gets: spec.real("gets", 0.0, 1.0)?,
            threads: (0..common.threads).map(|t| SplitMix64::new(common.seed, t)).collect(),
        })
    }

    /// Seeks a slot among the keys of a node by halves.
    fn seek(node: u64, slot: u64, out: &mut Vec<Access>) {
        let (mut low, mut high) = (0, FAN);
        while low < high {
            let middle = low.midpoint(high);
            out.push(load(node + KEYS + 8 * middle, 8));
            match middle.cmp(&slot) {
                std::cmp::Ordering::Equal => break,
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
    }
}

impl Kernel for Tree {
    fn step(&mut self, thread: usize, out: &mut Vec<Access>) -> Step {
        let random = &mut self.threads[thread];
        let item = self.popular.apply(self.zipf.sample(random));
        let is_get = random.unit() < self.gets;
        let mut leaf = 0;
        for (level, (_, before)) in self.levels.iter().enumerate().rev() {
            // The number of the child within its own level.
            let child = item / FAN.pow(level as u32);
            let node = self.nodes + NODE * self.node_order.apply(before + child / FAN);
            out.extend([load(node, 8), load(node + 8, 8)]);
            Self::seek(node, child % FAN, out);
            out.extend([load(node + CHILDREN + 8 * (child % FAN), 8), load(node, 8)]);
            leaf = node;
        }
        let value = self.values + self.value_bytes * self.value_order.apply(item);
        let parts = (0..self.value_bytes).step_by(VECTOR as usize);
        if is_get {
            out.extend(parts.map(|at| load(value + at, VECTOR as u32)));
        } else {
            out.push(store(leaf, 8));
            out.extend(parts.map(|at| store(value + at, VECTOR as u32)));
            out.push(store(leaf, 8));
        }
        Step::Ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_items_as_fit() {
        for (size, value) in [(4096, 64), (10_000, 16), (1 << 20, 64), (60 << 40, 4096)] {
            let bytes = |items| items * value + NODE * levels(items).iter().sum::<u64>();
            let items = most_items(size, value);
            assert!(bytes(items) <= size && bytes(items + 1) > size, "{size} {value}: {items}");
        }
    }
}

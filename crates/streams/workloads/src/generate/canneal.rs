//! Simulated annealing of a netlist, as the program canneal of PARSEC does it.
//!
//! ```text
//! elements    88 bytes each: its fan-in and fan-out (vectors), its location (pointer), its name
//! lists       2 x 48 bytes for each element: 5 pointers to other elements, and malloc's header
//! locations   8 bytes each: x and y
//! ```
//!
//! A move takes the element of the move before and a random one, loads the locations of both and of all
//! their neighbours, and exchanges the two if the wires become shorter, or by chance while the
//! temperature is high (PARSEC 3.0, `annealer_thread.cpp`, `netlist_elem.cpp`). The netlist is random, as
//! those that come with PARSEC are; it is annealed in earnest.

use super::Common;
use super::kernel::{Kernel, Layout, Step, load, store};
use super::random::{Permutation, SplitMix64};
use super::spec::Spec;
use rustc_hash::FxHashMap;
use strata_stream::Access;

const ELEMENT: u64 = 88;
const LIST: u64 = 48;
const LOCATION: u64 = 8;

/// Where the fields of an element are.
const FAN_IN: u64 = 0;
const FAN_OUT: u64 = 24;
const PRESENT_LOCATION: u64 = 48;

/// Elements in a fan-in, as in PARSEC's netlists at most; fan-outs have as many here.
const FAN: usize = 5;

/// By what the temperature is divided (PARSEC 3.0, `annealer_thread.cpp`).
const COOLING: f64 = 1.5;

/// The annealing.
pub struct Canneal {
    elements: u64,
    element_base: u64,
    list_base: u64,
    location_base: u64,
    /// Elements in a row of the grid.
    side: u64,
    /// The n-th element of the fan-in of an element, which is in the fan-out of that one.
    wires: [Permutation; FAN],
    /// Where elements are in the beginning, and where those are that have moved.
    placed: Permutation,
    moved: FxHashMap<u64, u64>,
    temperature: f64,
    /// Moves at each temperature, and how many are left at the present one.
    swaps: u64,
    swaps_left: u64,
    threads: Vec<Thread>,
}

struct Thread {
    random: SplitMix64,
    /// The second element of the move before.
    last: u64,
}

impl Canneal {
    /// The annealing that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: &Common) -> Result<Self, String> {
        let elements = common.size / (ELEMENT + 2 * LIST + LOCATION);
        let swaps = spec.count("swaps", 1, u64::MAX)?;
        let mut layout = Layout::new();
        let thread = |thread| {
            let mut random = SplitMix64::new(common.seed, thread);
            let last = random.below(elements);
            Thread { random, last }
        };
        Ok(Self {
            elements,
            element_base: layout.part(elements * ELEMENT),
            list_base: layout.part(elements * 2 * LIST),
            location_base: layout.part(elements * LOCATION),
            side: (elements as f64).sqrt().ceil() as u64,
            wires: std::array::from_fn(|wire| {
                Permutation::new(elements, common.seed ^ (wire as u64 + 1) << 32)
            }),
            placed: Permutation::new(elements, common.seed),
            moved: FxHashMap::default(),
            temperature: spec.real("temperature", 0.0, 1e12)?,
            swaps,
            swaps_left: swaps,
            threads: (0..common.threads).map(thread).collect(),
        })
    }

    fn field(&self, element: u64, field: u64) -> u64 {
        self.element_base + element * ELEMENT + field
    }

    fn place(&self, element: u64) -> u64 {
        self.moved.get(&element).copied().unwrap_or_else(|| self.placed.apply(element))
    }

    /// Length of a wire between two places of the grid.
    fn wire(&self, a: u64, b: u64) -> i64 {
        let side = self.side;
        ((a % side).abs_diff(b % side) + (a / side).abs_diff(b / side)) as i64
    }

    /// Loads where an element is.
    fn look(&self, element: u64, out: &mut Vec<Access>) -> u64 {
        let place = self.place(element);
        out.push(load(self.field(element, PRESENT_LOCATION), 8));
        out.push(load(self.location_base + place * LOCATION, 8));
        place
    }

    /// By how much the wires of an element become longer if it moves.
    fn cost(&self, element: u64, from: u64, to: u64, out: &mut Vec<Access>) -> i64 {
        let mut cost = 0;
        let lists = self.list_base + element * 2 * LIST;
        for (field, list) in [(FAN_IN, lists), (FAN_OUT, lists + LIST)] {
            out.push(load(self.field(element, field), 8));
            for (index, wire) in (0..).zip(&self.wires) {
                let other = match field {
                    FAN_IN => wire.apply(element),
                    _ => wire.invert(element),
                };
                out.push(load(list + 8 * index, 8));
                let place = self.look(other, out);
                cost += self.wire(to, place) - self.wire(from, place);
            }
        }
        cost
    }

    fn cool(&mut self) {
        self.swaps_left -= 1;
        if self.swaps_left == 0 {
            self.swaps_left = self.swaps;
            self.temperature /= COOLING;
        }
    }
}

impl Kernel for Canneal {
    fn step(&mut self, thread: usize, out: &mut Vec<Access>) -> Step {
        let Thread { random, last } = &mut self.threads[thread];
        let a = *last;
        // Another one.
        let b = (a + 1 + random.below(self.elements - 1)) % self.elements;
        *last = b;
        let chance = random.unit();
        let (of_a, of_b) = (self.look(a, out), self.look(b, out));
        let cost = self.cost(a, of_a, of_b, out) + self.cost(b, of_b, of_a, out);
        if cost < 0 || libm::exp(-cost as f64 / self.temperature) > chance {
            self.moved.insert(a, of_b);
            self.moved.insert(b, of_a);
            out.extend([a, b].map(|element| store(self.field(element, PRESENT_LOCATION), 8)));
        }
        self.cool();
        Step::Ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annealing(text: &str) -> Canneal {
        let spec = Spec::parse(text).unwrap();
        Canneal::new(&spec, &Common::new(&spec).unwrap()).unwrap()
    }

    /// Length of all wires.
    fn length(of: &Canneal) -> i64 {
        let wires = |element: u64| {
            let others = of.wires.iter().map(move |wire| wire.apply(element));
            others.map(|other| of.wire(of.place(element), of.place(other))).sum::<i64>()
        };
        (0..of.elements).map(wires).sum()
    }

    #[test]
    fn what_a_swap_costs_is_what_the_wires_say_and_annealing_shortens_them() {
        let mut annealing = annealing("canneal:size=64KiB,temperature=20,swaps=500,threads=2");
        let before = length(&annealing);
        let mut out = Vec::new();
        for step in 0..3000 {
            let (a, at) = (annealing.threads[step % 2].last, length(&annealing));
            let b = {
                let mut random = annealing.threads[step % 2].random.clone();
                (a + 1 + random.below(annealing.elements - 1)) % annealing.elements
            };
            let (of_a, of_b) = (annealing.place(a), annealing.place(b));
            let mut copy = Vec::new();
            let cost =
                annealing.cost(a, of_a, of_b, &mut copy) + annealing.cost(b, of_b, of_a, &mut copy);
            assert_eq!(annealing.step(step % 2, &mut out), Step::Ended);
            let wires = |x: u64| annealing.wires.iter().any(|wire| wire.apply(x) == x);
            let joined = annealing.wires.iter().any(|w| w.apply(a) == b || w.apply(b) == a);
            // Wires between the two, or of one to itself, are counted as if one stayed, as in PARSEC.
            if annealing.place(a) == of_b && !joined && !wires(a) && !wires(b) {
                assert_eq!(length(&annealing) - at, cost);
            }
        }
        let after = length(&annealing);
        assert!(after < before * 9 / 10, "{before} {after}");
        // Every place is taken once.
        let mut places: Vec<_> = (0..annealing.elements).map(|e| annealing.place(e)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..annealing.elements));
    }
}

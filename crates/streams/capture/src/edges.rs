//! Edges of a sampled stream in their order.
//!
//! Each edge is passed by one thread of one process, which tells of it once its process is ready: others may
//! have passed, and told of, the next ones by then. And one that is killed tells of nothing.

use strata_stream::{Edge, Sampling};

/// Puts edges in order.
#[derive(Clone, Debug)]
pub(crate) struct Edges {
    /// The edges of each interval.
    order: &'static [Edge],
    /// Edges that were given out.
    given: usize,
    /// Edges that came too early.
    early: Vec<Edge>,
}

impl Edges {
    pub(crate) fn new(sampling: &Sampling) -> Self {
        const WARM: &[Edge] = &[Edge::Interval, Edge::Warm, Edge::Window, Edge::Gap];
        const COLD: &[Edge] = &[Edge::Interval, Edge::Window, Edge::Gap];
        let order = if sampling.warm > 0 || sampling.adaptive { WARM } else { COLD };
        Self { order, given: 0, early: Vec::new() }
    }

    fn expected(&self) -> Edge {
        self.order[self.given % self.order.len()]
    }

    /// An edge is told of. Gives those whose turn it is.
    pub(crate) fn told(&mut self, edge: Edge) -> Vec<Edge> {
        self.early.push(edge);
        let mut due = Vec::new();
        loop {
            let expected = self.expected();
            match self.early.iter().position(|early| *early == expected) {
                Some(at) => {
                    self.early.remove(at);
                }
                // Everything after it has come: nobody is left to tell of it.
                None if self.early.len() + 1 >= self.order.len() => {}
                None => return due,
            }
            self.given += 1;
            due.push(expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Edge::*;

    fn sampling(warm: u64) -> Sampling {
        Sampling { interval: 1000, window: 10, warm, whole: 0, adaptive: false, seed: 1 }
    }

    #[test]
    fn edges_wait_for_those_before_them() {
        let mut edges = Edges::new(&sampling(10));
        assert_eq!(edges.told(Interval), [Interval]);
        assert_eq!(edges.told(Window), []);
        assert_eq!(edges.told(Gap), []);
        assert_eq!(edges.told(Warm), [Warm, Window, Gap]);
        let mut cold = Edges::new(&sampling(0));
        assert_eq!(cold.told(Interval), [Interval]);
        assert_eq!(cold.told(Window), [Window]);
    }

    #[test]
    fn one_that_nobody_tells_of_is_not_waited_for_for_ever() {
        let mut edges = Edges::new(&sampling(10));
        edges.told(Interval);
        edges.told(Window);
        edges.told(Gap);
        assert_eq!(edges.told(Interval), [Warm, Window, Gap, Interval]);
        assert_eq!(edges.told(Warm), [Warm]);
    }
}

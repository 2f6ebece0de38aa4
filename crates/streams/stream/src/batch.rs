//! A piece of a stream, large enough to amortise hand-over, small enough to stay in cache.

use crate::{Access, Event, Tid};

/// What comes next in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The next `accesses` accesses are by `tid`, which retired `instructions` meanwhile.
    Run {
        /// The thread.
        tid: Tid,
        /// Accesses, counted from where the item before stopped.
        accesses: u32,
        /// Instructions retired, those without memory operand included.
        instructions: u64,
    },
    /// An event.
    Event(Event),
}

/// A piece of a stream. Reused: [`Batch::clear`] keeps the allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    accesses: Vec<Access>,
    items: Vec<Item>,
}

/// One step through a batch: an [`Item`] with its accesses at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Accesses by one thread, in program order.
    Run {
        /// The thread.
        tid: Tid,
        /// Instructions retired during the run.
        instructions: u64,
        /// The accesses; may be empty.
        accesses: &'a [Access],
    },
    /// An event.
    Event(&'a Event),
}

impl Batch {
    /// Accesses a source should aim at per batch.
    pub const TARGET: usize = 16 * 1024;

    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.items.clear();
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of accesses.
    pub fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Whether the batch holds as much as a source should put into one.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.accesses.len() >= Self::TARGET || self.items.len() >= Self::TARGET
    }

    /// Adds an event.
    pub fn event(&mut self, event: Event) {
        self.items.push(Item::Event(event));
    }

    /// Adds one access by `tid` after `instructions` instructions (itself included).
    #[inline]
    pub fn access(&mut self, tid: Tid, access: Access, instructions: u64) {
        self.accesses.push(access);
        match self.items.last_mut() {
            Some(Item::Run { tid: last, accesses, instructions: count }) if *last == tid => {
                *accesses += 1;
                *count += instructions;
            }
            _ => self.items.push(Item::Run { tid, accesses: 1, instructions }),
        }
    }

    /// Adds a run of accesses by one thread; `fill` appends them. An empty run with no
    /// instructions leaves no trace.
    pub fn run(&mut self, tid: Tid, instructions: u64, fill: impl FnOnce(&mut Vec<Access>)) {
        let before = self.accesses.len();
        fill(&mut self.accesses);
        let accesses = (self.accesses.len() - before) as u32;
        if accesses > 0 || instructions > 0 {
            self.items.push(Item::Run { tid, accesses, instructions });
        }
    }

    /// The items, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// All accesses, in order.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The content, in order.
    pub fn steps(&self) -> Steps<'_> {
        Steps { items: self.items.iter(), accesses: &self.accesses }
    }
}

/// Iterator over the [`Step`]s of a batch.
#[derive(Debug)]
pub struct Steps<'a> {
    items: std::slice::Iter<'a, Item>,
    accesses: &'a [Access],
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    #[inline]
    fn next(&mut self) -> Option<Step<'a>> {
        Some(match self.items.next()? {
            Item::Event(event) => Step::Event(event),
            &Item::Run { tid, accesses, instructions } => {
                let (run, rest) = self.accesses.split_at(accesses as usize);
                self.accesses = rest;
                Step::Run { tid, instructions, accesses: run }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use strata_addr::Gva;

    #[test]
    fn steps_give_back_what_was_put_in() {
        let load = |addr| Access::load(Gva::new(addr), 8);
        let start = Event::ProcessStart { pid: Pid(0) };
        let mut batch = Batch::new();
        batch.event(start);
        batch.access(Tid(0), load(1), 3);
        batch.access(Tid(0), load(2), 1);
        batch.run(Tid(1), 0, |_| ());
        batch.run(Tid(1), 5, |out| out.push(load(3)));
        let steps: Vec<_> = batch.steps().collect();
        assert_eq!(
            steps,
            [
                Step::Event(&start),
                Step::Run { tid: Tid(0), instructions: 4, accesses: &[load(1), load(2)] },
                Step::Run { tid: Tid(1), instructions: 5, accesses: &[load(3)] },
            ]
        );
        batch.clear();
        assert!(batch.is_empty() && batch.steps().next().is_none());
    }
}

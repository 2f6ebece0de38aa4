//! A handful of tagged entries with true LRU replacement.

/// Entries in order of use, the most recently used first. For arrays of a few entries, where the
/// first one mostly hits.
pub(crate) struct Small<P> {
    entries: Vec<(u64, P)>,
    capacity: usize,
}

impl<P: Copy> Small<P> {
    /// Room for `capacity` entries; with 0, every lookup misses.
    pub(crate) fn new(capacity: u16) -> Self {
        let capacity = capacity.into();
        Self { entries: Vec::with_capacity(capacity), capacity }
    }

    /// The payload behind `tag`, which becomes the most recently used.
    #[inline]
    pub(crate) fn lookup(&mut self, tag: u64) -> Option<P> {
        match self.entries.first() {
            Some(first) if first.0 == tag => Some(first.1),
            _ => self.lookup_older(tag),
        }
    }

    #[inline(never)]
    fn lookup_older(&mut self, tag: u64) -> Option<P> {
        let at = self.entries.iter().position(|entry| entry.0 == tag)?;
        let found = self.entries[at];
        // One by one: the ways are few.
        for to in (1..=at).rev() {
            self.entries[to] = self.entries[to - 1];
        }
        self.entries[0] = found;
        Some(found.1)
    }

    /// Puts an entry that is not there in the place of the least recently used one.
    pub(crate) fn fill(&mut self, tag: u64, payload: P) {
        debug_assert!(self.entries.iter().all(|entry| entry.0 != tag));
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() == self.capacity {
            self.entries.pop();
        }
        self.entries.insert(0, (tag, payload));
    }

    /// Drops one entry, if it is there.
    pub(crate) fn remove(&mut self, tag: u64) {
        self.remove_where(|other| other == tag);
    }

    /// Drops every entry whose tag satisfies `drop`.
    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(u64) -> bool) {
        self.entries.retain(|entry| !drop(entry.0));
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::NaiveSets;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_array_equals_its_naive_twin(
            entries in 0u16..6,
            ops in prop::collection::vec((0u8..10, 0u64..12, any::<u64>()), 1..200),
        ) {
            let mut fast = Small::new(entries);
            let mut naive = NaiveSets::new(1, entries.into());
            for (op, key, payload) in ops {
                let tag = key + 1;
                match op {
                    0 => {
                        fast.remove(tag);
                        naive.remove(0, tag);
                    }
                    1 if key == 0 => {
                        fast.clear();
                        naive.remove_where(|_| true);
                    }
                    2 if key < 4 => {
                        fast.remove_where(|tag| tag % 4 == key);
                        naive.remove_where(|tag| tag % 4 == key);
                    }
                    _ => {
                        let got = fast.lookup(tag);
                        prop_assert_eq!(got, naive.lookup(0, tag));
                        if got.is_none() {
                            fast.fill(tag, payload);
                            naive.fill(0, tag, payload);
                        }
                    }
                }
            }
        }
    }
}

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
        let at = self.entries.iter().position(|entry| entry.0 == tag)?;
        if at > 0 {
            self.entries[..=at].rotate_right(1);
        }
        Some(self.entries[0].1)
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

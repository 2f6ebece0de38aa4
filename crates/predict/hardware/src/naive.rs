//! The slow, obviously right twin of every array with LRU replacement, for tests.

/// Sets of entries, each set a list with the most recently used entry first.
pub(crate) struct NaiveSets {
    sets: Vec<Vec<(u64, u64)>>,
    ways: usize,
}

impl NaiveSets {
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        Self { sets: vec![Vec::new(); sets], ways }
    }

    fn set(&mut self, set: u64) -> &mut Vec<(u64, u64)> {
        let sets = self.sets.len() as u64;
        &mut self.sets[(set % sets) as usize]
    }

    pub(crate) fn lookup(&mut self, set: u64, tag: u64) -> Option<u64> {
        let entries = self.set(set);
        let at = entries.iter().position(|entry| entry.0 == tag)?;
        let entry = entries.remove(at);
        entries.insert(0, entry);
        Some(entry.1)
    }

    pub(crate) fn fill(&mut self, set: u64, tag: u64, payload: u64) {
        let ways = self.ways;
        let entries = self.set(set);
        entries.insert(0, (tag, payload));
        entries.truncate(ways);
    }

    pub(crate) fn remove(&mut self, set: u64, tag: u64) {
        self.set(set).retain(|entry| entry.0 != tag);
    }

    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(u64) -> bool) {
        for entries in &mut self.sets {
            entries.retain(|entry| !drop(entry.0));
        }
    }
}

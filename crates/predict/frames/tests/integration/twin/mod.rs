//! A memory that is obviously right: one state a frame, free blocks worked out on each call.

use strata_frames::{Frame, MAX_ORDER, REGION_FRAMES};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Used,
    ReservedFree,
    ReservedUsed,
}

pub struct Twin {
    pub states: Vec<State>,
}

impl Twin {
    pub fn new(frames: u64) -> Self {
        Self { states: vec![State::Free; frames as usize] }
    }

    pub fn count(&self, state: State) -> u64 {
        self.states.iter().filter(|&&s| s == state).count() as u64
    }

    /// Whether the block lies in memory and all its frames are in this state.
    pub fn all(&self, start: u64, order: u32, state: State) -> bool {
        let end = start + (1 << order);
        end <= self.states.len() as u64
            && self.states[start as usize..end as usize].iter().all(|&s| s == state)
    }

    fn starts(&self, order: u32) -> impl Iterator<Item = u64> + '_ {
        (0..self.states.len() as u64).step_by(1 << order)
    }

    /// The maximal free blocks of exactly this order, ascending: what a buddy allocator lists.
    pub fn blocks(&self, order: u32) -> impl Iterator<Item = u64> + '_ {
        self.starts(order).filter(move |&start| {
            self.all(start, order, State::Free)
                && (order == MAX_ORDER
                    || !self.all(start & !((2 << order) - 1), order + 1, State::Free))
        })
    }

    pub fn alloc(&mut self, order: u32) -> Option<Frame> {
        let start = (order..=MAX_ORDER).find_map(|k| self.blocks(k).next())?;
        self.put(start, order, State::Used);
        Some(Frame::new(start))
    }

    pub fn alloc_at(&mut self, start: u64, order: u32) -> bool {
        let free = self.all(start, order, State::Free);
        if free {
            self.put(start, order, State::Used);
        }
        free
    }

    pub fn alloc_reserved(&mut self, start: u64, order: u32) -> bool {
        let free = self.all(start, order, State::ReservedFree);
        if free {
            self.put(start, order, State::ReservedUsed);
        }
        free
    }

    /// Whether every frame of the block is allocated, so that it may be freed.
    pub fn can_free(&self, start: u64, order: u32) -> bool {
        let end = start + (1 << order);
        end <= self.states.len() as u64
            && (start..end)
                .all(|f| matches!(self.states[f as usize], State::Used | State::ReservedUsed))
    }

    pub fn free(&mut self, start: u64, order: u32) {
        for state in &mut self.states[start as usize..][..1 << order] {
            *state = match state {
                State::Used => State::Free,
                State::ReservedUsed => State::ReservedFree,
                other => panic!("freed while {other:?}"),
            };
        }
    }

    pub fn reserve(&mut self, region: u64) -> bool {
        let free = self.all(region * REGION_FRAMES, 9, State::Free);
        if free {
            self.put(region * REGION_FRAMES, 9, State::ReservedFree);
        }
        free
    }

    pub fn release(&mut self, region: u64) -> u64 {
        let mut returned = 0;
        let start = (region * REGION_FRAMES) as usize;
        for state in self.states.iter_mut().skip(start).take(REGION_FRAMES as usize) {
            match state {
                State::ReservedFree => {
                    *state = State::Free;
                    returned += 1;
                }
                State::ReservedUsed => *state = State::Used,
                _ => {}
            }
        }
        returned
    }

    pub fn reserved_regions(&self) -> Vec<Frame> {
        let reserved = |&start: &u64| {
            matches!(self.states[start as usize], State::ReservedFree | State::ReservedUsed)
        };
        self.starts(9).filter(reserved).map(Frame::new).collect()
    }

    /// FMFI by its definition, free frames in reserved regions included or not.
    pub fn fmfi(&self, order: u32, with_reserved: bool) -> f64 {
        let mut free = self.count(State::Free);
        let mut suitable =
            self.starts(order).filter(|&s| self.all(s, order, State::Free)).count() as u64;
        if with_reserved {
            free += self.count(State::ReservedFree);
            // No reserved block is larger than a region.
            suitable += self
                .starts(order)
                .filter(|&s| order <= 9 && self.all(s, order, State::ReservedFree))
                .count() as u64;
        }
        if free == 0 { 1.0 } else { (free - (suitable << order)) as f64 / free as f64 }
    }

    pub fn extfrag(&self, order: u32) -> Option<f64> {
        if self.starts(order).any(|s| self.all(s, order, State::Free)) {
            return None;
        }
        let blocks: usize = (0..=MAX_ORDER).map(|k| self.blocks(k).count()).sum();
        let wanted = self.count(State::Free) as f64 / 2f64.powi(order as i32);
        Some(if blocks == 0 { 0.0 } else { 1.0 - (1.0 + wanted) / blocks as f64 })
    }

    fn free_regions(&self) -> Vec<bool> {
        self.starts(9).map(|start| self.all(start, 9, State::Free)).collect()
    }

    pub fn next_fit(&self, cursor: u64, regions: u64) -> Option<Frame> {
        let free = self.free_regions();
        let fits = |&start: &usize| {
            (start..start + regions as usize).all(|r| free.get(r).copied().unwrap_or(false))
        };
        let from = cursor.div_ceil(REGION_FRAMES) as usize;
        let start = (from..free.len()).find(fits).or_else(|| (0..free.len()).find(fits))?;
        Some(Frame::new(start as u64 * REGION_FRAMES))
    }

    /// Start and length of every maximal run of free regions.
    pub fn runs(&self) -> Vec<(Frame, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (region, free) in self.free_regions().into_iter().enumerate() {
            let region = region as u64;
            match runs.last_mut() {
                Some((start, length)) if free && *start + *length == region => *length += 1,
                _ if free => runs.push((region, 1)),
                _ => {}
            }
        }
        runs.into_iter().map(|(start, n)| (Frame::new(start * REGION_FRAMES), n)).collect()
    }

    fn put(&mut self, start: u64, order: u32, state: State) {
        self.states[start as usize..][..1 << order].fill(state);
    }
}

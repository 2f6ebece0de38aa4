//! Pages that a `fork` left to several processes.

/// Stands where a page is not known to be shared.
pub(super) const ALONE: u32 = 0;

/// Pages that a `fork` left to several processes: how many of them still have each.
#[derive(Debug)]
pub(super) struct Shared {
    /// By number.
    pub(super) sharers: Vec<u32>,
    pub(super) free: Vec<u32>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { sharers: vec![0; ALONE as usize + 1], free: Vec::new() }
    }
}

impl Shared {
    /// One process more has a page. Gives its number, which one that was nobody else's gets.
    pub(super) fn join(&mut self, number: u32) -> u32 {
        let number = match number {
            ALONE => self.free.pop().unwrap_or_else(|| {
                self.sharers.push(0);
                self.sharers.len() as u32 - 1
            }),
            known => known,
        };
        let sharers = &mut self.sharers[number as usize];
        *sharers = (*sharers + 1).max(2);
        number
    }

    /// A process has a page no more. Gives whether others have it.
    pub(super) fn leave(&mut self, number: u32) -> bool {
        if number == ALONE {
            return false;
        }
        let sharers = &mut self.sharers[number as usize];
        *sharers -= 1;
        if *sharers == 0 {
            self.free.push(number);
        }
        *sharers > 0
    }
}

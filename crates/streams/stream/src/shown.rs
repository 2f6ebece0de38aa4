//! What a process's own page tables, and the kernel's account of its page faults, show of pages.

/// What is shown of a page that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Nobody else maps it, and it is no page of a file: it was stored to, or others that a `fork` left it to are
    /// gone.
    pub own: bool,
    /// Page faults on it since it was shown last, unless it is not known whether there were some.
    pub faults: Option<Faults>,
}

/// How many page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// None by the program: the page was there before, or the kernel put it there for a call, or beside another page.
    None,
    /// One.
    One,
    /// More: it was read before it was stored to.
    More,
}

impl Shown {
    /// As a number below 8.
    pub fn code(self) -> u64 {
        let faults = match self.faults {
            None => 0,
            Some(Faults::None) => 1,
            Some(Faults::One) => 2,
            Some(Faults::More) => 3,
        };
        faults << 1 | u64::from(self.own)
    }

    /// What has this code, if anything has.
    pub fn from_code(code: u64) -> Option<Self> {
        let faults = match code >> 1 {
            0 => None,
            1 => Some(Faults::None),
            2 => Some(Faults::One),
            3 => Some(Faults::More),
            _ => return None,
        };
        Some(Self { own: code & 1 == 1, faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_of_one_thing() {
        for code in 0..8 {
            assert_eq!(Shown::from_code(code).map(Shown::code), Some(code));
        }
        assert_eq!(Shown::from_code(8), None);
    }
}

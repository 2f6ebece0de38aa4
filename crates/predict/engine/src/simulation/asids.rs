//! The address spaces of all guests, as hardware tags them.

use super::cores::GuestId;
use strata_hardware::{Asid, Machine};
use strata_stack::SpaceId;

/// What hardware calls the spaces of the guests: each another number. When there are no more the numbers
/// are given out anew, as Linux does (`arch/x86/kvm/svm/svm.c`, `new_asid`).
#[derive(Debug, Default)]
pub(crate) struct Asids {
    /// By guest and number of the space.
    given: Vec<Vec<Option<Asid>>>,
    next: u16,
}

impl Asids {
    /// That of a guest's space.
    #[inline]
    pub(crate) fn of(&mut self, guest: GuestId, space: SpaceId, machine: &mut Machine) -> Asid {
        match self.known(guest, space) {
            Some(asid) => asid,
            None => self.give(guest, space, machine),
        }
    }

    /// The same, of a space that hardware may have seen.
    #[inline]
    pub(crate) fn known(&self, guest: GuestId, space: SpaceId) -> Option<Asid> {
        *self.given.get(guest)?.get(space.0 as usize)?
    }

    #[cold]
    fn give(&mut self, guest: GuestId, space: SpaceId, machine: &mut Machine) -> Asid {
        if self.next == u16::MAX {
            machine.flush_all();
            *self = Self::default();
        }
        let asid = Asid(self.next);
        self.next += 1;
        let space = space.0 as usize;
        self.given.resize(self.given.len().max(guest + 1), Vec::new());
        let of_guest = &mut self.given[guest];
        of_guest.resize(of_guest.len().max(space + 1), None);
        of_guest[space] = Some(asid);
        asid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_hardware::{CpuModel, Misaligned};

    #[test]
    fn no_two_spaces_have_one_until_there_are_no_more() {
        let model = CpuModel::preset("zen3").unwrap();
        let mut machine = Machine::new(&model, Misaligned::Splinter);
        let mut asids = Asids::default();
        let mut of = |guest, space| asids.of(guest, SpaceId(space), &mut machine);
        let given = [of(0, 0), of(1, 0), of(1, 7), of(0, 3)];
        assert_eq!(given, [Asid(0), Asid(1), Asid(2), Asid(3)]);
        assert_eq!([of(0, 0), of(1, 0), of(1, 7), of(0, 3)], given);
        let last = (0..u16::MAX - 4).map(|space| of(2, space)).last();
        assert_eq!(last, Some(Asid(u16::MAX - 1)));
        assert_eq!((of(5, 9), of(0, 0)), (Asid(0), Asid(1)));
    }
}

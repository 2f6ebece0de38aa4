//! Machines made of random tables: the tables are found in their RAM, proved, kept and read back.

mod machine;

use machine::Machine;
use proptest::prelude::*;
use strata_addr::{Frame, Gva, Hpa, PageSize, Vpn};
use strata_paging::Rights;
use strata_stream::Access;
use strata_tables::search::{NotFound, Pair, search};
use strata_tables::variant::{TableVariant, tables};
use strata_tables::{Capture, Entries};
use strata_tables::{Observed, file, fuzz, truth};

/// What a program of this machine does: one access to each of its pages.
fn seen(machine: &Machine) -> Observed {
    let mut seen = Observed::default();
    for (page, frame) in &machine.program {
        let access = Access::load(page.addr(), 8);
        seen.add(access, Some(frame.addr()));
    }
    seen
}

fn captured(machine: &Machine) -> Capture {
    let seen = seen(machine);
    let roots = search(&machine.ram, &seen.latest(64)).unwrap();
    let mut capture = Capture::take(&machine.ram, roots, machine.layers);
    capture.prove(&seen);
    capture
}

/// The tables as the hardware model gets them.
fn translate(capture: &Capture, variant: TableVariant, gva: Gva) -> Option<Hpa> {
    let tables = tables(capture, variant, Hpa::new(1 << 40)).unwrap();
    let gpa = tables.guest.translate(gva)?;
    match &tables.second {
        None => Some(gpa.cross()),
        Some(second) => second.translate(gpa),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tables_are_found_proved_and_kept(machine in machine::any()) {
        let capture = captured(&machine);
        let pages = machine.program.len() as u64;
        prop_assert_eq!((capture.check.matched, capture.check.accesses), (pages, pages));
        prop_assert_eq!(capture.second.is_some(), machine.layers > 1);
        prop_assert_eq!(capture.lower.is_some(), machine.layers > 2);
        prop_assert_eq!(capture.guest.entries, Entries::X86);
        if let Some(second) = &capture.second {
            prop_assert_eq!(second.entries, machine.entries);
        }
        for (page, frame) in &machine.program {
            let (gva, hpa) = (page.addr(), Some(frame.addr()));
            prop_assert_eq!(capture.translate(*page), Some(*frame));
            prop_assert_eq!(translate(&capture, TableVariant::Captured, gva), hpa);
            prop_assert_eq!(translate(&capture, TableVariant::Base, gva), hpa);
            prop_assert!(translate(&capture, TableVariant::Ideal, gva).is_some());
        }
        // A base page's write-back memory type is a flag of x86-64's; nothing was accessed here.
        let loaded = tables(&capture, TableVariant::Captured, Hpa::new(1 << 40)).unwrap();
        for mapping in loaded.second.iter().flat_map(|second| second.mapped(second.everything())) {
            prop_assert_eq!((mapping.1.accessed, mapping.1.dirty), (false, false));
            prop_assert_eq!(mapping.1.rights, Rights::ALL);
        }
        if let Some(made) = capture.composition {
            prop_assert_eq!((made.different, made.only_shadow), (0, 0));
            prop_assert!(made.equal >= pages);
        }
        let bytes = file::encode(&capture).unwrap();
        prop_assert_eq!(file::decode(&bytes).unwrap(), capture);
    }

    #[test]
    fn stale_control_blocks_do_not_mislead(mut machine in machine::any()) {
        machine.forget_guest_root();
        let capture = captured(&machine);
        prop_assert_eq!(capture.check.matched, machine.program.len() as u64);
    }

    #[test]
    fn aligned_means_one_huge_mapping_in_every_dimension(machine in machine::any()) {
        let capture = captured(&machine);
        let limit = Hpa::new(1 << 40);
        let regions = truth::regions(&capture);
        let huge = machine.huge_pages();
        prop_assert_eq!(regions.iter().map(|region| region.gva.page()).collect::<Vec<_>>(), huge);
        let ideal = tables(&capture, TableVariant::Ideal, limit).unwrap();
        let base = tables(&capture, TableVariant::Base, limit).unwrap();
        let mut left = 0;
        base.guest.for_each_huge(|_, _| left += 1);
        prop_assert_eq!(left, 0);
        for region in &regions {
            let Some(second) = &ideal.second else { continue };
            prop_assert_eq!(second.mapping(region.gpa).unwrap().size, PageSize::Huge);
            let actual = region.second.unwrap();
            let leaf = machine.second_size(region.gpa.page());
            prop_assert_eq!(actual.huge, leaf == Some(PageSize::Huge));
            prop_assert!(!actual.huge || actual.is_region() && actual.present == 512);
            prop_assert_eq!(region.is_well_aligned(), actual.huge);
        }
    }

    #[test]
    fn any_damage_to_a_file_is_noticed(machine in machine::any(), at: prop::sample::Index, bit in 0u8..8) {
        let whole = file::encode(&captured(&machine)).unwrap();
        let mut damaged = whole.clone();
        damaged[at.index(whole.len())] ^= 1u8 << bit;
        let error = file::decode(&damaged).unwrap_err();
        prop_assert!(!error.contains('\n'));
        prop_assert!(file::decode(&whole[..at.index(whole.len())]).is_err());
    }

    #[test]
    fn readers_survive_anything(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz::tables(&bytes);
        fuzz::content(&bytes);
    }
}

#[test]
fn what_fits_no_table_is_said() {
    let machine = Machine::new(2, Entries::X86, &[(Vpn::new(0x6_0000_0000), PageSize::Base)], 1);
    assert!(matches!(search(&machine.ram, &[]), Err(NotFound::NoPairs)));
    let wrong = Pair { page: Vpn::new(0x6_0000_0000), frame: Frame::new(1) };
    let error = search(&machine.ram, &[wrong]).unwrap_err();
    assert!(matches!(error, NotFound::NothingFits { pairs: 1, .. }), "{error}");
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn files_are_written_whole_or_not_at_all() {
    let capture =
        captured(&Machine::new(3, Entries::Ept, &[(Vpn::new(0x6_0000_0000), PageSize::Huge)], 7));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    file::write(&path, &capture).unwrap();
    assert_eq!(file::read(&path).unwrap(), capture);
    let nowhere = directory.path().join("no/tables");
    assert!(file::write(&nowhere, &capture).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
}

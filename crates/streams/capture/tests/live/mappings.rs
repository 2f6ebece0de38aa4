//! The events add up to the program's own view of its address space.

use crate::support::{Entry, Linked, Program, Record, gva};
use std::collections::BTreeMap;
use strata_addr::{Range, space::Virtual};
use strata_stream::{Advice, Backing, Event, Protection};

const PAGE: u64 = 4096;

/// Page by page: what the events say is there.
#[derive(Default)]
struct View(BTreeMap<u64, (Backing, Protection)>);

impl View {
    fn pages(range: Range<Virtual>) -> impl Iterator<Item = u64> {
        (range.start.get()..range.end.get()).step_by(PAGE as usize)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Map { range, backing, protection, .. } => {
                self.0.extend(Self::pages(range).map(|page| (page, (backing, protection))));
            }
            Event::Unmap { range, .. } => {
                self.0.retain(|&page, _| !range.contains(gva(page)));
            }
            Event::Remap { from, to, .. } => {
                let old: Vec<_> =
                    Self::pages(from).filter_map(|page| self.0.remove(&page)).collect();
                for (index, page) in Self::pages(to).enumerate() {
                    self.0.insert(page, old[index.min(old.len() - 1)]);
                }
            }
            Event::Protect { range, protection, .. } => {
                for page in Self::pages(range) {
                    self.0.entry(page).and_modify(|entry| entry.1 = protection);
                }
            }
            _ => {}
        }
    }

    /// Address and rights of every page but inaccessible ones, which the emulator does not list
    /// reliably.
    fn rights(&self) -> BTreeMap<u64, u32> {
        self.0.iter().map(|(&page, (_, protection))| (page, protection.bits() & 3)).collect()
    }
}

/// Address and rights to read and write of every page in a `/proc/self/maps`.
fn own_view(maps: &str) -> BTreeMap<u64, u32> {
    let mut pages = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains('-') && !line.contains("[vsyscall]")) {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, rights) = rest.split_once(' ').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let bits =
            u32::from(rights.starts_with('r')) | u32::from(rights[1..].starts_with('w')) << 1;
        pages.extend((hex(start)..hex(end)).step_by(PAGE as usize).map(|page| (page, bits)));
    }
    pages
}

fn last_view(record: &Record) -> View {
    let mut view = View::default();
    record.events().for_each(|event| view.apply(event));
    view
}

#[test]
fn the_events_add_up_to_the_programs_own_view() {
    for linked in [Linked::Pie, Linked::Fixed, Linked::Static, Linked::StaticPie] {
        let program = Program::build("mappings", linked);
        let record = program.run(&[]);
        assert_eq!(record.info.exit_status, Some(0));
        assert_eq!(record.info.notes, [""; 0]);
        let (told, own) = (last_view(&record).rights(), own_view(&program.report()));
        assert!(own.len() > 1000, "{linked:?}: {}", own.len());
        let differ = |page: &&u64| told.get(page) != own.get(page);
        let pages: Vec<_> =
            told.keys().chain(own.keys()).filter(differ).map(|page| format!("{page:#x}")).collect();
        assert!(pages.is_empty(), "{linked:?}: {pages:?}\n{}", program.report());
    }
}

#[test]
fn mappings_hold_what_the_program_asked_for() {
    let program = Program::build("mappings", Linked::Pie);
    let record = program.run(&[]);
    let view = last_view(&record);
    let at = |key: &str| program.reported(key).unwrap();
    let backing = |address: u64| view.0.get(&address).map(|entry| entry.0);
    assert_eq!(backing(at("hole")), None);
    assert_eq!(backing(at("hole") - PAGE), Some(Backing::Anonymous));
    assert_eq!(backing(at("shared")), Some(Backing::SharedAnonymous));
    assert_eq!(backing(at("segment")), Some(Backing::SharedAnonymous));
    assert_eq!(backing(at("moved") + 31 * PAGE), Some(Backing::Anonymous));
    assert_eq!(backing(at("moved") + 32 * PAGE), Some(Backing::Anonymous));
    let count = |kind| view.0.values().filter(|entry| entry.0 == kind).count();
    assert!(count(Backing::Heap) >= 5);
    assert_eq!(count(Backing::Stack), 2048);
    assert!(count(Backing::File) > 100);
    let advice = |wanted| {
        record.events().find_map(|event| match event {
            Event::Advise { range, advice, .. } if advice == wanted => Some(range),
            _ => None,
        })
    };
    let range = |key, pages| Some(Range::sized(gva(at(key)), pages * PAGE));
    assert_eq!(advice(Advice::HugePage), range("advised", 512));
    assert_eq!(advice(Advice::DontNeed), range("advised", 16));
    assert_eq!(advice(Advice::Populate), range("populated", 4));
    let fixed: Vec<_> = record
        .events()
        .filter(|event| matches!(event, Event::Map { range, fixed: true, .. } if range.start.get() == at("fixed")))
        .collect();
    // The second failed (nothing can be mapped from file 77) or is reported too.
    let reported = program.report().matches("fixed").count();
    assert_eq!(fixed.len(), reported);
}

#[test]
fn accesses_stand_between_the_events_that_surround_them() {
    let program = Program::build("mappings", Linked::Static);
    let record = program.run(&[]);
    let mut view = View::default();
    for entry in &record.entries {
        match *entry {
            Entry::Event(event) => view.apply(event),
            Entry::Access(_, access) => {
                let page = access.addr().get() & !(PAGE - 1);
                let (_, protection) = view.0.get(&page).expect("accesses are to mapped memory");
                assert!(if access.is_store() { protection.write } else { protection.read });
            }
        }
    }
}

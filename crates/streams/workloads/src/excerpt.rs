//! A part of a stream.

use crate::record::share;
use strata_stream::{
    Access, Batch, Event, Fill, Mark, Source, SourceError, Step, Tid, WorkloadInfo,
};

/// Which part of a stream is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// It begins at the first [`Mark::Begin`] and ends at the [`Mark::End`] after it.
    pub marked: bool,
    /// Accesses to leave out, counted from there.
    pub skip: u64,
    /// Accesses it has at most.
    pub limit: Option<u64>,
}

impl Part {
    /// Whether something is left out at the beginning.
    pub fn begins_late(&self) -> bool {
        self.marked || self.skip > 0
    }

    /// Whether nothing is left out.
    pub fn is_whole(&self) -> bool {
        !self.begins_late() && self.limit.is_none()
    }
}

/// What is given of the accesses before the part that is wanted. Events are always given, but for those
/// of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The first of each page by each thread, and the first that stores, since the last event that
    /// changed an address space: memory then becomes what it would have become. Where the part
    /// begins stands a [`Mark::Begin`], and no other mark is given.
    Touches,
    /// None.
    Nothing,
}

/// A [`Source`] that gives a part of another.
pub struct Excerpt<S> {
    source: S,
    part: Part,
    before: Before,
    place: Place,
    /// What the source gave; kept for its memory.
    read: Batch,
    touched: Touched,
}

/// Where in the stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    AwaitsMark,
    /// So many accesses are still to be left out.
    Skips(u64),
    /// So many are still wanted.
    Within(Option<u64>),
    /// Past it. Whether there is a program to be waited for.
    Behind(bool),
}

impl<S: Source> Excerpt<S> {
    /// The part of `source`.
    pub fn new(source: S, part: Part, before: Before) -> Self {
        let place = match part {
            Part { marked: true, .. } => Place::AwaitsMark,
            Part { skip: 0, limit, .. } => Place::Within(limit),
            Part { skip, .. } => Place::Skips(skip),
        };
        let (read, touched) = (Batch::new(), Touched::default());
        Self { source, part, before, place, read, touched }
    }

    fn event(&mut self, event: &Event, batch: &mut Batch) {
        match event {
            Event::Mark(mark) => {
                if self.before == Before::Nothing {
                    batch.event(*event);
                }
                if self.part.marked {
                    self.mark(*mark, batch);
                }
            }
            Event::ThreadStart { .. } | Event::ThreadExit { .. } | Event::Fetched { .. } => {
                batch.event(*event);
            }
            // What is left of a request before the part is not what it was, and calls before it are not its.
            Event::Request { .. } | Event::Called { .. } => {
                if matches!(self.place, Place::Within(_)) {
                    batch.event(*event);
                }
            }
            _ => {
                self.touched.forget();
                batch.event(*event);
            }
        }
    }

    fn mark(&mut self, mark: Mark, batch: &mut Batch) {
        match (mark, self.place) {
            (Mark::Begin, Place::AwaitsMark) => self.skip(self.part.skip, batch),
            (Mark::End, Place::Skips(_) | Place::Within(_)) => self.place = Place::Behind(false),
            _ => {}
        }
    }

    fn skip(&mut self, left: u64, batch: &mut Batch) {
        self.place = match left {
            0 => Place::Within(self.part.limit),
            left => Place::Skips(left),
        };
        if left == 0 && self.before == Before::Touches {
            batch.event(Event::Mark(Mark::Begin));
        }
    }

    /// Accesses by one thread, cut where the part begins and ends; instructions in proportion.
    fn run(&mut self, tid: Tid, mut instructions: u64, mut accesses: &[Access], batch: &mut Batch) {
        loop {
            let most = match self.place {
                Place::AwaitsMark | Place::Within(None) => u64::MAX,
                Place::Skips(left) | Place::Within(Some(left)) => left,
                Place::Behind(_) => return,
            };
            let count = most.min(accesses.len() as u64);
            let (piece, rest) = accesses.split_at(count as usize);
            let its = match accesses.len() {
                0 => instructions,
                all => share(instructions, piece.len(), all),
            };
            match self.place {
                Place::Within(left) => {
                    batch.run(tid, its, |out| out.extend_from_slice(piece));
                    let left = left.map(|left| left - count);
                    self.place =
                        if left == Some(0) { Place::Behind(false) } else { Place::Within(left) };
                }
                _ => {
                    if self.before == Before::Touches {
                        let touched = &mut self.touched;
                        let first = piece.iter().filter(|access| touched.is_first(tid, access));
                        batch.run(tid, its, |out| out.extend(first));
                    }
                    if let Place::Skips(left) = self.place {
                        self.skip(left - count, batch);
                    }
                }
            }
            (accesses, instructions) = (rest, instructions - its);
            if accesses.is_empty() {
                return;
            }
        }
    }
}

impl<S: Source> Source for Excerpt<S> {
    /// What the source knows; the accesses are those of the part.
    fn info(&self) -> WorkloadInfo {
        let mut info = self.source.info();
        let left = |all: u64| all.saturating_sub(self.part.skip);
        let all = info.accesses.filter(|_| !self.part.marked).map(left);
        info.accesses = all.map(|all| self.part.limit.map_or(all, |limit| all.min(limit)));
        if info.accesses != self.source.info().accesses {
            info.held_bytes = 0;
        }
        info
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let mut read = std::mem::take(&mut self.read);
        let mut filled = match self.place {
            Place::Behind(false) => Ok(Fill::End),
            _ => self.source.fill(&mut read),
        };
        if !matches!(self.place, Place::Behind(_)) {
            for step in read.steps() {
                match step {
                    Step::Event(event) => self.event(event, batch),
                    Step::Run { tid, instructions, accesses } => {
                        self.run(tid, instructions, accesses, batch);
                    }
                }
                if matches!(self.place, Place::Behind(_)) {
                    // What fails behind the part is of no interest.
                    let ended = matches!(filled, Ok(Fill::End) | Err(_));
                    let goes_on = !ended && self.source.detach();
                    self.place = Place::Behind(goes_on);
                    filled = Ok(if goes_on { Fill::More } else { Fill::End });
                    break;
                }
            }
        }
        self.read = read;
        filled
    }

    fn detach(&mut self) -> bool {
        self.source.detach()
    }

    fn news(&mut self) -> Vec<String> {
        self.source.news()
    }
}

/// Pages remembered as touched, direct-mapped; one that is forgotten is given once more.
const PAGES: usize = 1 << 16;

/// Which pages were touched since an address space changed.
struct Touched {
    pages: Vec<Touch>,
    /// What is of an earlier one is forgotten.
    generation: u32,
}

#[derive(Clone, Copy, Default)]
struct Touch {
    page: u64,
    tid: Tid,
    generation: u32,
    stored: bool,
}

impl Default for Touched {
    fn default() -> Self {
        Self { pages: Vec::new(), generation: 1 }
    }
}

impl Touched {
    fn forget(&mut self) {
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.pages.fill(Touch::default());
            1
        });
    }

    /// Whether an access may do something to memory that none before did.
    fn is_first(&mut self, tid: Tid, access: &Access) -> bool {
        let page = access.addr().page().get();
        let last = access.addr().get().wrapping_add(u64::from(access.size()) - 1);
        if last >> strata_addr::PageSize::BASE_SHIFT != page {
            return true;
        }
        if self.pages.is_empty() {
            self.pages.resize(PAGES, Touch::default());
        }
        let generation = self.generation;
        let known = &mut self.pages[(page ^ u64::from(tid.0) << 10) as usize % PAGES];
        let stored = access.is_store();
        let same = (known.page, known.tid, known.generation) == (page, tid, generation);
        if same && (known.stored || !stored) {
            return false;
        }
        *known = Touch { page, tid, generation, stored };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generator;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use strata_addr::{Gva, Range};
    use strata_stream::Pid;

    /// A stream as one list: accesses by thread, events, and all instructions.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Thing {
        Access(Tid, Access),
        Event(Event),
    }

    fn all(source: &mut dyn Source) -> (Vec<Thing>, u64) {
        let (mut things, mut instructions) = (Vec::new(), 0);
        let mut batch = Batch::new();
        loop {
            let filled = source.fill(&mut batch).unwrap();
            for step in batch.steps() {
                match step {
                    Step::Event(event) => things.push(Thing::Event(*event)),
                    Step::Run { tid, instructions: count, accesses } => {
                        instructions += count;
                        things.extend(accesses.iter().map(|access| Thing::Access(tid, *access)));
                    }
                }
            }
            if filled == Fill::End {
                return (things, instructions);
            }
        }
    }

    /// Things in a row, three in a batch.
    struct Given(Vec<Thing>);

    impl Source for Given {
        fn info(&self) -> WorkloadInfo {
            WorkloadInfo::default()
        }

        fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
            batch.clear();
            for thing in self.0.drain(..self.0.len().min(3)) {
                match thing {
                    Thing::Access(tid, access) => batch.access(tid, access, 2),
                    Thing::Event(event) => batch.event(event),
                }
            }
            Ok(if self.0.is_empty() { Fill::End } else { Fill::More })
        }
    }

    fn things() -> impl Strategy<Value = Vec<Thing>> {
        let access = (0..2u32, 0..6u64, any::<bool>()).prop_map(|(tid, page, store)| {
            let at = Gva::new(page << 12 | 8);
            let access = if store { Access::store(at, 8) } else { Access::load(at, 8) };
            Thing::Access(Tid(tid), access)
        });
        let range = Range::sized(Gva::new(0), 4096);
        let thing = prop_oneof![
            20 => access,
            1 => Just(Thing::Event(Event::Unmap { pid: Pid(0), range })),
            1 => Just(Thing::Event(Event::Mark(Mark::Begin))),
            1 => Just(Thing::Event(Event::Mark(Mark::End))),
        ];
        prop::collection::vec(thing, 0..60)
    }

    /// The accesses of a part, found the slow way.
    fn wanted(things: &[Thing], part: Part) -> Vec<Thing> {
        let mark = |mark| move |thing: &Thing| *thing == Thing::Event(Event::Mark(mark));
        let mut rest = things;
        if part.marked {
            let Some(begin) = rest.iter().position(mark(Mark::Begin)) else { return vec![] };
            rest = &rest[begin..];
            rest = &rest[..rest.iter().position(mark(Mark::End)).unwrap_or(rest.len())];
        }
        let accesses = rest.iter().filter(|thing| matches!(thing, Thing::Access(..))).copied();
        let limit = part.limit.map_or(usize::MAX, |limit| limit as usize);
        accesses.skip(part.skip as usize).take(limit).collect()
    }

    proptest! {
        #[test]
        fn a_part_is_what_it_is_by_definition(
            things in things(), marked: bool, skip in 0..20u64, limit in prop::option::of(1..20u64),
        ) {
            let part = Part { marked, skip, limit };
            let (given, _) = all(&mut Excerpt::new(Given(things.clone()), part, Before::Nothing));
            let accesses: Vec<_> =
                given.iter().filter(|thing| matches!(thing, Thing::Access(..))).copied().collect();
            prop_assert_eq!(&accesses, &wanted(&things, part));
            // The same behind the mark when touches come before.
            let (given, _) = all(&mut Excerpt::new(Given(things.clone()), part, Before::Touches));
            let begin = given.iter().position(|thing| *thing == Thing::Event(Event::Mark(Mark::Begin)));
            let from = if part.begins_late() { begin.unwrap_or(given.len()) } else { 0 };
            let behind = given[from..].iter().filter(|thing| matches!(thing, Thing::Access(..)));
            prop_assert_eq!(behind.copied().collect::<Vec<_>>(), accesses);
            let marks = given.iter().filter(|thing| matches!(thing, Thing::Event(Event::Mark(_))));
            prop_assert!(marks.count() <= usize::from(part.begins_late()));
            // And what comes before touches what was touched, stores included.
            let touched = |things: &[Thing]| -> HashSet<(Tid, u64, bool)> {
                let pages = things.iter().filter_map(|thing| match thing {
                    Thing::Access(tid, access) => {
                        Some((*tid, access.addr().page().get(), access.is_store()))
                    }
                    Thing::Event(_) => None,
                });
                pages.collect()
            };
            let stored: HashSet<_> = touched(&given).into_iter().map(|(_, page, _)| page).collect();
            let before = things.iter().take_while(|thing| matches!(thing, Thing::Access(..)));
            let before: Vec<_> = before.take(skip as usize).copied().collect();
            prop_assert!(marked || touched(&before).iter().all(|(_, page, _)| stored.contains(page)));
        }
    }

    #[test]
    fn requests_are_those_of_the_part() {
        let spec = "random:size=64KiB,accesses=100,request=10";
        let requests = |part, before| {
            let source = Generator::parse(spec).unwrap();
            let (given, _) = all(&mut Excerpt::new(source, part, before));
            let marks = given.into_iter().filter_map(|thing| match thing {
                Thing::Event(Event::Request { mark, .. }) => Some(mark),
                _ => None,
            });
            let marks: Vec<_> = marks.collect();
            [Mark::Begin, Mark::End]
                .map(|mark| marks.iter().filter(|other| **other == mark).count())
        };
        for before in [Before::Touches, Before::Nothing] {
            assert_eq!(requests(Part::default(), before), [10, 10]);
            // The first is cut at its beginning, the last at its end.
            let part = Part { skip: 25, limit: Some(30), ..Part::default() };
            assert_eq!(requests(part, before), [3, 3]);
        }
    }

    #[test]
    fn what_is_skipped_is_touched_once_and_keeps_its_instructions() {
        let spec = "random:size=64KiB,accesses=10k";
        let source = || Generator::parse(spec).unwrap();
        let (whole, instructions) = all(&mut source());
        let accesses = |things: &[Thing]| {
            things.iter().filter(|thing| matches!(thing, Thing::Access(..))).count()
        };
        let part = Part { skip: 8_000, ..Part::default() };
        let mut excerpt = Excerpt::new(source(), part, Before::Touches);
        let (given, kept) = all(&mut excerpt);
        assert_eq!(accesses(&whole), 10_000);
        // 16 pages: each is loaded and stored once at most.
        assert!((2_016..=2_032).contains(&accesses(&given)), "{}", accesses(&given));
        assert_eq!(kept, instructions);
        assert_eq!(excerpt.info().accesses, Some(2_000));
    }

    #[test]
    fn after_an_event_pages_are_touched_again() {
        let mut touched = Touched::default();
        let load = Access::load(Gva::new(0x1000), 8);
        assert!(touched.is_first(Tid(0), &load) && !touched.is_first(Tid(0), &load));
        assert!(touched.is_first(Tid(0), &Access::store(Gva::new(0x1008), 8)));
        assert!(!touched.is_first(Tid(0), &load));
        touched.forget();
        assert!(touched.is_first(Tid(0), &load));
        assert!(touched.is_first(Tid(0), &Access::load(Gva::new(0x1ffc), 8)), "two pages");
        touched.generation = u32::MAX;
        touched.forget();
        assert!(touched.is_first(Tid(0), &load));
    }

    /// A program that can be let go.
    struct Program(Generator, bool);

    impl Source for Program {
        fn info(&self) -> WorkloadInfo {
            self.0.info()
        }

        fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
            if self.1 {
                batch.clear();
                return Ok(Fill::End);
            }
            self.0.fill(batch)
        }

        fn detach(&mut self) -> bool {
            self.1 = true;
            true
        }
    }

    #[test]
    fn a_program_is_let_go_at_the_limit_and_waited_for() {
        let generator = Generator::parse("random:size=64KiB,accesses=100k").unwrap();
        let part = Part { limit: Some(100), ..Part::default() };
        let mut excerpt = Excerpt::new(Program(generator, false), part, Before::Nothing);
        let mut batch = Batch::new();
        assert_eq!(excerpt.fill(&mut batch).unwrap(), Fill::More);
        assert_eq!(batch.len(), 100);
        assert!(excerpt.source.1);
        assert_eq!(excerpt.fill(&mut batch).unwrap(), Fill::End);
        assert!(batch.is_empty());
    }
}

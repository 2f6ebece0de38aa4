//! What a table says of a range: a sequence of mapped pages and of holes.

use crate::radix::decode_leaf;
use crate::{Format, FrameSource, Mapping, Radix, TableId, index};
use strata_addr::{Addr, Frame, PageSize, Range, space::Space};

/// A piece of an address range that a table says one thing of.
#[derive(Debug)]
pub enum Span<U: Space, L: Space> {
    /// One page is mapped, of whatever size. It may reach beyond the range that was asked for.
    Mapped(Frame<U>, Mapping<L>),
    /// Nothing is mapped in these addresses, which are within the range that was asked for.
    Absent(Range<U>),
}

/// The spans of a range, in address order and without gaps.
///
/// ```
/// use strata_addr::{Addr, Frame, PageSize, Range, space::Lower, space::Upper};
/// use strata_paging::{FrameSource, Radix, Rights, Span, X86};
/// # struct Upwards(u64);
/// # impl FrameSource<Lower> for Upwards {
/// #     fn table_frame(&mut self) -> Option<Frame<Lower>> {
/// #         self.0 += 1;
/// #         Some(Frame::new(self.0))
/// #     }
/// #     fn free_table_frame(&mut self, _: Frame<Lower>) {}
/// # }
/// # let mut frames = Upwards(0);
/// let mut table = Radix::<X86, Upper, Lower>::new(4, frames.table_frame().unwrap());
/// for page in [1, 2, 7] {
///     let (page, frame) = (Frame::new(page), Frame::new(40 + page));
///     table.map(page, PageSize::Base, frame, Rights::ALL, &mut frames)?;
/// }
/// let range = Range::new(Addr::new(0x2000), Addr::new(0x8000));
/// let mut spans = table.spans(range);
/// assert!(matches!(spans.next(), Some(Span::Mapped(page, _)) if page == Frame::new(2)));
/// let Some(Span::Absent(hole)) = spans.next() else { panic!("nothing is mapped from page 3") };
/// assert_eq!(hole, Range::new(Addr::new(0x3000), Addr::new(0x7000)));
/// assert!(matches!(spans.next(), Some(Span::Mapped(page, _)) if page == Frame::new(7)));
/// assert!(spans.next().is_none());
/// # Ok::<(), strata_paging::NoFrame>(())
/// ```
///
/// Goes from entry to entry, and back up only where a table page ends: all of a table costs one look
/// at each entry.
pub struct Spans<'r, F, U, L> {
    radix: &'r Radix<F, U, L>,
    /// The table pages on the way to `at`, by level - 1; those of levels below `level` are of no
    /// meaning.
    way: [TableId; 5],
    level: u8,
    at: u64,
    end: u64,
}

impl<F: Format, U: Space, L: Space> Spans<'_, F, U, L> {
    /// Goes down to the entry where a walk to `at` ends.
    #[inline]
    fn descend(&mut self) -> u64 {
        loop {
            let table = self.way[usize::from(self.level) - 1];
            let slot = index(self.at, self.level);
            let bits = self.radix.entry(table, slot);
            if !F::is_present(bits) || F::is_leaf(bits, self.level) {
                return bits;
            }
            self.level -= 1;
            self.way[usize::from(self.level) - 1] = self.radix.child(table, slot);
        }
    }

    /// Goes past the entry at `at`, up again if it is the last of its table.
    #[inline]
    fn advance(&mut self) {
        let shift = PageSize::BASE_SHIFT + 9 * (u32::from(self.level) - 1);
        self.at = ((self.at >> shift) + 1) << shift;
        while index(self.at, self.level) == 0 && self.level < self.radix.levels() {
            self.level += 1;
        }
    }
}

impl<F: Format, U: Space, L: Space> Iterator for Spans<'_, F, U, L> {
    type Item = Span<U, L>;

    fn next(&mut self) -> Option<Span<U, L>> {
        let start = self.at;
        while self.at < self.end {
            let bits = self.descend();
            if F::is_present(bits) {
                if self.at > start {
                    break;
                }
                let size = PageSize::at_level(self.level).expect("leaves are at levels 1 to 3");
                let page = Addr::new(self.at).floor(size).page();
                let mapping = decode_leaf::<F, L>(bits, self.level);
                self.advance();
                return Some(Span::Mapped(page, mapping));
            }
            self.advance();
        }
        let end = self.at.min(self.end);
        (end > start).then(|| Span::Absent(Range::new(Addr::new(start), Addr::new(end))))
    }
}

impl<F: Format, U: Space, L: Space> Radix<F, U, L> {
    /// What is mapped in a range, page by page, and what is not. Addresses beyond
    /// [`Radix::everything`] are neither.
    pub fn spans(&self, range: Range<U>) -> Spans<'_, F, U, L> {
        let end = range.end.min(self.everything().end).get();
        let (at, level) = (range.start.get(), self.levels());
        Spans { radix: self, way: [TableId::ROOT; 5], level, at, end }
    }

    /// Every mapped page that overlaps a range, in address order.
    pub fn mapped(&self, range: Range<U>) -> impl Iterator<Item = (Frame<U>, Mapping<L>)> {
        self.spans(range).filter_map(|span| match span {
            Span::Mapped(page, mapping) => Some((page, mapping)),
            Span::Absent(_) => None,
        })
    }

    /// The first mapped page that overlaps a range.
    pub fn first_mapped(&self, range: Range<U>) -> Option<(Frame<U>, Mapping<L>)> {
        self.mapped(range).next()
    }

    /// The first addresses of a range that nothing is mapped at, if there are any.
    pub fn first_hole(&self, range: Range<U>) -> Option<Range<U>> {
        // Most faults ask of one page, for which one walk is enough.
        let is_page = range.bytes() == PageSize::Base.bytes()
            && range.start.get().is_multiple_of(PageSize::Base.bytes())
            && range.end.get() <= self.everything().end.get();
        if is_page {
            return self.mapping(range.start).is_none().then_some(range);
        }
        self.spans(range).find_map(|span| match span {
            Span::Mapped(..) => None,
            Span::Absent(hole) => Some(hole),
        })
    }

    /// Unmaps every page that overlaps a range, and frees the table pages that are empty then.
    /// Returns the number of pages unmapped.
    pub fn unmap_range(&mut self, range: Range<U>, frames: &mut impl FrameSource<L>) -> u64 {
        let mut rest = range;
        let mut unmapped = 0;
        while let Some((page, mapping)) = self.first_mapped(rest) {
            self.unmap(page.addr(), frames);
            unmapped += 1;
            rest.start = (page + mapping.size.base_pages()).addr();
        }
        unmapped
    }
}

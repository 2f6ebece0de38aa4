//! Pages of a trace buffer, as `trace_pipe_raw` gives them (Linux, kernel/trace/ring_buffer.c and
//! include/linux/ring_buffer.h): a time, the bytes in use, and records with times as differences.

/// Bits of the word that says how many bytes are in use.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;
const BYTES: u64 = (1 << 27) - 1;

/// Kinds of records that are no events of a small length.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// An absolute time has 59 bits; the others are those of the time before.
const TIME_BITS: u32 = 59;

/// An event in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in nanoseconds of the trace's clock.
    pub time: u64,
    /// The event, its number first.
    pub event: &'a [u8],
}

/// A page of a trace buffer.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    data: &'a [u8],
    time: u64,
    /// Events that were overwritten before this page, as far as the kernel tells: at least one where it
    /// only says that there were some.
    pub missed: u64,
}

impl<'a> Page<'a> {
    /// Bytes before the records.
    pub const HEADER: usize = 16;

    /// A page as it was read; `None` if it is shorter than its header says. Little-endian, with words of
    /// 64 bits, as on x86-64.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(word))
        };
        let (time, commit) = (word(0)?, word(8)?);
        let used = Self::HEADER + (commit & BYTES) as usize;
        let data = bytes.get(Self::HEADER..used)?;
        let missed = match (commit & MISSED, commit & MISSED_STORED) {
            (0, _) => 0,
            (_, 0) => 1,
            _ => word(used)?,
        };
        Some(Self { data, time, missed })
    }
}

impl<'a> Iterator for Page<'a> {
    type Item = Record<'a>;

    /// The next event; none any more where the page ends or makes no sense.
    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let head = number(self.data)?;
            let (kind, delta) = (head & 31, u64::from(head >> 5));
            let rest = self.data.get(4..)?;
            match kind {
                PADDING if delta == 0 => return None,
                PADDING => self.data = rest.get(number(rest)? as usize..)?,
                TIME_EXTEND => {
                    self.time += delta + (u64::from(number(rest)?) << 27);
                    self.data = rest.get(4..)?;
                }
                TIME_STAMP => {
                    let time = delta + (u64::from(number(rest)?) << 27);
                    self.time = time | (self.time >> TIME_BITS << TIME_BITS);
                    self.data = rest.get(4..)?;
                }
                _ => {
                    // A length of its own counts itself.
                    let (start, end) = match kind {
                        0 => (4, number(rest)? as usize),
                        words => (0, 4 * words as usize),
                    };
                    let event = rest.get(start..end)?;
                    self.time += delta;
                    self.data = rest.get(end.next_multiple_of(4)..)?;
                    return Some(Record { time: self.time, event });
                }
            }
        }
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A page with these events, in the order of their times, as the kernel writes it.
    pub fn page(start: u64, events: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let (mut data, mut time) = (Vec::new(), start);
        for (at, event) in events {
            let mut delta = at - time;
            if delta >= 1 << 27 {
                let low = (delta & ((1 << 27) - 1)) as u32;
                data.extend((low << 5 | TIME_EXTEND).to_le_bytes());
                data.extend(((delta >> 27) as u32).to_le_bytes());
                delta = 0;
            }
            let length = event.len().next_multiple_of(4);
            let kind = if length <= 112 && length > 0 { length as u32 / 4 } else { 0 };
            data.extend(((delta as u32) << 5 | kind).to_le_bytes());
            if kind == 0 {
                data.extend((length as u32 + 4).to_le_bytes());
            }
            data.extend(event);
            data.resize(data.len().next_multiple_of(4), 0);
            time = *at;
        }
        let mut page = start.to_le_bytes().to_vec();
        page.extend((data.len() as u64).to_le_bytes());
        page.extend(data);
        page
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            start in 0u64..1 << 58,
            events in prop::collection::vec((0u64..1 << 40, prop::collection::vec(any::<u8>(), 1..40)), 0..40),
            lengthy in any::<bool>(),
        ) {
            let mut time = start;
            let events: Vec<_> = events.into_iter().map(|(delta, mut event)| {
                time += delta;
                // The kernel pads events to whole words.
                event.resize(event.len().next_multiple_of(4) * if lengthy { 30 } else { 1 }, 7);
                (time, event)
            }).collect();
            let bytes = page(start, &events);
            let read = Page::parse(&bytes).unwrap();
            prop_assert_eq!(read.missed, 0);
            let read: Vec<_> = read.map(|record| (record.time, record.event.to_vec())).collect();
            prop_assert_eq!(read, events);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(page) = Page::parse(&bytes) {
                prop_assert!(page.count() <= bytes.len());
            }
        }
    }

    #[test]
    fn what_was_overwritten_is_told() {
        let mut bytes = page(5, &[(6, vec![1; 8])]);
        let used = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        bytes[8..16].copy_from_slice(&(used | MISSED).to_le_bytes());
        assert_eq!(Page::parse(&bytes).unwrap().missed, 1);
        bytes[8..16].copy_from_slice(&(used | MISSED | MISSED_STORED).to_le_bytes());
        assert!(Page::parse(&bytes).is_none(), "the number is missing");
        bytes.extend(77u64.to_le_bytes());
        let read = Page::parse(&bytes).unwrap();
        assert_eq!((read.missed, read.count()), (77, 1));
    }

    #[test]
    fn discarded_events_and_absolute_times_are_read_over() {
        let mut data = (1u32 << 5 | PADDING).to_le_bytes().to_vec();
        data.extend(12u32.to_le_bytes());
        data.extend([0; 8]);
        data.extend((9u32 << 5 | TIME_STAMP).to_le_bytes());
        data.extend(1u32.to_le_bytes());
        data.extend((2u32 << 5 | 1).to_le_bytes());
        data.extend([1, 2, 3, 4]);
        data.extend(PADDING.to_le_bytes());
        data.extend([0xff; 8]);
        let mut bytes = (1u64 << TIME_BITS).to_le_bytes().to_vec();
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(data);
        let read: Vec<_> = Page::parse(&bytes).unwrap().collect();
        let time = (1 << TIME_BITS) + (1 << 27) + 9 + 2;
        assert_eq!(read, [Record { time, event: &[1, 2, 3, 4] }]);
    }
}

//! Numbers: what was sent and not heard of yet, and what is expected.

use crate::frame::Frame;
use std::collections::VecDeque;

/// Frames that may be under way: what a receiver must have room for, and the slots of a disk.
pub const WINDOW: u32 = 8;

/// The sending side.
#[derive(Debug, Default)]
pub struct Sender {
    next: u32,
    /// Sent and not heard of, in order.
    unheard: VecDeque<Frame>,
}

impl From<u32> for Sender {
    /// One whose next frame has this number.
    fn from(next: u32) -> Self {
        Self { next, unheard: VecDeque::new() }
    }
}

impl Sender {
    /// Whether another frame may be sent.
    pub fn has_room(&self) -> bool {
        self.unheard.len() < WINDOW as usize
    }

    /// The number of the frame that is sent next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Notes a frame of the number [`Self::next`] as sent.
    pub fn sent(&mut self, frame: Frame) {
        debug_assert!(self.has_room());
        self.unheard.push_back(frame);
        self.next = self.next.wrapping_add(1);
    }

    /// The other side has all before `next`. Returns whether that is news.
    pub fn heard(&mut self, next: u32) -> bool {
        let first = self.next.wrapping_sub(self.unheard.len() as u32);
        let news = next.wrapping_sub(first);
        if news == 0 || news as usize > self.unheard.len() {
            return false;
        }
        self.unheard.drain(..news as usize);
        true
    }

    /// What is to be sent again when nothing is heard.
    pub fn unheard(&self) -> impl Iterator<Item = &Frame> {
        self.unheard.iter()
    }
}

/// The receiving side.
#[derive(Debug, Default)]
pub struct Receiver {
    next: u32,
}

impl From<u32> for Receiver {
    /// One that expects this number.
    fn from(next: u32) -> Self {
        Self { next }
    }
}

impl Receiver {
    /// Whether a frame of this number is the one that is expected; it then counts as received.
    pub fn accept(&mut self, number: u32) -> bool {
        let expected = number == self.next;
        if expected {
            self.next = self.next.wrapping_add(1);
        }
        expected
    }

    /// What to tell the other side.
    pub fn next(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over a line that loses and repeats frames in both directions, all bytes arrive, in order
        /// and once, and no more than a window is ever under way.
        #[test]
        fn everything_arrives_once_and_in_order(
            count in 1u32..60,
            fates in prop::collection::vec(0u8..4, 400),
        ) {
            let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
            // Numbers go round at their end.
            let first = u32::MAX - 20;
            (sender.next, receiver.next) = (first, first);
            let mut fates = fates.into_iter().chain(std::iter::repeat(1));
            let (mut given, mut got) = (0u32, Vec::new());
            for _round in 0..2000 {
                let mut line: Vec<Frame> = sender.unheard().cloned().collect();
                while sender.has_room() && given < count {
                    let frame = Frame::Stored { number: sender.next(), length: given, sum: 0 };
                    sender.sent(frame.clone());
                    line.push(frame);
                    given += 1;
                }
                prop_assert!(sender.unheard().count() <= WINDOW as usize);
                for frame in line {
                    // Lost, once, twice, or once with the answer lost.
                    let fate = fates.next().unwrap();
                    for _ in 0..[0, 1, 2, 1][usize::from(fate)] {
                        let Frame::Stored { number, length, .. } = frame else { unreachable!() };
                        if receiver.accept(number) {
                            got.push(length);
                        }
                    }
                    if fate != 3 {
                        sender.heard(receiver.next());
                    }
                }
                if given == count && sender.unheard().count() == 0 {
                    break;
                }
            }
            prop_assert_eq!(got, (0..count).collect::<Vec<_>>());
        }

        /// Whatever a number says that nobody can have meant, nothing is forgotten for it.
        #[test]
        fn only_what_was_sent_can_be_heard_of(sent in 0u32..=WINDOW, next: u32) {
            let mut sender = Sender::default();
            for _ in 0..sent {
                sender.sent(Frame::Heard { next: 0 });
            }
            let news = sender.heard(next);
            prop_assert_eq!(news, (1..=sent).contains(&next));
            let left = if news { sent - next } else { sent };
            prop_assert_eq!(sender.unheard().count() as u32, left);
        }
    }
}

//! System calls that change the address space, as messages (man pages mmap(2), mremap(2), brk(2),
//! madvise(2), mprotect(2), shmop(2)).
//!
//! What takes memory away is told before the call, what gives memory after it: so another thread's
//! mapping of the same addresses can only be told in between.

use std::collections::HashMap;
use strata_addr::{Gva, Range, space::Virtual};
use strata_stream::{Advice, Backing, Event, Mark, Pid, Protection};
use strata_wire::Message;

const PAGE: u64 = 4096;
/// The kernel's largest error number; results above its negative are errors.
const MAX_ERRNO: i64 = 4095;

/// A system call about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number on x86-64.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
}

/// What must be remembered of an address space to tell of the next call.
#[derive(Debug, Default)]
pub struct Space {
    /// The program break, once seen.
    heap_end: Option<u64>,
    /// Lengths of attached System V segments.
    attached: HashMap<u64, u64>,
}

/// Whether a result is an error.
pub fn failed(result: i64) -> bool {
    (-MAX_ERRNO..0).contains(&result)
}

/// Whether this call may change an address space.
pub fn changes_space(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mremap
            | libc::SYS_brk
            | libc::SYS_mprotect
            | libc::SYS_pkey_mprotect
            | libc::SYS_madvise
            | libc::SYS_shmat
            | libc::SYS_shmdt
    )
}

/// The option of `prctl` that is a mark, "STRA": every kernel refuses it, so that it does nothing
/// outside of a capture. With 1 it is [`Mark::Begin`], with 2 [`Mark::End`]
/// (`docs/examples/strata.h`).
const MARK: u64 = 0x5354_5241;

/// Most bytes that one `mmap` may ask for without a word about it: QEMU before 8.0 notes something of
/// every page (24 bytes each, some seconds for a TiB), touched or not.
const NOTABLE_MAPPING: u64 = 64 << 30;

/// What a call says that is no change of an address space: a mark, or something that will not go as it
/// would without the emulator.
pub fn remark(call: &Call) -> Option<Message> {
    let [a, b, ..] = call.args;
    let note = |text: &str| Some(Message::Note(text.to_owned()));
    match call.number {
        libc::SYS_prctl if a == MARK => match b {
            1 => Some(Message::Event(Event::Mark(Mark::Begin))),
            2 => Some(Message::Event(Event::Mark(Mark::End))),
            _ => None,
        },
        libc::SYS_ptrace => note("the program used ptrace, which the emulator refuses"),
        libc::SYS_seccomp => note(SECCOMP),
        libc::SYS_prctl if a == libc::PR_SET_SECCOMP as u64 => note(SECCOMP),
        libc::SYS_mmap if b >= NOTABLE_MAPPING => Some(Message::Warning(format!(
            "the program reserves {} GiB of addresses at once: with QEMU before 8.0 that costs 6 GiB of \
             memory and some seconds per TiB; let it reserve less",
            b >> 30
        ))),
        _ => None,
    }
}

const SECCOMP: &str = "the program asked for seccomp, which the emulator refuses";

/// Whether this call neither waits nor wakes nor has an effect another thread could see, so that
/// the order of accesses around it is of no interest.
pub fn is_private(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_clock_gettime
            | libc::SYS_gettimeofday
            | libc::SYS_time
            | libc::SYS_getpid
            | libc::SYS_gettid
            | libc::SYS_getppid
            | libc::SYS_getuid
            | libc::SYS_geteuid
            | libc::SYS_getcpu
            | libc::SYS_rt_sigprocmask
            | libc::SYS_rt_sigaction
            | libc::SYS_sigaltstack
            | libc::SYS_fstat
            | libc::SYS_newfstatat
            | libc::SYS_lseek
            | libc::SYS_getrusage
            | libc::SYS_times
    )
}

fn pages(start: u64, bytes: u64) -> Option<Range<Virtual>> {
    let end = start.checked_add(bytes)?.checked_add(PAGE - 1)? & !(PAGE - 1);
    (start.is_multiple_of(PAGE) && start < end).then(|| Range::new(Gva::new(start), Gva::new(end)))
}

/// The whole of a program's memory.
pub const EVERYWHERE: Range<Virtual> = Range { start: Gva::new(0), end: Gva::new(1 << 47) };

/// What a call may hide from page tables: pages in these ranges may be gone or elsewhere after it, or somebody
/// else's too, or what was done to them before looks like what is done after.
pub fn hides(call: &Call, space: &Space) -> Vec<Range<Virtual>> {
    let [a, b, c, d, e, _] = call.args;
    let set = |bits: u64, flags: i32| bits & flags as u64 != 0;
    let hidden = match call.number {
        libc::SYS_munmap => pages(a, b),
        // What was read before it and is stored to after it faults twice.
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => pages(a, b),
        libc::SYS_mremap => {
            let to = if set(d, libc::MREMAP_FIXED) { pages(e, c) } else { None };
            return pages(a, b).into_iter().chain(to).collect();
        }
        libc::SYS_mmap if set(d, libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) => pages(a, b),
        libc::SYS_madvise if matches!(advice(c as i32), Some(Advice::DontNeed | Advice::Free)) => {
            pages(a, b)
        }
        // A heap that shrinks; what is not known is asked for, or refused.
        libc::SYS_brk => {
            let start = a.next_multiple_of(PAGE);
            space.heap_end.filter(|_| a != 0).and_then(|end| pages(start, end.checked_sub(start)?))
        }
        libc::SYS_shmdt => space.attached.get(&a).and_then(|bytes| pages(a, *bytes)),
        libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_fork
        | libc::SYS_vfork
        | libc::SYS_clone => Some(EVERYWHERE),
        _ => None,
    };
    hidden.into_iter().collect()
}

/// Memory that the program is about to let the kernel have when it likes.
pub fn freed(call: &Call) -> Option<Range<Virtual>> {
    let [a, b, c, ..] = call.args;
    let frees = call.number == libc::SYS_madvise && advice(c as i32) == Some(Advice::Free);
    if frees { pages(a, b) } else { None }
}

/// Memory that the emulator has just given to a growing heap. It fills it with zeroes itself where the heap
/// has been as large before (QEMU 7.2, `do_brk` in `linux-user/syscall.c`), so that page tables would show
/// as touched what the program has not touched.
pub fn grown(call: &Call, result: i64, space: &Space) -> Option<Range<Virtual>> {
    if call.number != libc::SYS_brk {
        return None;
    }
    let start = space.heap_end?.next_multiple_of(PAGE);
    pages(start, (result as u64).checked_sub(start)?)
}

/// What must be told before the call is made; only calls that will succeed.
pub fn before(call: &Call, pid: Pid, space: &mut Space) -> Option<Message> {
    let [a, b, ..] = call.args;
    let range = match call.number {
        libc::SYS_munmap => pages(a, b)?,
        libc::SYS_shmdt => pages(a, space.attached.remove(&a)?)?,
        _ => return None,
    };
    Some(Message::Event(Event::Unmap { pid, range }))
}

/// What must be told after the call returned. `segment` gives the length of a System V segment.
pub fn after(
    call: &Call,
    result: i64,
    pid: Pid,
    space: &mut Space,
    segment: impl Fn(u64) -> Option<u64>,
) -> Vec<Message> {
    if failed(result) {
        return vec![];
    }
    let [a, b, c, ..] = call.args;
    let at = result as u64;
    match call.number {
        libc::SYS_mmap => mapped(call, at, pid),
        libc::SYS_mremap => remapped(call, at, pid),
        libc::SYS_brk => space.moved_break(at, pid).into_iter().collect(),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            let protection = Protection::from_bits(c as u32);
            event(pages(a, b), |range| Event::Protect { pid, range, protection })
        }
        libc::SYS_madvise => match advice(c as i32) {
            Some(advice) => event(pages(a, b), |range| Event::Advise { pid, range, advice }),
            None => vec![],
        },
        libc::SYS_shmat => {
            let Some(length) = segment(a) else { return vec![] };
            space.attached.insert(at, length);
            let protection = Protection {
                read: true,
                write: c & libc::SHM_RDONLY as u64 == 0,
                execute: c & libc::SHM_EXEC as u64 != 0,
            };
            let backing = Backing::SharedAnonymous;
            let fixed = b != 0;
            event(pages(at, length), |range| Event::Map { pid, range, backing, protection, fixed })
        }
        _ => vec![],
    }
}

fn event(range: Option<Range<Virtual>>, make: impl Fn(Range<Virtual>) -> Event) -> Vec<Message> {
    range.map(|range| Message::Event(make(range))).into_iter().collect()
}

fn mapped(call: &Call, at: u64, pid: Pid) -> Vec<Message> {
    let [_, length, rights, flags, ..] = call.args;
    let flags = flags as i32;
    let has = |flag| flags & flag != 0;
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    // Thread stacks (MAP_STACK) are anonymous memory to the kernel too.
    let backing = match (has(libc::MAP_ANONYMOUS), shared) {
        (true, false) => Backing::Anonymous,
        (true, true) => Backing::SharedAnonymous,
        (false, _) => Backing::File,
    };
    let protection = Protection::from_bits(rights as u32);
    let fixed = has(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let range = pages(at, length);
    let mut told = event(range, |range| Event::Map { pid, range, backing, protection, fixed });
    if has(libc::MAP_POPULATE) {
        let advice = Advice::Populate;
        told.extend(event(range, |range| Event::Advise { pid, range, advice }));
    }
    told
}

fn remapped(call: &Call, at: u64, pid: Pid) -> Vec<Message> {
    let [old, old_bytes, new_bytes, flags, ..] = call.args;
    let (from, Some(to)) = (pages(old, old_bytes), pages(at, new_bytes)) else { return vec![] };
    let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
    let Some(from) = from else {
        // Length 0: a second mapping of the same shared pages.
        let (backing, protection) = (Backing::SharedAnonymous, Protection::READ_WRITE);
        return vec![Message::Event(Event::Map { pid, range: to, backing, protection, fixed })];
    };
    if to.start == from.start {
        return match to.end.cmp(&from.end) {
            std::cmp::Ordering::Greater => {
                vec![Message::Grow { pid, range: Range::new(from.end, to.end) }]
            }
            std::cmp::Ordering::Less => {
                let range = Range::new(to.end, from.end);
                vec![Message::Event(Event::Unmap { pid, range })]
            }
            std::cmp::Ordering::Equal => vec![],
        };
    }
    let mut told = vec![Message::Event(Event::Remap { pid, from, to })];
    if flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
        // The old place stays mapped, empty; the kernel allows it for anonymous memory.
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        told.push(Message::Event(Event::Map {
            pid,
            range: from,
            backing,
            protection,
            fixed: true,
        }));
    }
    told
}

impl Space {
    fn moved_break(&mut self, now: u64, pid: Pid) -> Option<Message> {
        let ceil = |address: u64| Gva::new((address + (PAGE - 1)) & !(PAGE - 1));
        // The C library asks where the break is before it moves it; a program that does not
        // shows its heap only from its second move on.
        let before = self.heap_end.replace(now)?;
        let (old, new) = (ceil(before), ceil(now));
        let (backing, protection) = (Backing::Heap, Protection::READ_WRITE);
        Some(Message::Event(match new.cmp(&old) {
            std::cmp::Ordering::Greater => {
                let range = Range::new(old, new);
                Event::Map { pid, range, backing, protection, fixed: false }
            }
            std::cmp::Ordering::Less => Event::Unmap { pid, range: Range::new(new, old) },
            std::cmp::Ordering::Equal => return None,
        }))
    }
}

fn advice(code: i32) -> Option<Advice> {
    Some(match code {
        libc::MADV_DONTNEED | libc::MADV_REMOVE => Advice::DontNeed,
        libc::MADV_FREE => Advice::Free,
        libc::MADV_HUGEPAGE => Advice::HugePage,
        libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Advice::Populate,
        libc::MADV_COLLAPSE => Advice::Collapse,
        _ => return None,
    })
}

/// Whether it matters what sibling threads did just before a message: it takes memory away that they
/// may have used, or marks a moment.
pub fn divides_siblings(message: &Message) -> bool {
    matches!(
        message,
        Message::Event(
            Event::Unmap { .. }
                | Event::Remap { .. }
                | Event::Map { fixed: true, .. }
                | Event::Advise { advice: Advice::DontNeed | Advice::Free, .. }
                | Event::Fork { .. }
                | Event::Mark(_)
                | Event::Sampling(_)
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid(7);
    const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    fn told(space: &mut Space, number: i64, args: [u64; 6], result: i64) -> Vec<Message> {
        let call = Call { number, args };
        let mut all: Vec<_> = before(&call, PID, space).into_iter().collect();
        all.extend(after(&call, result, PID, space, |_| Some(0x3000)));
        all
    }

    fn range(start: u64, end: u64) -> Range<Virtual> {
        Range::new(Gva::new(start), Gva::new(end))
    }

    fn map(start: u64, end: u64, backing: Backing, fixed: bool) -> Message {
        let protection = Protection::READ_WRITE;
        Message::Event(Event::Map {
            pid: PID,
            range: range(start, end),
            backing,
            protection,
            fixed,
        })
    }

    #[test]
    fn mmap_tells_what_the_mapping_holds() {
        let mmap = |flags: i32| {
            told(&mut Space::default(), libc::SYS_mmap, [0, 0x1001, 3, flags as u64, 0, 0], 0x8000)
        };
        assert_eq!(mmap(ANONYMOUS), [map(0x8000, 0xa000, Backing::Anonymous, false)]);
        assert_eq!(mmap(ANONYMOUS | libc::MAP_STACK), mmap(ANONYMOUS));
        assert_eq!(
            mmap(libc::MAP_SHARED | libc::MAP_ANONYMOUS),
            [map(0x8000, 0xa000, Backing::SharedAnonymous, false)]
        );
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE] {
            assert_eq!(mmap(flags), [map(0x8000, 0xa000, Backing::File, false)]);
        }
        for flag in [libc::MAP_FIXED, libc::MAP_FIXED_NOREPLACE] {
            assert_eq!(mmap(ANONYMOUS | flag), [map(0x8000, 0xa000, Backing::Anonymous, true)]);
        }
        let range = range(0x8000, 0xa000);
        assert_eq!(
            mmap(ANONYMOUS | libc::MAP_POPULATE)[1..],
            [Message::Event(Event::Advise { pid: PID, range, advice: Advice::Populate })]
        );
    }

    #[test]
    fn whatever_a_call_takes_away_is_looked_at_before() {
        let mut space = Space::default();
        told(&mut space, libc::SYS_brk, [0; 6], 0x8800);
        told(&mut space, libc::SYS_brk, [0xc000, 0, 0, 0, 0, 0], 0xc000);
        told(&mut space, libc::SYS_shmat, [1, 0, 0, 0, 0, 0], 0x2_0000);
        let hidden = |number, args| hides(&Call { number, args }, &space);
        let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let (from, to) = (range(0x8000, 0xa000), range(0x3_0000, 0x3_1000));
        assert_eq!(hidden(libc::SYS_mremap, [0x8000, 0x2000, 0x1000, 1, 0x3_0000, 0]), [from]);
        assert_eq!(
            hidden(libc::SYS_mremap, [0x8000, 0x2000, 0x1000, fixed, 0x3_0000, 0]),
            [from, to]
        );
        assert_eq!(hidden(libc::SYS_munmap, [0x8000, 0x2000, 0, 0, 0, 0]), [from]);
        assert_eq!(hidden(libc::SYS_mprotect, [0x8000, 0x2000, 3, 0, 0, 0]), [from]);
        assert_eq!(hidden(libc::SYS_brk, [0x9800, 0, 0, 0, 0, 0]), [range(0xa000, 0xc000)]);
        assert_eq!(hidden(libc::SYS_brk, [0xd000, 0, 0, 0, 0, 0]), []);
        assert_eq!(hidden(libc::SYS_brk, [0; 6]), [], "a question");
        assert_eq!(hidden(libc::SYS_shmdt, [0x2_0000, 0, 0, 0, 0, 0]), [range(0x2_0000, 0x2_3000)]);
        assert_eq!(hidden(libc::SYS_fork, [0; 6]), [EVERYWHERE]);
        let grown = |asked: u64, now| {
            grown(&Call { number: libc::SYS_brk, args: [asked, 0, 0, 0, 0, 0] }, now, &space)
        };
        assert_eq!(grown(0xd000, 0xd000), Some(range(0xc000, 0xd000)));
        assert_eq!(grown(0x9000, 0x9000), None);
    }

    #[test]
    fn failed_calls_tell_nothing() {
        for number in [libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise] {
            let args = [0x8000, 0x1000, 3, ANONYMOUS as u64, 0, 0];
            assert_eq!(told(&mut Space::default(), number, args, -12), []);
        }
        // An unaligned munmap fails, so nothing may be told before it.
        let args = [0x8001, 0x1000, 0, 0, 0, 0];
        assert_eq!(told(&mut Space::default(), libc::SYS_munmap, args, -22), []);
    }

    #[test]
    fn mremap_grows_shrinks_and_moves() {
        let mremap = |old: u64, new: u64, flags: i32, result| {
            let args = [0x8000, old, new, flags as u64, 0, 0];
            told(&mut Space::default(), libc::SYS_mremap, args, result)
        };
        let grown = Message::Grow { pid: PID, range: range(0xa000, 0xc000) };
        assert_eq!(mremap(0x2000, 0x4000, libc::MREMAP_MAYMOVE, 0x8000), [grown]);
        let cut = Message::Event(Event::Unmap { pid: PID, range: range(0x9000, 0xa000) });
        assert_eq!(mremap(0x2000, 0x1000, 0, 0x8000), [cut]);
        assert_eq!(mremap(0x2000, 0x1800, 0, 0x8000), []);
        let (from, to) = (range(0x8000, 0xa000), range(0x2_0000, 0x2_4000));
        let moved = Message::Event(Event::Remap { pid: PID, from, to });
        assert_eq!(
            mremap(0x2000, 0x4000, libc::MREMAP_MAYMOVE, 0x2_0000),
            std::slice::from_ref(&moved)
        );
        let kept = map(0x8000, 0xa000, Backing::Anonymous, true);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        assert_eq!(mremap(0x2000, 0x4000, flags, 0x2_0000), [moved, kept]);
        let copy = map(0x2_0000, 0x2_1000, Backing::SharedAnonymous, false);
        assert_eq!(mremap(0, 0x1000, libc::MREMAP_MAYMOVE, 0x2_0000), [copy]);
    }

    #[test]
    fn the_heap_grows_and_shrinks_by_whole_pages() {
        let mut space = Space::default();
        let mut brk =
            |asked: u64, now: i64| told(&mut space, libc::SYS_brk, [asked, 0, 0, 0, 0, 0], now);
        assert_eq!(brk(0, 0x8800), []);
        assert_eq!(brk(0xa001, 0xa001), [map(0x9000, 0xb000, Backing::Heap, false)]);
        assert_eq!(brk(0xb000, 0xb000), []);
        assert_eq!(brk(1, 0xb000), [], "a refused move returns the old break");
        let cut = Message::Event(Event::Unmap { pid: PID, range: range(0xa000, 0xb000) });
        assert_eq!(brk(0x9fff, 0x9fff), [cut]);
    }

    #[test]
    fn system_v_segments_come_and_go() {
        let mut space = Space::default();
        let attached = told(&mut space, libc::SYS_shmat, [1, 0, 0, 0, 0, 0], 0x8000);
        assert_eq!(attached, [map(0x8000, 0xb000, Backing::SharedAnonymous, false)]);
        let gone = Message::Event(Event::Unmap { pid: PID, range: range(0x8000, 0xb000) });
        assert_eq!(told(&mut space, libc::SYS_shmdt, [0x8000, 0, 0, 0, 0, 0], 0), [gone]);
        assert_eq!(told(&mut space, libc::SYS_shmdt, [0x8000, 0, 0, 0, 0, 0], -22), []);
    }

    #[test]
    fn marks_and_what_will_not_go_well_are_told() {
        let remark = |number, a, b| remark(&Call { number, args: [a, b, 0, 0, 0, 0] });
        let mark = |mark| Some(Message::Event(Event::Mark(mark)));
        let option = u64::from(u32::from_be_bytes(*b"STRA"));
        assert_eq!(remark(libc::SYS_prctl, option, 1), mark(Mark::Begin));
        assert_eq!(remark(libc::SYS_prctl, option, 2), mark(Mark::End));
        assert_eq!(remark(libc::SYS_prctl, option, 3), None);
        assert_eq!(remark(libc::SYS_prctl, libc::PR_SET_NAME as u64, 1), None);
        for number in [libc::SYS_ptrace, libc::SYS_seccomp] {
            assert!(matches!(remark(number, 0, 0), Some(Message::Note(_))));
        }
        assert!(remark(libc::SYS_prctl, libc::PR_SET_SECCOMP as u64, 1).is_some());
        assert_eq!(remark(libc::SYS_mmap, 0, 1 << 30), None);
        assert!(matches!(remark(libc::SYS_mmap, 0, 1 << 40), Some(Message::Warning(_))));
    }

    #[test]
    fn memory_is_freed_by_one_call_alone() {
        let freed = |number, c: i32| freed(&Call { number, args: [0x8000, 1, c as u64, 0, 0, 0] });
        assert_eq!(freed(libc::SYS_madvise, libc::MADV_FREE), Some(range(0x8000, 0x9000)));
        assert_eq!(freed(libc::SYS_madvise, libc::MADV_DONTNEED), None);
        assert_eq!(freed(libc::SYS_mprotect, libc::MADV_FREE), None);
    }

    #[test]
    fn madvise_tells_what_matters_to_placement() {
        let advise = |code: i32| {
            told(
                &mut Space::default(),
                libc::SYS_madvise,
                [0x8000, 0x1000, code as u64, 0, 0, 0],
                0,
            )
        };
        let range = range(0x8000, 0x9000);
        for (code, advice) in [
            (libc::MADV_DONTNEED, Advice::DontNeed),
            (libc::MADV_FREE, Advice::Free),
            (libc::MADV_HUGEPAGE, Advice::HugePage),
            (libc::MADV_NOHUGEPAGE, Advice::NoHugePage),
            (libc::MADV_POPULATE_WRITE, Advice::Populate),
            (libc::MADV_COLLAPSE, Advice::Collapse),
        ] {
            assert_eq!(advise(code), [Message::Event(Event::Advise { pid: PID, range, advice })]);
        }
        assert_eq!(advise(libc::MADV_SEQUENTIAL), []);
    }
}

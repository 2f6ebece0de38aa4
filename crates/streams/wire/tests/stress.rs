//! Several producers, a slow consumer: every access accounted for, in each producer's order.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;
use strata_stream::{Pid, Tid};
use strata_wire::{CAPACITY, Drain, Owner, Wire};

/// Maps the wire again, as another process would.
fn reopen(file: &std::fs::File) -> Wire {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    Wire::open(&file).unwrap()
}

fn owner(number: u32) -> Owner {
    Owner { pid: Pid(number), tid: Tid(number), image: 0, in_gap: false }
}

/// Pushes the numbers from 0 to `count`, handing over full slots and, at every number `at_event`
/// divides, one with a message; leaves the last slot as it is.
fn produce(wire: &Wire, number: u32, count: u64, at_event: u64) {
    let owner = owner(number);
    let mut slot = wire.take_first(owner).unwrap();
    for value in 0..count {
        // SAFETY: this thread owns the slot, which is replaced when full.
        let full = unsafe { slot.push(value) };
        slot.retire(3);
        let event = value % at_event == 0 && slot.append(&[value]);
        if full || event {
            assert!(wire.commit(slot));
            slot = wire.take(owner).unwrap();
        }
    }
}

#[derive(Default)]
struct Seen {
    next: u64,
    messages: u64,
    instructions: u64,
}

fn consume(wire: &Wire, index: u32, seen: &mut HashMap<u32, Seen>) {
    let slot = wire.slot(index);
    let seen = seen.entry(slot.owner().tid.0).or_default();
    for &value in slot.accesses() {
        assert_eq!(value, seen.next);
        seen.next += 1;
    }
    for &message in slot.messages() {
        assert_eq!(message + 1, seen.next, "a message follows what was done before it");
        seen.messages += 1;
    }
    seen.instructions += slot.instructions();
    wire.release(index);
}

fn run(producers: u32, count: u64, at_event: u64, delay: Option<Duration>) {
    let (wire, file) = Wire::create().unwrap();
    let done = AtomicUsize::new(0);
    let mut seen = HashMap::new();
    std::thread::scope(|scope| {
        for number in 0..producers {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                produce(&reopen(file), number, count, at_event);
                done.fetch_add(1, SeqCst);
            });
        }
        let mut drain = Drain::default();
        loop {
            let over = done.load(SeqCst) == producers as usize;
            wire.drain(&mut drain);
            if drain.is_empty() {
                if over {
                    break;
                }
                wire.sleep(Duration::from_millis(5));
            }
            while let Some(index) = drain.pop() {
                delay.iter().for_each(|&delay| std::thread::sleep(delay));
                consume(&wire, index, &mut seen);
            }
        }
    });
    // All producers stopped as if killed: what they had not handed over is still there.
    assert!(seen.values().any(|seen| seen.next < count));
    for index in wire.orphans(|_| true) {
        consume(&wire, index, &mut seen);
    }
    assert!(wire.orphans(|_| true).is_empty());
    assert_eq!(seen.len(), producers as usize);
    for seen in seen.values() {
        assert_eq!(seen.next, count);
        assert_eq!(seen.instructions, 3 * count);
        assert_eq!(seen.messages, count.div_ceil(at_event));
    }
}

#[test]
fn a_slow_consumer_loses_nothing() {
    // More than the slots in circulation, so that producers must wait.
    run(4, 60 * CAPACITY as u64 + 77, 50_021, Some(Duration::from_micros(200)));
}

#[test]
fn a_fast_consumer_loses_nothing() {
    run(3, 400 * CAPACITY as u64 + 77, 100_003, None);
}

#[test]
fn more_threads_than_spare_slots_do_not_starve() {
    run(200, 3 * CAPACITY as u64 + 77, 1_009, None);
}

#[test]
fn a_slot_is_handed_over_once() {
    // Nobody releases the slot here; in a running wire it may be another thread's by now.
    let (wire, _file) = Wire::create().unwrap();
    let slot = wire.take(owner(1)).unwrap();
    assert!(wire.commit(slot));
    assert!(!wire.commit(slot));
}

#[test]
fn a_closed_ring_ends_waiting_producers() {
    let (wire, file) = Wire::create().unwrap();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let wire = reopen(&file);
            let mut slots = 0;
            while let Some(slot) = wire.take(owner(1)) {
                assert!(wire.commit(slot));
                slots += 1;
            }
            slots
        });
        std::thread::sleep(Duration::from_millis(50));
        wire.close();
        assert!(producer.join().unwrap() > 0);
    });
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(Wire::open(&file).is_err());
}

#[test]
fn a_cut_is_current_until_its_slot_is_released() {
    let (wire, _file) = Wire::create().unwrap();
    let slot = wire.take_first(owner(1)).unwrap();
    // SAFETY: this thread owns the slot.
    unsafe { slot.push(1) };
    let index = wire.index(slot).unwrap();
    let taking = slot.taking();
    let cut = strata_wire::Cut { slot: index, taking, accesses: 1, instructions: 0 };
    assert!(wire.is_current(&cut));
    wire.commit(slot);
    assert!(wire.is_current(&cut));
    wire.release(index);
    assert!(!wire.is_current(&cut));
    while wire.try_take(owner(2)).is_some() {}
    assert!(!wire.is_current(&cut));
}

//! Reading a snapshot.

use super::codec::{take_hot, take_huge, take_pseudo_huge, take_regions, take_usage};
use super::sections::{
    FORMAT, HEAD, HOT, MAX_SECTION, PROCESS, PSEUDO_HUGE, REGIONS, TAIL, USAGE, VM,
};
use crate::error::Error;
use crate::snapshot::model::Process;
use crate::snapshot::{Sink, Snapshot};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use strata_files::{Fault, stream, varint};

/// Bytes of content a byte of file may become. Real snapshots reach some ten; a few bytes of
/// damage must not become all memory.
const MAX_RATIO: u64 = 2000;

/// Bytes of the largest file that is read: a hundred times what a host with terabytes of guests in
/// scattered base pages makes.
const MAX_FILE: u64 = 16 << 30;

/// Reads a snapshot; `-` is standard input.
///
/// # Errors
/// When the file cannot be read, is no snapshot, is damaged, or of a later version.
pub fn read(path: &Path) -> Result<Snapshot, Error> {
    let failed = |error| Error::read(path, error);
    let bytes = if path == Path::new("-") {
        take(io::stdin().lock())
    } else {
        take(File::open(path).map_err(failed)?)
    };
    read_from(&bytes.map_err(failed)?, path)
}

/// The bytes of a snapshot; of something else no more than tells so.
fn take(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(FORMAT.magic.len() as u64).read_to_end(&mut bytes)?;
    if bytes == FORMAT.magic {
        from.take(MAX_FILE).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Reads a snapshot from its bytes; `path` is for messages.
///
/// # Errors
/// As [`read`].
pub fn read_from(bytes: &[u8], path: &Path) -> Result<Snapshot, Error> {
    let damaged = |what| Error::Damaged { path: path.to_owned(), what };
    let content = stream::open(&FORMAT, bytes, MAX_RATIO).map_err(|fault| match fault {
        Fault::Foreign => Error::Foreign(path.to_owned()),
        Fault::Version(found) => {
            Error::Newer { path: path.to_owned(), found, known: FORMAT.version }
        }
        Fault::Short => damaged("cut short"),
        Fault::Altered => damaged("its checksum is wrong"),
        Fault::Packing => damaged("it cannot be unpacked"),
    })?;
    sections(content).map_err(damaged)
}

fn sections(mut input: impl Read) -> Result<Snapshot, &'static str> {
    let mut snapshot = Snapshot::default();
    let mut bytes = Vec::new();
    let mut first = true;
    loop {
        let mut header = [0; 5];
        input.read_exact(&mut header).map_err(|_| "its end is missing")?;
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        if length as usize > MAX_SECTION {
            return Err("a part is too long");
        }
        bytes.clear();
        let read = input.by_ref().take(length.into()).read_to_end(&mut bytes);
        if read.ok() != Some(length as usize) {
            return Err("a part is cut short");
        }
        if (header[0] == HEAD) != first {
            return Err("its parts are out of order");
        }
        first = false;
        section(&mut snapshot, header[0], &bytes).ok_or("a part makes no sense")?;
        if header[0] == TAIL {
            break;
        }
    }
    Ok(snapshot)
}

fn section(snapshot: &mut Snapshot, kind: u8, bytes: &[u8]) -> Option<()> {
    match kind {
        HEAD => snapshot.head = serde_json::from_slice(bytes).ok()?,
        PROCESS => snapshot.processes.push(process(bytes)?),
        USAGE => {
            let usage = take_usage(bytes)?;
            let last = snapshot.usage.last().map(|usage| usage.index);
            if last.zip(usage.first()).is_some_and(|(last, next)| next.index <= last) {
                return None;
            }
            snapshot.usage.extend(usage);
        }
        VM => snapshot.vm(serde_json::from_slice(bytes).ok()?).ok()?,
        PSEUDO_HUGE => {
            let pages = take_pseudo_huge(bytes)?;
            let vm = snapshot.vms.last_mut()?;
            if vm.pseudo_huge.last().zip(pages.first()).is_some_and(|(last, next)| next <= last) {
                return None;
            }
            vm.pseudo_huge.extend(pages);
        }
        REGIONS => {
            let regions = take_regions(bytes)?;
            let vm = snapshot.vms.last_mut()?;
            let last = vm.regions.last().map(|region| region.index);
            if last.zip(regions.first()).is_some_and(|(last, next)| next.index <= last) {
                return None;
            }
            vm.regions.extend(regions);
        }
        HOT => {
            let hot = take_hot(bytes)?;
            let vm = snapshot.vms.last_mut()?;
            let last = vm.hot.last().map(|region| region.index);
            if last.zip(hot.first()).is_some_and(|(last, next)| next.index <= last) {
                return None;
            }
            vm.hot.extend(hot);
        }
        TAIL => snapshot.tail = serde_json::from_slice(bytes).ok()?,
        _ => return None,
    }
    Some(())
}

fn process(bytes: &[u8]) -> Option<Process> {
    let mut input = bytes;
    let length = usize::try_from(varint::take(&mut input)?).ok()?;
    let (json, mut packed) = input.split_at_checked(length)?;
    let mut process: Process = serde_json::from_slice(json).ok()?;
    for area in &mut process.areas {
        area.huge = take_huge(&mut packed)?;
    }
    packed.is_empty().then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::format::{Writer, with_content};
    use crate::snapshot::hot::{By, HotRegion, Pages, Watched};
    use crate::snapshot::model::{GuestArea, Head, HugePage, Tail, Vm};
    use crate::snapshot::pseudo::PseudoHuge;
    use crate::snapshot::region::{Class, Region, Run};
    use crate::snapshot::usage::Usage;

    #[test]
    fn what_is_no_snapshot_is_not_read_to_its_end() {
        // It has none.
        assert!(take(io::repeat(0)).unwrap().len() <= FORMAT.magic.len());
        let mut bytes = FORMAT.magic.to_vec();
        bytes.extend([7; 100]);
        assert_eq!(take(&bytes[..]).unwrap(), bytes);
        assert_eq!(take(&b"x"[..]).unwrap(), b"x");
    }

    fn sample() -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.head.machine.host = "h".to_owned();
        let huge = vec![HugePage { region: 5, frame: 1024, uncertain: true }];
        let area = GuestArea { start: 10 << 20, end: 12 << 20, huge, ..GuestArea::default() };
        let process = Process { pid: 7, areas: vec![area], ..Process::default() };
        snapshot.processes.push(process);
        snapshot.usage.push(Usage { index: 3, free: 512, ..Usage::default() });
        snapshot.vm(Vm { pid: 9, lists_pseudo_huge: true, ..Vm::default() }).unwrap();
        let page = |at: u64| PseudoHuge { guest_frame: at * 512, frame: 1024, root: 7 };
        snapshot.vms[0].pseudo_huge = (0..100_000).map(page).collect();
        let run = Run::new(3, 5, 99);
        let class = Class::Scattered;
        let region =
            |index| Region { index, class, present: 5, runs: vec![run], ..Region::default() };
        snapshot.vms[0].regions = (0..200).map(region).collect();
        snapshot.tail.uncertain = 1;
        snapshot
    }

    /// The same with hot pages.
    fn watched() -> Snapshot {
        let mut snapshot = sample();
        let vm = &mut snapshot.vms[0];
        vm.vm.watched = Some(Watched { by: By::KernelFlags, milliseconds: 7 });
        let mut used = Pages::default();
        used.set(3);
        vm.hot = (0..200).map(|index| HotRegion { index, watched: Pages::ALL, used }).collect();
        snapshot
    }

    fn bytes(snapshot: &Snapshot) -> Vec<u8> {
        let hot = snapshot.vms.iter().any(|vm| !vm.hot.is_empty());
        let mut writer = Writer::new(Vec::new(), hot).unwrap();
        let copy = snapshot.clone();
        writer.head(copy.head).unwrap();
        copy.processes.into_iter().for_each(|process| writer.process(process).unwrap());
        writer.usage(&copy.usage).unwrap();
        for vm in copy.vms {
            writer.vm(vm.vm).unwrap();
            writer.pseudo_huge(&vm.pseudo_huge).unwrap();
            writer.regions(vm.regions).unwrap();
            writer.hot(&vm.hot).unwrap();
        }
        writer.tail(copy.tail).unwrap();
        writer.finish().unwrap()
    }

    fn refusal(bytes: &[u8]) -> String {
        let message = read_from(bytes, Path::new("x.scan")).unwrap_err().to_string();
        assert!(!message.contains('\n'));
        message
    }

    #[test]
    fn a_snapshot_comes_back() {
        // What has nothing new is as programs of before read it.
        for (snapshot, version) in [(sample(), 2), (watched(), 3)] {
            let bytes = bytes(&snapshot);
            assert_eq!(read_from(&bytes, Path::new("x")).unwrap(), snapshot);
            assert_eq!(bytes[8..12], [version, 0, 0, 0]);
        }
    }

    /// They were made before the code that reads them, which must still know them.
    #[test]
    fn snapshots_of_before_are_read() {
        for name in ["guest", "host"] {
            let path = format!("../../../docs/examples/{name}.scan");
            let snapshot = read(Path::new(&path)).unwrap();
            assert!(snapshot.head.machine.memory > 0, "{name}");
            let file = std::fs::read(&path).unwrap();
            assert_eq!(file[..12], *b"STRATAS\n\x01\0\0\0");
            let again = bytes(&snapshot);
            assert_eq!(again[..12], *b"STRATAS\n\x02\0\0\0");
            assert_eq!(read_from(&again, Path::new("x")).unwrap(), snapshot, "{name}");
        }
    }

    #[test]
    fn equal_snapshots_are_equal_bytes() {
        assert_eq!(bytes(&sample()), bytes(&sample()));
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let good = bytes(&watched());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(read_from(&bad, Path::new("x")).is_err(), "byte {at}");
            assert!(read_from(&good[..at], Path::new("x")).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn refusals_name_the_cause_and_the_remedy() {
        let good = bytes(&sample());
        assert!(refusal(b"ELF").contains("is no snapshot; make one with 'strata scan"));
        assert!(refusal(&good[..9]).contains("cut short"));
        let mut newer = good.clone();
        newer[8] = 9;
        assert!(refusal(&newer).contains("format 9, this program reads up to 3; use a newer"));
        let mut flipped = good;
        flipped[40] ^= 1;
        assert!(refusal(&flipped).contains("damaged (its checksum is wrong); copy it again"));
        assert!(refusal(&with_content(&[])).contains("its end is missing"));
        assert!(refusal(&with_content(&[HEAD, 9, 0, 0, 0, b'{'])).contains("a part is cut short"));
        assert!(refusal(&with_content(&[HEAD, 0, 0, 0, 0xff])).contains("a part is too long"));
        assert!(refusal(&with_content(&[TAIL, 2, 0, 0, 0, b'{', b'}'])).contains("out of order"));
        assert!(refusal(&with_content(&[HEAD, 1, 0, 0, 0, b'x'])).contains("makes no sense"));
        let missing = read(Path::new("/nowhere/x.scan")).unwrap_err().to_string();
        assert!(
            missing.contains("cannot read /nowhere/x.scan") && missing.contains("check the path")
        );
    }

    #[test]
    fn head_alone_is_not_enough_and_head_is_default() {
        let head = serde_json::to_vec(&Head::default()).unwrap();
        let tail = serde_json::to_vec(&Tail::default()).unwrap();
        let mut content = vec![HEAD];
        content.extend((head.len() as u32).to_le_bytes());
        content.extend(&head);
        assert!(refusal(&with_content(&content)).contains("its end is missing"));
        content.push(TAIL);
        content.extend((tail.len() as u32).to_le_bytes());
        content.extend(&tail);
        let read = read_from(&with_content(&content), Path::new("x")).unwrap();
        assert_eq!(read, Snapshot::default());
    }
}

//! A whole session: something that speaks as the plugin does, a RAM file, and the two files that
//! come of it.

use crate::machine::Machine;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use strata_addr::{Frame, PageSize, Vpn, space::HostPhysical};
use strata_lab::recording::{Amount, Done, Job, Listener, RecordingError};
use strata_stream::{Access, Batch, Fill, Source};
use strata_tables::Entries;
use strata_tables::file;
use strata_tables::ram::{Layout, Ram};
use strata_wire::machine::{Frozen, GOODBYE, Placed, Told, VERSION};
use strata_workloads::record::Reader;

/// RAM in which the program of these tests lies above the hole: what is at an address is not at
/// that offset of the file.
const RAM: u64 = 5 << 30;

fn job(directory: &Path, machine: &Machine) -> Job {
    let layout = Layout::pc(RAM);
    let ram = directory.join("ram");
    let file = File::create(&ram).unwrap();
    file.set_len(RAM).unwrap();
    machine
        .ram
        .scan(&mut |frame, page| {
            let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
            let offset = layout.offset(frame.addr()).unwrap();
            file.write_all_at(&bytes, offset).unwrap();
        })
        .unwrap();
    Job {
        ram,
        layout,
        layers: machine.layers,
        command: vec!["program".to_owned()],
        recording: directory.join("recording"),
        tables: directory.join("tables"),
    }
}

fn accesses(machine: &Machine) -> Vec<Placed> {
    let layout = Layout::pc(RAM);
    let placed = |(page, frame): (&Vpn, &Frame<HostPhysical>)| Placed {
        access: Access::store(page.addr() + 8, 8),
        ram: layout.offset(frame.addr() + 8),
        vcpu: 0,
    };
    machine.program.iter().map(placed).collect()
}

/// Runs a session with a plugin that says this, and gives what it was answered.
fn session(job: &Job, told: Vec<Told>) -> (Result<Done, RecordingError>, Vec<u8>) {
    let socket = job.ram.with_file_name("socket");
    let listener = Listener::bind(&socket).unwrap();
    thread::scope(|scope| {
        let plugin = scope.spawn(|| {
            let mut reader = UnixStream::connect(&socket).unwrap();
            for told in told {
                if told.write(&mut reader).is_err() {
                    break;
                }
            }
            let _ = reader.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = reader.read_to_end(&mut answer);
            answer
        });
        let done = listener.record(job, &AtomicBool::new(false));
        (done, plugin.join().unwrap())
    })
}

fn machine() -> Machine {
    let page = |at: u64| Vpn::new(0x6_0000_0000 + at);
    Machine::new(3, Entries::X86, &[(page(0), PageSize::Huge), (page(512), PageSize::Base)], 3)
}

#[test]
fn accesses_and_tables_are_kept_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let machine = machine();
    let job = job(directory.path(), &machine);
    let accesses = accesses(&machine);
    let told = vec![
        Told::Hello(VERSION),
        Told::Armed,
        Told::Started,
        Told::Accesses { instructions: 9, accesses: accesses.clone() },
        Told::Frozen(Frozen::Marker),
    ];
    let (done, answer) = session(&job, told);
    let done = done.unwrap();
    assert_eq!(answer, [GOODBYE]);
    assert_eq!((done.capture.check.matched, done.instructions), (2, 9));
    assert_eq!(file::read(&job.tables).unwrap(), done.capture);
    let mut reader = Reader::open(&job.recording).unwrap();
    let mut batch = Batch::new();
    let mut read = Vec::new();
    while reader.fill(&mut batch).unwrap() == Fill::More {
        read.extend_from_slice(batch.accesses());
    }
    read.extend_from_slice(batch.accesses());
    assert_eq!(read, accesses.iter().map(|placed| placed.access).collect::<Vec<_>>());
}

#[test]
fn a_machine_that_ends_or_lies_leaves_no_files() {
    let hello = Told::Hello(VERSION);
    let some = |accesses: Vec<Placed>| Told::Accesses { instructions: 1, accesses };
    let lost = {
        let mut accesses = accesses(&machine());
        accesses[0].ram = Some(0x77_7000);
        some(accesses)
    };
    let frozen = Told::Frozen(Frozen::Limit);
    for (told, expected) in [
        (vec![hello.clone()], "never asked to be watched"),
        (vec![hello.clone(), Told::Armed], "never reached its start"),
        (vec![hello.clone(), Told::Armed, Told::Started], "after 0 accesses"),
        (vec![Told::Hello(VERSION + 1)], "version"),
        (vec![hello.clone(), frozen.clone()], "no access was recorded"),
        (vec![hello.clone(), lost, frozen], "do other programs use"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let job = job(directory.path(), &machine());
        let error = session(&job, told).0.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        assert!(!job.recording.exists() && !job.tables.exists(), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the RAM");
    }
}

#[test]
fn a_session_can_be_stopped_before_its_machine_begins() {
    let directory = tempfile::tempdir().unwrap();
    let job = job(directory.path(), &machine());
    let listener = Listener::bind(&directory.path().join("socket")).unwrap();
    let error = listener.record(&job, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, RecordingError::Stopped));
}

#[test]
fn the_plugin_is_told_all_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let amount = Amount { limit: Some(5), skip: 2, ..Amount::default() };
    let argument = listener.plugin_argument(Path::new("p.so"), &amount);
    assert!(argument.starts_with(&format!("p.so,socket={},window=", path.display())));
    assert!(argument.ends_with(",limit=5,skip=2"), "{argument}");
    assert_eq!(argument.matches("window=").count(), 4);
    drop(listener);
    assert!(!path.exists());
}

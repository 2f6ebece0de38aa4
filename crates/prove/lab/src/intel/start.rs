//! The running emulator.

use super::build::{Bochs, PROCESSOR};
use super::image::{self, HEADS, Placed, SECTORS};
use super::state;
use crate::error::{LabError, on};
use crate::machine::{Devices, Hardware, Heard, Machine, Ram, SOCKET, accept, each_line, listen};
use crate::process::ends_with_us;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use strata_line::Numbers;
use strata_line::disk::Disk;
use strata_protocol::Line;

/// Instructions that count as a second, for the kernels and for all devices. The machine does not wait
/// for a second to be over: it makes some 20 to 100 million a second. When it has nothing to do, its
/// seconds are those of this computer.
pub const INSTRUCTIONS_PER_SECOND: u64 = 400_000_000;
/// The socket of L0's console, in the directory of the run.
const CONSOLE: &str = "console.socket";
/// The emulator's configuration.
const CONFIGURATION: &str = "bochsrc";
/// What the emulator says.
const LOG: &str = "emulator.log";
/// L0's disk.
const DISK: &str = "l0.disk";
/// The state that the emulator goes on from.
const STATE: &str = "state";
/// Keeps two emulators from using one disk; one that was killed leaves it.
const DISK_LOCK: &str = "l0.disk.lock";

/// Kernel parameters of L0.
pub(crate) fn parameters() -> String {
    let line = Line { serial: "ttyS1".into(), disk: "sda".into() };
    // Time: the processors' model tells of a frequency that is not the one instructions are counted by.
    // APICv: the emulator delivers virtual interrupts while the guest has them off, and L1 then hangs.
    format!(
        "{} tsc_early_khz={} kvm_intel.enable_apicv=0",
        line.parameter(),
        INSTRUCTIONS_PER_SECOND / 1000
    )
}

/// Starts a machine that uses `directory` for its files.
pub(crate) fn start(
    bochs: &Bochs,
    hardware: &Hardware,
    directory: &Path,
    interrupt: &AtomicBool,
) -> Result<Machine, LabError> {
    let path = |name: &str| directory.join(name);
    let disk = path(DISK);
    on(&disk, image::write_disk(&disk))?;
    let mut command = Command::new(&bochs.program);
    let mut placed = Vec::new();
    let mut numbers = Numbers::default();
    match &hardware.memory.devices {
        Devices::From(kept) => {
            numbers = state::numbers(kept)?;
            let state = state::link(kept, &path(STATE))?;
            let configuration = state.join(state::CONFIGURATION);
            // What loads the devices' code first; without a state Bochs loads it by itself.
            let text = state::plugins(kept)? + &configure(bochs, hardware.bytes, &[], directory);
            on(&configuration, fs::write(&configuration, text))?;
            command.arg("-q").arg("-r").arg(state);
        }
        devices => {
            if let Devices::To(kept) = devices {
                // It is there when the machine is started again.
                on(kept, fs::create_dir_all(kept))?;
                command.env(state::SAVE_TO, kept);
            }
            let of_kernel = (&*hardware.kernel, &*hardware.initrd, &*hardware.parameters);
            placed = image::make(of_kernel, hardware.bytes, directory)?.into();
            let configuration = path(CONFIGURATION);
            let text = configure(bochs, hardware.bytes, &placed, directory);
            on(&configuration, fs::write(&configuration, text))?;
            command.args(["-q", "-f"]).arg(&configuration);
        }
    }
    let (console_at, port_at) = (path(CONSOLE), path(SOCKET));
    let console = on(&console_at, UnixListener::bind(&console_at))?;
    let port = on(&port_at, UnixListener::bind(&port_at))?;
    let words = path("emulator-words.log");
    let out = on(&words, File::create(&words))?;
    match &hardware.memory.ram {
        Ram::Own => {}
        Ram::File(file) => drop(command.env("BOCHS_RAM_FILE", file)),
        Ram::CopyOf(file) => drop(command.env("BOCHS_RAM_COPY_OF", file)),
    }
    let mut child = ends_with_us(&mut command)
        .envs(hardware.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(on(&words, out.try_clone())?)
        .stderr(out)
        .spawn()
        .map_err(|source| LabError::File { path: bochs.program.clone(), source })?;
    let errors = path(LOG);
    let mut accepted = |listener| accept(listener, &mut child, interrupt);
    let lines = accepted(&console).and_then(|console| Ok((console, accepted(&port)?)));
    let (console, line) = match lines {
        Ok(lines) => lines,
        Err(source) => return Err(gone(child, [&errors, &words], &source)),
    };
    // They are in its memory by now. The last is the initial file system, which is not ours.
    for (path, _) in placed.iter().take(2) {
        on(path, fs::remove_file(path))?;
    }
    let (sender, heard) = channel();
    let consoles = sender.clone();
    thread::spawn(move || {
        each_line(console, |line| consoles.send(Heard::Console(line)).is_ok());
    });
    let disk = Disk::new(on(&disk, File::open(&disk))?);
    let connected = || {
        let (port, own) = UnixStream::pair()?;
        let ways = (line.try_clone()?, line);
        let carried = strata_line::carry(own, ways, None, Some(disk), strata_line::AGAIN, numbers)?;
        Ok((port.try_clone()?, port, carried))
    };
    let (connection, port, carried) = on(&port_at, connected())?;
    thread::spawn(move || listen(connection, &sender));
    Ok(Machine { child, port, heard, errors, line: Some(carried) })
}

/// Takes away what only keeps the names of a machine whose layers run: both sides have the disk open, so
/// nobody has to take it away later.
pub(crate) fn settle(directory: &Path) -> Result<(), LabError> {
    put_aside(directory)?;
    let disk = directory.join(DISK);
    if disk.exists() { on(&disk, fs::remove_file(&disk)) } else { Ok(()) }
}

/// Takes away what keeps a machine from starting again in the same directory.
pub(crate) fn put_aside(directory: &Path) -> Result<(), LabError> {
    for name in [CONSOLE, DISK_LOCK] {
        let path = directory.join(name);
        if path.exists() {
            on(&path, fs::remove_file(&path))?;
        }
    }
    let state = directory.join(STATE);
    if state.exists() { on(&state, fs::remove_dir_all(&state)) } else { Ok(()) }
}

/// The error of an emulator that does not come up, which is ended.
fn gone(mut child: Child, [log, words]: [&Path; 2], source: &io::Error) -> LabError {
    let _ = child.kill();
    let _ = child.wait();
    if source.kind() == io::ErrorKind::Interrupted {
        return LabError::Interrupted;
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    // Before its log is open its words are all there is.
    let log = if said.is_empty() { words } else { log };
    let panic = said.lines().find_map(|line| Some(line.split_once(">>PANIC<<")?.1.trim()));
    LabError::Build {
        what: "starting the machine".into(),
        reason: panic.map_or(source.to_string(), str::to_owned),
        log: log.to_owned(),
    }
}

/// The emulator's configuration (Bochs User Manual, "The configuration file bochsrc").
fn configure(bochs: &Bochs, bytes: u64, placed: &[Placed], directory: &Path) -> String {
    let mib = image::with_hole(bytes) >> 20;
    let file = |name: &str| directory.join(name).display().to_string();
    let mut text = format!(
        "display_library: nogui\n\
         memory: guest={mib}, host={mib}\n\
         romimage: file=\"{}\"\n\
         vgaromimage: file=\"{}\"\n\
         cpu: model={PROCESSOR}, count=1, ips={INSTRUCTIONS_PER_SECOND}, reset_on_triple_fault=0, \
         ignore_bad_msrs=1, exclude_features=smap\n\
         clock: sync=slowdown\n\
         boot: disk\n\
         ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
         ata0-master: type=disk, path=\"{}\", mode=flat, cylinders={}, heads={HEADS}, spt={SECTORS}\n\
         com1: enabled=1, mode=socket-client, dev=\"{}\"\n\
         com2: enabled=1, mode=socket-client, dev=\"{}\"\n\
         log: \"{}\"\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n\
         debug: action=ignore\n",
        bochs.bios.display(),
        bochs.vga_bios.display(),
        file(DISK),
        image::CYLINDERS,
        file(CONSOLE),
        file(SOCKET),
        file(LOG),
    );
    for (number, (path, address)) in (1..).zip(placed) {
        text +=
            &format!("optramimage{number}: file=\"{}\", address={address:#x}\n", path.display());
    }
    text
}

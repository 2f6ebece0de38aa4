//! The running emulator.

use super::build::{Bochs, PROCESSOR};
use super::image::{self, HEADS, Image, SECTORS};
use crate::error::{LabError, on};
use crate::machine::{Hardware, Heard, Machine, SOCKET, accept, each_line, listen};
use crate::process::ends_with_us;
use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use strata_line::disk::Disk;
use strata_protocol::Line;

/// Instructions that count as a second, for the kernels and for all devices. The machine does not wait
/// for a second to be over: it makes some 20 to 100 million a second. When it has nothing to do, its
/// seconds are those of this computer.
const INSTRUCTIONS_PER_SECOND: u64 = 400_000_000;
/// The socket of L0's console, in the directory of the run.
const CONSOLE: &str = "console.socket";
/// The emulator's configuration.
const CONFIGURATION: &str = "bochsrc";
/// What the emulator says.
const LOG: &str = "emulator.log";
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
) -> Result<Machine, LabError> {
    let of_kernel = (&*hardware.kernel, &*hardware.initrd, &*hardware.parameters);
    let image = image::make(of_kernel, hardware.memory, directory)?;
    let path = |name: &str| directory.join(name);
    let configuration = path(CONFIGURATION);
    on(&configuration, fs::write(&configuration, configure(bochs, &image, directory)))?;
    let (console_at, port_at) = (path(CONSOLE), path(SOCKET));
    let console = on(&console_at, UnixListener::bind(&console_at))?;
    let port = on(&port_at, UnixListener::bind(&port_at))?;
    let words = path("emulator-words.log");
    let out = on(&words, File::create(&words))?;
    let mut command = Command::new(&bochs.program);
    if let Some(file) = &hardware.memory_file {
        command.env("BOCHS_RAM_FILE", file);
    }
    let mut child = ends_with_us(&mut command)
        .args(["-q", "-f"])
        .arg(&configuration)
        .envs(hardware.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(on(&words, out.try_clone())?)
        .stderr(out)
        .spawn()
        .map_err(|source| LabError::File { path: bochs.program.clone(), source })?;
    let errors = path(LOG);
    let lines =
        accept(&console, &mut child).and_then(|console| Ok((console, accept(&port, &mut child)?)));
    let (console, line) = match lines {
        Ok(lines) => lines,
        Err(source) => return Err(gone(child, &errors, &source)),
    };
    // They are in its memory by now.
    for (path, _) in &image.placed[..2] {
        on(path, fs::remove_file(path))?;
    }
    let (sender, heard) = channel();
    let consoles = sender.clone();
    thread::spawn(move || {
        each_line(console, |line| consoles.send(Heard::Console(line)).is_ok());
    });
    let disk = Disk::new(on(&image.disk, File::open(&image.disk))?);
    // Both have it open, so it needs no name, and nobody has to take it away.
    for path in [image.disk, path(DISK_LOCK)] {
        on(&path, fs::remove_file(&path))?;
    }
    let connected = || {
        let (port, own) = UnixStream::pair()?;
        let ways = (line.try_clone()?, line);
        strata_line::carry(own, ways, None, Some(disk), strata_line::AGAIN)?;
        Ok((port.try_clone()?, port))
    };
    let (connection, port) = on(&port_at, connected())?;
    thread::spawn(move || listen(connection, &sender));
    Ok(Machine { child, port, heard, errors })
}

/// Takes away what keeps a machine from starting again in the same directory.
pub(crate) fn put_aside(directory: &Path) -> Result<(), LabError> {
    for name in [CONSOLE, DISK_LOCK] {
        let path = directory.join(name);
        if path.exists() {
            on(&path, fs::remove_file(&path))?;
        }
    }
    Ok(())
}

/// The error of an emulator that does not come up, which is ended.
fn gone(mut child: Child, log: &Path, source: &std::io::Error) -> LabError {
    let _ = child.kill();
    let _ = child.wait();
    let said = fs::read_to_string(log).unwrap_or_default();
    let panic = said.lines().find_map(|line| Some(line.split_once(">>PANIC<<")?.1.trim()));
    LabError::Build {
        what: "starting the machine".into(),
        reason: panic.map_or(source.to_string(), str::to_owned),
        log: log.to_owned(),
    }
}

/// The emulator's configuration (Bochs User Manual, "The configuration file bochsrc").
fn configure(bochs: &Bochs, image: &Image, directory: &Path) -> String {
    let mib = image.memory >> 20;
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
        image.disk.display(),
        image.cylinders,
        file(CONSOLE),
        file(SOCKET),
        file(LOG),
    );
    for (number, (path, address)) in (1..).zip(&image.placed) {
        text +=
            &format!("optramimage{number}: file=\"{}\", address={address:#x}\n", path.display());
    }
    text
}

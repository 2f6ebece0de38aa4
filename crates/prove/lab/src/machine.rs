//! The emulated machine: one process of this computer, which ends with the lab whatever happens.
//! The crate's room for `unsafe`.

use crate::error::{LabError, on};
use crate::make::{MachineReport, Make};
use crate::process::ends_with_us;
use crate::state::DEVICES;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use strata_line::Carried;
use strata_protocol::{PORT_NAME, Report};

/// The program that is the machine.
pub(crate) const EMULATOR: &str = "qemu-system-x86_64";

/// The socket of the port, in the directory of the run.
pub(crate) const SOCKET: &str = "port.socket";

/// The socket on which the emulator takes commands, in the directory of the run.
pub(crate) const CONTROL: &str = "control.socket";

/// The model of its processors: with SVM and nested paging.
const PROCESSOR: &str = "EPYC,+svm,+npt,+vgif";

/// MiB for translated code that three kernels need.
pub(crate) const CODE_MIB: u32 = 512;

/// What the machine is made of.
#[derive(Debug)]
pub(crate) struct Hardware {
    /// Bytes of memory.
    pub(crate) bytes: u64,
    /// Processors.
    pub(crate) cpus: u8,
    /// L0's kernel.
    pub(crate) kernel: PathBuf,
    /// L0's initial file system.
    pub(crate) initrd: PathBuf,
    /// L0's kernel parameters.
    pub(crate) parameters: String,
    /// More arguments.
    pub(crate) more: Vec<String>,
    /// MiB of memory for translated code.
    pub(crate) code_mib: u32,
    /// The memory, and the state that it begins with.
    pub(crate) memory: Memory,
    /// Variables of the emulator's environment.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// What a machine remembers, and at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Its memory.
    pub(crate) ram: Ram,
    /// The state of everything else.
    pub(crate) devices: Devices,
}

/// The memory of a machine.
#[derive(Clone, Debug, Default)]
pub(crate) enum Ram {
    /// The emulator's own.
    #[default]
    Own,
    /// This file, which holds it at every moment: for who looks at it from outside, or keeps it.
    File(PathBuf),
    /// At first what this file holds, which stays as it is.
    CopyOf(PathBuf),
}

/// The state of a machine's processors and devices.
#[derive(Clone, Debug, Default)]
pub(crate) enum Devices {
    /// As they are when it is switched on.
    #[default]
    New,
    /// The same, and it will be saved in this file.
    To(PathBuf),
    /// That of this file.
    From(PathBuf),
}

impl Devices {
    /// Their file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::New => None,
            Self::To(file) | Self::From(file) => Some(file),
        }
    }
}

/// Something heard from the machine.
#[derive(Debug)]
pub(crate) enum Heard {
    /// From an agent.
    Report(Report),
    /// A line of L0's console or of the emulator itself.
    Console(String),
    /// Something on the port that is no report.
    Garbled(String),
    /// The emulator ended or closed the port.
    Ended,
}

/// A running machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) child: Child,
    /// Leads to L0's agent.
    pub(crate) port: UnixStream,
    /// What is heard.
    pub(crate) heard: Receiver<Heard>,
    /// What the emulator itself says.
    pub(crate) errors: PathBuf,
    /// The line that the port is carried over, where there is no virtio.
    pub(crate) line: Option<Carried>,
}

impl Machine {
    /// Starts a machine that uses `directory` for its sockets.
    pub(crate) fn start(
        hardware: &Hardware,
        directory: &Path,
        interrupt: &AtomicBool,
    ) -> Result<Self, LabError> {
        let socket = directory.join(SOCKET);
        let listener = on(&socket, UnixListener::bind(&socket))?;
        let errors = directory.join("emulator.log");
        let mut command = Command::new(EMULATOR);
        let mut child = ends_with_us(&mut command)
            .args(arguments(hardware, &socket, &directory.join(CONTROL)))
            .envs(hardware.memory.devices.file().map(|file| (DEVICES, file)))
            .envs(hardware.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(on(&errors, File::create(&errors))?)
            .spawn()
            .map_err(|source| LabError::Tool {
                program: EMULATOR,
                source,
                package: "qemu-system-x86",
            })?;
        let console = child.stdout.take().expect("it is piped");
        let (port, connection) = match accept(&listener, &mut child, interrupt) {
            Ok(port) => {
                let copy = on(&socket, port.try_clone())?;
                (port, copy)
            }
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                if source.kind() == io::ErrorKind::Interrupted {
                    return Err(LabError::Interrupted);
                }
                let said = fs::read_to_string(&errors).unwrap_or_default();
                return Err(LabError::Build {
                    what: "starting the machine".into(),
                    reason: said.lines().last().map_or(source.to_string(), str::to_owned),
                    log: errors,
                });
            }
        };
        let (sender, heard) = channel();
        let consoles = sender.clone();
        thread::spawn(move || {
            each_line(console, |line| consoles.send(Heard::Console(line)).is_ok());
        });
        thread::spawn(move || listen(connection, &sender));
        Ok(Self { child, port, heard, errors, line: None })
    }

    /// What the emulator has done so far. Nothing if the system does not tell.
    pub(crate) fn effort(&self) -> Effort {
        let mut effort = Effort::default();
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for thread in threads.into_iter().flatten().flatten() {
            // Nanoseconds on a processor, then those of waiting for one, then slices of time
            // (Documentation/scheduler/sched-stats.rst).
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
            let used = Duration::from_nanos(numbers.next().unwrap_or_default());
            effort.used += used;
            effort.wanted += used + Duration::from_nanos(numbers.next().unwrap_or_default());
        }
        effort
    }

    /// How the emulator ended, which is known only a moment after its last word.
    pub(crate) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begin.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
    }

    /// What the emulator itself said last, and where all of it is.
    pub(crate) fn complaint(&self) -> Option<(String, PathBuf)> {
        let said = fs::read_to_string(&self.errors).ok()?;
        Some((last_words(&said)?, self.errors.clone()))
    }
}

/// The last two lines of what an emulator said that are no warnings: that it gives up, and before that mostly why. Bochs
/// says both in one, and more after it.
fn last_words(said: &str) -> Option<String> {
    if let Some(panic) = said.lines().find(|line| line.contains(">>PANIC<<")) {
        return Some(panic.to_owned());
    }
    let lines = said.lines().filter(|line| !line.contains("warning:") && !line.trim().is_empty());
    let lines: Vec<&str> = lines.collect();
    let last = lines.get(lines.len().saturating_sub(2)..).filter(|last| !last.is_empty())?;
    Some(last.join("; "))
}

/// What a report says of the machine, whose emulator is given these arguments besides.
pub(crate) fn report(more: &[String]) -> MachineReport {
    let output = Command::new(EMULATOR).arg("--version").output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let emulator = said.unwrap_or_default().lines().next().unwrap_or(EMULATOR).to_owned();
    // The last one counts.
    let own = more.windows(2).rfind(|pair| pair[0] == "-cpu").map(|pair| pair[1].as_str());
    MachineReport { make: Make::Amd, emulator, processor: own.unwrap_or(PROCESSOR).into() }
}

/// Processor time of the emulator, all its threads together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effort {
    /// That it got.
    pub(crate) used: Duration,
    /// That it had a use for: it got it, or waited for it because others had the processors.
    pub(crate) wanted: Duration,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn listen(connection: UnixStream, sender: &Sender<Heard>) {
    each_line(connection, |line| {
        // An agent ends the line that one before it may have left unfinished.
        if line.is_empty() {
            return true;
        }
        let heard = match serde_json::from_str(&line) {
            Ok(report) => Heard::Report(report),
            Err(_) => Heard::Garbled(line),
        };
        sender.send(heard).is_ok()
    });
    // The lab may have gone first.
    let _ = sender.send(Heard::Ended);
}

/// Calls `take` with each line until it wants no more or there are none.
pub(crate) fn each_line(stream: impl io::Read, mut take: impl FnMut(String) -> bool) {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        if !take(String::from_utf8_lossy(&line).trim_end().to_owned()) {
            return;
        }
        line.clear();
    }
}

/// Waits for the emulator to connect its end of the port, or to end.
pub(crate) fn accept(
    listener: &UnixListener,
    child: &mut Child,
    interrupt: &AtomicBool,
) -> io::Result<UnixStream> {
    const LIMIT: Duration = Duration::from_secs(120);
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("the emulator ended with {status}")));
        }
        if interrupt.load(Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if begin.elapsed() > LIMIT {
            return Err(io::Error::other("the emulator does not come up"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Arguments of the emulator: a processor with SVM and nested paging, which only AMD's
/// virtualisation has under emulation, and nothing else that a layer does not use.
fn arguments(hardware: &Hardware, socket: &Path, control: &Path) -> Vec<String> {
    let mib = hardware.bytes >> 20;
    let mut arguments: Vec<String> =
        ["-cpu", PROCESSOR, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
            .map(str::to_owned)
            .into();
    arguments.extend(["-accel".into(), format!("tcg,thread=multi,tb-size={}", hardware.code_mib)]);
    arguments.extend(["-m".into(), format!("{mib}M")]);
    arguments.extend(["-smp".into(), hardware.cpus.to_string()]);
    arguments.extend(["-kernel".into(), hardware.kernel.display().to_string()]);
    arguments.extend(["-initrd".into(), hardware.initrd.display().to_string()]);
    arguments.extend(["-append".into(), hardware.parameters.clone()]);
    arguments.extend(port(&socket.display().to_string()));
    arguments.extend(["-qmp".into(), format!("unix:{},server=on,wait=off", control.display())]);
    let file = match &hardware.memory.ram {
        Ram::Own => None,
        Ram::File(file) => Some((file, "on")),
        Ram::CopyOf(file) => Some((file, "off")),
    };
    if let Some((file, share)) = file {
        let file = file.display();
        arguments.extend([
            "-object".into(),
            format!("memory-backend-file,id=ram,mem-path={file},size={mib}M,share={share}"),
        ]);
        arguments.extend(["-machine".into(), "memory-backend=ram".into()]);
    }
    if let Devices::From(_) = hardware.memory.devices {
        arguments.extend(["-S", "-incoming", "defer"].map(str::to_owned));
    }
    arguments.extend(hardware.more.iter().cloned());
    arguments
}

/// Arguments that give a machine the port to its agent.
pub(crate) fn port(socket: &str) -> [String; 6] {
    [
        "-device".into(),
        "virtio-serial-pci".into(),
        "-chardev".into(),
        format!("socket,id=port,path={socket}"),
        "-device".into(),
        format!("virtserialport,chardev=port,name={PORT_NAME}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_is_waited_for_until_it_comes_ends_or_nobody_wants_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(SOCKET);
        let listener = UnixListener::bind(&socket).unwrap();
        let mut silent = Command::new("sleep").arg("60").spawn().unwrap();
        let refused = accept(&listener, &mut silent, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Interrupted);
        let _comes = UnixStream::connect(&socket).unwrap();
        assert!(accept(&listener, &mut silent, &AtomicBool::new(false)).is_ok());
        silent.kill().unwrap();
        silent.wait().unwrap();
        let ended = accept(&listener, &mut silent, &AtomicBool::new(false)).unwrap_err();
        assert!(ended.to_string().contains("the emulator ended with"), "{ended}");
    }

    #[test]
    fn the_last_words_of_an_emulator_say_why_it_gives_up() {
        let warning = "qemu: warning: TCG doesn't support rdseed\n";
        assert_eq!(last_words(warning), None);
        assert_eq!(last_words(""), None);
        let one = format!("{warning}qemu: cannot set up guest memory\n");
        assert_eq!(last_words(&one).unwrap(), "qemu: cannot set up guest memory");
        let three = format!("qemu: first\nqemu: of device 'hpet'\n{warning}qemu: load failed\n\n");
        assert_eq!(last_words(&three).unwrap(), "qemu: of device 'hpet'; qemu: load failed");
        let panic = "00 >>PANIC<< no disk\nlast log\n";
        assert_eq!(last_words(panic).unwrap(), "00 >>PANIC<< no disk");
    }
}

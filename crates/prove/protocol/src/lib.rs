//! What the lab and the agents say to each other: JSON, one message a line.
//!
//! The lab talks to L0's agent through a port of the machine. An agent answers what is meant for
//! its layer and passes everything else on, commands to the machine it runs and events to where
//! its own port leads, so that the lab sees all layers through one port.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Name of the virtio port that leads to the layer below.
pub const PORT_NAME: &str = "strata";
/// Kernel parameter that tells an agent its layer: `strata.layer=1`.
pub const LAYER_PARAMETER: &str = "strata.layer=";
/// Kernel parameter that names the way to the layer below where there is no virtio: see [`Line`].
pub const LINE_PARAMETER: &str = "strata.line=";
/// The file of a layer that programs which are held get as their standard input, if it is there.
pub const INPUT_FILE: &str = "/stdin";
/// Kernel parameter of a machine that has no port: its agent runs this program and turns the machine off.
const ALONE_PARAMETER: &str = "strata.alone=";
/// What such an agent says at the end, before the program's status.
pub const ALONE_END: &str = "strata-agent: ended with status ";
/// Bytes of a file that one [`Reply::Chunk`] holds at most, before encoding.
pub const CHUNK: usize = 256 * 1024;

/// A serial line and a disk, in place of a virtio port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The serial line's device, below `/dev`.
    pub serial: String,
    /// The disk's.
    pub disk: String,
}

impl Line {
    /// The kernel parameter that names it.
    #[must_use]
    pub fn parameter(&self) -> String {
        format!("{LINE_PARAMETER}{},{}", self.serial, self.disk)
    }

    /// Reads what follows [`LINE_PARAMETER`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (serial, disk) = text.split_once(',')?;
        Some(Self { serial: serial.to_owned(), disk: disk.to_owned() })
    }
}

/// The kernel parameter for a program alone in its machine: its words may have blanks, parameters may not.
#[must_use]
pub fn alone_parameter(program: &[String]) -> String {
    let words = serde_json::to_vec(program).expect("strings are JSON");
    format!("{ALONE_PARAMETER}{}", STANDARD.encode(words))
}

/// The program, at least its name, that a kernel's parameters ask for alone, if they do.
///
/// # Errors
///
/// If the parameter is not one that [`alone_parameter`] gives.
pub fn alone(parameters: &str) -> Result<Option<Vec<String>>, String> {
    let words = parameters.split_whitespace();
    let Some(words) = words.filter_map(|word| word.strip_prefix(ALONE_PARAMETER)).next() else {
        return Ok(None);
    };
    let wrong = |reason: &dyn Display| format!("the kernel parameter {ALONE_PARAMETER}: {reason}");
    let words = STANDARD.decode(words).map_err(|error| wrong(&error))?;
    let words: Vec<String> = serde_json::from_slice(&words).map_err(|error| wrong(&error))?;
    if words.is_empty() {
        return Err(wrong(&"no program"));
    }
    Ok(Some(words))
}

/// A command for the agent of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The layer it is for: 0 for L0.
    pub to: u8,
    /// Comes back in the [`Event::Done`] or [`Event::Failed`] that answers it.
    pub id: u64,
    /// What to do.
    pub command: Command,
}

/// What an agent can do. Each is answered once, when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Writes `text` to the file `path`, such as a setting below `/sys`.
    Write {
        /// The file; a part `*` of the path stands for all directories there.
        path: String,
        /// Its new contents.
        text: String,
    },
    /// Reads files whole, as text. Answered by [`Reply::Texts`].
    Read {
        /// Files; a directory stands for the files in it. What cannot be read is left out.
        paths: Vec<String>,
    },
    /// Reads part of a file, of [`CHUNK`] bytes at most. Answered by [`Reply::Chunk`].
    Fetch {
        /// The file.
        path: String,
        /// Bytes to skip.
        offset: u64,
    },
    /// Loads kernel modules in order.
    Load {
        /// File and parameters of each.
        modules: Vec<(String, String)>,
    },
    /// Starts the virtual machine of the layer above. Answered when the process runs.
    Boot {
        /// The VMM and its arguments. Its standard output is the console; the port is to be
        /// connected to the socket [`VM_SOCKET`].
        argv: Vec<String>,
    },
    /// Starts a program. Answered when it runs; [`Event::Exited`] follows.
    Start {
        /// What events call it.
        name: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// How its address space is made.
        #[serde(default)]
        layout: Layout,
        /// Stops it in the last moment of its life, its memory whole, until [`Command::Release`].
        #[serde(default)]
        hold: bool,
        /// Tells how many page faults it has had when it begins: [`Reply::Started`].
        #[serde(default)]
        count: bool,
        /// Asks whoever watches the machine to begin recording just before the program does.
        #[serde(default)]
        watched: bool,
    },
    /// Starts a program on a terminal of its own, or between pipes. Answered when it runs;
    /// [`Event::Screen`] follows, and [`Event::Exited`].
    Terminal {
        /// What events call it.
        name: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// Rows and columns of the terminal; without, there are pipes.
        size: Option<(u16, u16)>,
    },
    /// Types on a program's terminal, or writes into its pipe.
    Type {
        /// The program.
        name: String,
        /// The bytes in Base64. None are the end of a pipe.
        base64: String,
    },
    /// Sends a signal to a program that was started.
    Signal {
        /// Its name.
        name: String,
        /// Number of the signal.
        signal: i32,
    },
    /// Lets a held program end.
    Release {
        /// Its name.
        name: String,
    },
    /// Sends [`Event::Sample`] of files for as long as the layer lives.
    Sample {
        /// Files, as in [`Command::Read`].
        paths: Vec<String>,
        /// Milliseconds between samples.
        every: u64,
    },
    /// Sends a command to a VMM of this layer. Answered by [`Reply::Qmp`].
    Qmp {
        /// The socket on which it takes commands.
        socket: String,
        /// The command (QEMU QMP Reference Manual).
        execute: String,
        /// Its arguments, an object.
        arguments: serde_json::Value,
    },
    /// Asks whoever watches the machine to stop recording.
    StopWatching,
    /// Turns the layer off, with everything in it.
    PowerOff,
}

/// Where the kernel puts what a program maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// As for any program.
    #[default]
    Usual,
    /// Bottom up from a third of the address space and without randomisation, so that its addresses
    /// are told from those of any other program of the machine.
    Apart,
}

/// Socket that the VMM of the layer above connects its port to.
pub const VM_SOCKET: &str = "/run/vm.socket";

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The layer it is about.
    pub from: u8,
    /// Seconds since that layer's kernel started; of the layer below for its console.
    pub at: f64,
    /// What happened.
    pub event: Event,
}

/// What happened in a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The agent runs: first instruction of user space.
    Ready {
        /// Kernel release and version.
        kernel: String,
    },
    /// A command is done.
    Done {
        /// Of its [`Order`].
        id: u64,
        /// What it yields.
        reply: Reply,
    },
    /// A command failed.
    Failed {
        /// Of its [`Order`].
        id: u64,
        /// Why.
        reason: String,
    },
    /// A line on the layer's console, as the layer below sees it.
    Console {
        /// Without line end.
        line: String,
    },
    /// A line of a program's output.
    Output {
        /// The program.
        name: String,
        /// From standard error.
        error: bool,
        /// Without line end.
        line: String,
    },
    /// Bytes that a program wrote on its terminal.
    Screen {
        /// The program.
        name: String,
        /// The bytes in Base64.
        base64: String,
    },
    /// A program is about to end and held.
    Held {
        /// The program.
        name: String,
    },
    /// A program ended.
    Exited {
        /// The program.
        name: String,
        /// Exit status, or minus the signal that killed it.
        status: i32,
    },
    /// The virtual machine of this layer ended: its process is gone.
    Down {
        /// Exit status, or minus the signal that killed it.
        status: i32,
    },
    /// Values of files at one moment.
    Sample {
        /// Text by file.
        texts: BTreeMap<String, String>,
    },
}

/// What a command yields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Nothing to tell.
    Nothing,
    /// A process runs.
    Started {
        /// Page faults it has had when it begins, if they were asked for.
        #[serde(default)]
        faults: Option<u64>,
        /// Its number in that layer.
        pid: u32,
    },
    /// Text by file.
    Texts {
        /// Seconds since the layer's kernel started.
        at: f64,
        /// Text by file.
        texts: BTreeMap<String, String>,
    },
    /// What a VMM answers.
    Qmp {
        /// Its `return`.
        answer: serde_json::Value,
    },
    /// Part of a file.
    Chunk {
        /// The bytes in Base64.
        base64: String,
        /// No bytes follow.
        last: bool,
    },
}

/// The page faults of a process and of its children that were waited for, by what `/proc/PID/stat` says (man 5
/// proc).
pub fn page_faults(stat: &str) -> Option<u64> {
    // Of the fields behind the name, which may have spaces and brackets in it, the eighth to the eleventh: minor
    // ones, those of children, major ones, those of children.
    let (_, fields) = stat.rsplit_once(')')?;
    let faults: Vec<u64> =
        fields.split_whitespace().skip(7).take(4).map_while(|field| field.parse().ok()).collect();
    (faults.len() == 4).then(|| faults.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_are_those_of_a_process_and_its_children() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 20 3 4 5 6 7";
        assert_eq!(page_faults(stat), Some(127));
        assert_eq!(page_faults("7 (a) S 1 7 7 0 -1 4194304 100"), None);
        assert_eq!(page_faults(""), None);
    }

    #[test]
    fn a_message_is_one_line_and_reads_back() {
        let order = Order {
            to: 2,
            id: 7,
            command: Command::Start {
                name: "a\nb".into(),
                argv: vec!["/bin/true".into()],
                layout: Layout::Apart,
                hold: true,
                count: false,
                watched: false,
            },
        };
        let line = serde_json::to_string(&order).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order);
        let report = Report { from: 1, at: 0.5, event: Event::Down { status: -9 } };
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }

    #[test]
    fn words_of_a_program_alone_may_have_blanks_and_commas() {
        let program =
            ["/bin/qemu", "-append", "console=ttyS0 a,b", "\"\u{fc}\""].map(str::to_owned);
        let parameter = alone_parameter(&program);
        assert_eq!(alone(&format!("quiet {parameter} x=1\n")), Ok(Some(program.into())));
        assert_eq!(alone("quiet strata.layer=1"), Ok(None));
    }

    #[test]
    fn a_program_alone_that_is_none_is_refused() {
        for wrong in ["*", "bm9uZQ==", "e30="] {
            let error = alone(&format!("{ALONE_PARAMETER}{wrong}")).unwrap_err();
            assert!(error.starts_with("the kernel parameter strata.alone=: "), "{error}");
        }
        assert!(alone(&alone_parameter(&[])).unwrap_err().ends_with("no program"));
    }
}

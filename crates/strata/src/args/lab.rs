//! Options of `strata lab`.

use crate::values::whole;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use strata_lab::{KernelVariant, Make};

/// What `strata lab` does.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Get Debian's kernel image and build the lab's own kernels; goes on where it was interrupted.
    Build {
        /// A kernel to build besides vanilla, which always is: aligned has Strata's alignment, debug
        /// has it too and checks itself. May be given again.
        #[arg(long, value_name = "KERNEL", value_enum)]
        kernel: Vec<KernelChoice>,

        /// The machine that they are for; of an Intel one the emulator is built too.
        #[arg(long, value_name = "MACHINE", value_enum, default_value = "amd")]
        machine: MachineChoice,
    },
    /// Boot the layers, run a program or a scenario's steps in them, and report what happened.
    Run(Box<LabRunArgs>),
    /// Run a program in the layers and through the model of the same machine, and set side by side what both
    /// count.
    Predict(Box<LabPredictArgs>),
    /// Set side by side what 'lab predict --json' found of several scenarios: a table in Markdown.
    Table {
        /// What it wrote, a column each.
        #[arg(value_name = "FILE.json", required = true)]
        files: Vec<PathBuf>,

        /// Where the table goes; - is the standard output.
        #[arg(short, long, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// Do small things again and again in VMs and nested VMs of several kinds, and tell what one costs in exits,
    /// beside what the model says.
    Levels(LabLevelsArgs),
    /// Boot the layers and look around in one of them.
    Shell {
        /// The layer: 0 for L0, 1 for L1, 2 for L2.
        #[arg(long, value_name = "N", value_parser = whole::<u8>(0, 2))]
        level: u8,

        /// The layers: a name from 'strata list scenarios', or a file.
        #[arg(long, value_name = "NAME|FILE.toml", default_value = "clean")]
        scenario: String,

        /// The machine instead of the scenario's.
        #[arg(long, value_name = "MACHINE", value_enum)]
        machine: Option<MachineChoice>,

        /// Boot the layers, even where an earlier run kept the same ones running, and keep nothing.
        #[arg(long)]
        afresh: bool,
    },
    /// Remove what was built, downloaded and logged.
    Clean,
    /// Print help on the lab or one of its commands.
    Help {
        /// The command.
        #[arg(value_name = "COMMAND")]
        topic: Vec<String>,
    },
}

/// Kernels that `strata lab build` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelChoice {
    /// Debian's source as it is.
    Vanilla,
    /// With Strata's alignment.
    Aligned,
    /// The same, checking itself: slow.
    Debug,
}

impl From<KernelChoice> for KernelVariant {
    fn from(choice: KernelChoice) -> Self {
        match choice {
            KernelChoice::Vanilla => Self::Vanilla,
            KernelChoice::Aligned => Self::Aligned,
            KernelChoice::Debug => Self::Debug,
        }
    }
}

/// Machines that the lab emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachineChoice {
    /// AMD's processors, emulated by QEMU.
    Amd,
    /// Intel's, emulated by Bochs.
    Intel,
}

impl From<MachineChoice> for Make {
    fn from(choice: MachineChoice) -> Self {
        match choice {
            MachineChoice::Amd => Self::Amd,
            MachineChoice::Intel => Self::Intel,
        }
    }
}

/// Options of `strata lab predict`.
#[derive(Args, Clone, Debug)]
pub struct LabPredictArgs {
    /// The layers and their program, the first that the innermost one runs: a name from 'strata list scenarios',
    /// or a file.
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "clean")]
    pub scenario: String,

    /// The kernel of L0 instead of the scenario's; one with alignment is the policy strata in the model where the
    /// scenario switches alignment on.
    #[arg(long, value_name = "KERNEL", value_enum)]
    pub kernel: Option<KernelChoice>,

    /// The machine instead of the scenario's.
    #[arg(long, value_name = "MACHINE", value_enum)]
    pub machine: Option<MachineChoice>,

    /// How often the layers run it; with more than one run each boots the layers anew, and least and most are
    /// shown.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, 100))]
    pub runs: u32,

    /// Write both counts as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Seconds the program may take; then it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = whole::<u64>(1, u64::MAX))]
    pub limit: u64,

    /// What to record of it; then TLB misses are compared, too, of a run of its own.
    #[command(flatten)]
    pub trace: TraceArgs,

    /// Copy a file or a directory with all that is in it to the same place in the innermost layer;
    /// may be repeated.
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,

    /// A program to run instead of the scenario's, after --.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What is recorded of a program in the layers.
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// Record the true accesses of the program in the innermost layer here, and the true page tables
    /// of the same moment in FILE.tables; 'strata run FILE --tables FILE.tables' replays them.
    #[arg(id = "trace", long = "trace", value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Accesses to leave out before recording begins.
    #[arg(id = "trace-skip", long = "trace-skip", value_name = "N", default_value = "0", requires = "trace", value_parser = strata_text::parse_count)]
    pub skip: u64,

    /// Accesses to record at most.
    #[arg(id = "trace-limit", long = "trace-limit", value_name = "N", default_value = "10M", requires = "trace", value_parser = strata_text::parse_count)]
    pub limit: u64,
}

/// Options of `strata lab levels`.
#[derive(Args, Clone, Debug)]
pub struct LabLevelsArgs {
    /// The layers, whose steps are left out: a name from 'strata list scenarios', or a file; may be given again
    /// [default: each below levels/ that is for the machine, but levels/emulated].
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub scenario: Vec<String>,

    /// The machine instead of the scenarios' [default: theirs; without --scenario, amd].
    #[arg(long, value_name = "MACHINE", value_enum)]
    pub machine: Option<MachineChoice>,

    /// Write both counts as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Boot the layers, even where an earlier run kept the same ones running, and keep nothing.
    #[arg(long)]
    pub afresh: bool,

    /// Seconds that each program may take; then it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = whole::<u64>(1, u64::MAX))]
    pub limit: u64,
}

/// Options of `strata lab run`.
#[derive(Args, Clone, Debug)]
pub struct LabRunArgs {
    /// The layers and what happens in them: a name from 'strata list scenarios', or a file.
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "clean")]
    pub scenario: String,

    /// The kernel of L0 instead of the scenario's.
    #[arg(long, value_name = "KERNEL", value_enum)]
    pub kernel: Option<KernelChoice>,

    /// The machine instead of the scenario's.
    #[arg(long, value_name = "MACHINE", value_enum)]
    pub machine: Option<MachineChoice>,

    /// Write everything found as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page to look at: everything found, as pictures, in one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write what was done as JUnit XML, for continuous integration: a test that all layers boot, and one for
    /// each step. It is written when the machine fails as well.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Write the report here [default: standard output; with a program standard error, since standard
    /// output is the program's].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Boot the layers, even where an earlier run kept the same ones running, and keep nothing.
    #[arg(long)]
    pub afresh: bool,

    /// Seconds the program may take; then it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = whole::<u64>(1, u64::MAX))]
    pub limit: u64,

    /// Copy a file or a directory with all that is in it to the same place in the innermost layer;
    /// may be repeated.
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,

    /// Give the program this file as its standard input; - is the standard input, read to its end
    /// before anything boots [default: empty].
    #[arg(long, value_name = "FILE", requires = "program")]
    pub stdin: Option<PathBuf>,

    /// What to record of it.
    #[command(flatten)]
    pub trace: TraceArgs,

    /// A program to run in the innermost layer instead of the scenario's steps, after --.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

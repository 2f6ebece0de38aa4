//! The command line.

use crate::guest_memory::GuestMemory;
use crate::inspect_args::{BillArgs, JoinArgs, ScanArgs, TopArgs};
use crate::sample::Sample;
use crate::values::{SizeAndWays, coloured_cache, l4, positive, stack, vllc, whole};
use crate::vm_args::VmArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use strata_engine::{ColouredCache, Colours, PagePlacement, RequestLoad, StackKind};
use strata_hardware::WayMask;
use strata_lab::{KernelVariant, Make};

/// Predicts what memory virtualisation costs.
///
/// Runs an unmodified Linux program, a recording of one or a generated workload through a
/// modelled native machine, virtual machine or nested virtual machine under several huge-page
/// policies, and says what each costs and why.
#[derive(Debug, Parser)]
#[command(
    name = "strata",
    version = crate::version::LINE,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "The words of the output: 'strata help terms'. A first run, line by line: \
                  docs/first-run.md. Every command with examples: docs/cli.md."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workload through modelled machines and compare what they cost.
    #[command(
        after_help = "docs/cli.md has examples of every option, docs/concepts.md explains the \
                      output, docs/model.md what is computed."
    )]
    Run(Box<RunArgs>),
    /// Record what a program does to its memory, or convert another trace.
    #[command(after_help = "docs/cli.md has examples, docs/trace-format.md the format.")]
    Record(RecordArgs),
    /// Draw a page walk in two dimensions, name every reference and count them.
    #[command(after_help = "docs/concepts.md explains walks and their references.")]
    Walk(WalkArgs),
    /// Take a snapshot of this layer: its huge pages, and how the memory of its VMs is backed.
    #[command(after_help = "docs/inspect.md says what is read, and what it costs.")]
    Scan(ScanArgs),
    /// Join the snapshots of a stack: which huge pages are well aligned, and why not.
    #[command(after_help = "docs/inspect.md has every cause and its remedy.")]
    Join(JoinArgs),
    /// Make a page to look at from the JSON of a result of before.
    #[command(after_help = "docs/report.md shows the page and says how to read it.")]
    View(ViewArgs),
    /// Show huge pages and the backing of VMs on this machine, refreshed.
    #[command(
        after_help = "docs/inspect.md says what is read, docs/concepts.md what the words mean."
    )]
    Top(TopArgs),
    /// Watch what exits cost the VMs on this machine: by level and reason, and what would help.
    #[command(after_help = "docs/exits.md says how it is counted, and what it costs.")]
    Bill(BillArgs),
    /// Run real kernels, one in another, on an emulated machine with nested virtualisation.
    #[command(
        disable_help_subcommand = true,
        after_help = "docs/lab.md is a tutorial, docs/lab-scenarios.md has every key of a scenario."
    )]
    Lab {
        /// What to do with it.
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Show a paper's figures beside what the model finds, by running what they take.
    #[command(
        after_help = "Results are kept: a second run goes on where the first was interrupted. \
                      docs/papers.md says what is run and why."
    )]
    Paper(PaperArgs),
    /// Prepare workloads: record real programs once, to run them by name.
    #[command(
        disable_help_subcommand = true,
        after_help = "docs/cli.md says what stands for what, and how to run what is prepared."
    )]
    Workloads {
        /// What to do with them.
        #[command(subcommand)]
        command: WorkloadsCommand,
    },
    /// List what can be chosen, one line each.
    #[command(
        after_help = "docs/cli.md says how to use what is listed, docs/adding-a-policy.md how to \
                      add a policy."
    )]
    List {
        /// What to list.
        #[arg(value_enum)]
        what: Listing,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "docs/cli.md has an example.")]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a directory.
    #[command(after_help = "docs/cli.md has an example.")]
    Manual {
        /// The directory, which is made if it is not there.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print help on the program, on a command, or ('strata help terms') on the words of its output.
    #[command(after_help = "docs/concepts.md explains the terms, with drawings.")]
    Help {
        /// The command, or terms.
        #[arg(value_name = "COMMAND|terms")]
        topic: Vec<String>,
    },
}

/// What `strata list` knows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Listing {
    /// Huge-page policies and the papers they come from.
    Policies,
    /// CPU presets.
    Cpus,
    /// Generators and trace formats.
    Workloads,
    /// Everything `--set` can set, with its default and its source.
    Parameters,
    /// Scenarios of the lab.
    Scenarios,
}

/// Papers whose figures can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PaperChoice {
    /// Cache colours in nested VMs (IEEE TC 2024).
    Xplace,
}

/// Options of `strata paper`.
#[derive(Args, Clone, Debug)]
pub struct PaperArgs {
    /// The paper.
    #[arg(value_enum, value_name = "PAPER")]
    pub paper: PaperChoice,

    /// Run this many times as many accesses.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,

    /// Runs at once [default: one per core].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub jobs: Option<NonZeroUsize>,

    /// Print the command of every run instead, in the order in which they are made.
    #[arg(long)]
    pub list: bool,

    /// Run all anew, and forget what was kept.
    #[arg(long)]
    pub fresh: bool,

    /// Write tables and the command of every run as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page to look at: everything found, as pictures, in one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the tables here, as Markdown [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A factor above 0.
fn scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
    factor.ok_or_else(|| "give a number above 0, such as 0.1 or 10".to_owned())
}

/// What `strata workloads` does.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkloadsCommand {
    /// Record the workloads of these names, or all, that are not recorded yet; 'strata run --workload
    /// prepared:NAME' runs one.
    Prepare(PrepareArgs),
}

/// Options of `strata workloads prepare`.
#[derive(Args, Clone, Debug)]
pub struct PrepareArgs {
    /// The workloads [default: all].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Do nothing but say what there is, which published program it stands for, and how large it is.
    #[arg(long)]
    pub list: bool,

    /// Install the Debian packages that are missing, as root.
    #[arg(long)]
    pub install: bool,

    /// Record anew what is recorded already.
    #[arg(long)]
    pub again: bool,
}

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
    Run(LabRunArgs),
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

    /// Write the report here [default: standard output; with a program standard error, since standard
    /// output is the program's].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

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

    /// Record the true accesses of the program in the innermost layer here, and the true page tables
    /// of the same moment in FILE.tables; 'strata run FILE --tables FILE.tables' replays them.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Accesses to leave out before recording begins.
    #[arg(long, value_name = "N", default_value = "0", requires = "trace", value_parser = strata_text::parse_count)]
    pub trace_skip: u64,

    /// Accesses to record at most.
    #[arg(long, value_name = "N", default_value = "10M", requires = "trace", value_parser = strata_text::parse_count)]
    pub trace_limit: u64,

    /// A program to run in the innermost layer instead of the scenario's steps, after --.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Where the stream comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct Input {
    /// A recording, a ChampSim or CloudSuite trace (raw, .gz, .xz) or valgrind lackey output; - is
    /// the standard input.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,

    /// A generator, such as random:size=1GiB,accesses=50M; see 'strata list workloads'. Or a prepared
    /// workload, such as prepared:redis; see 'strata workloads prepare --list'.
    #[arg(long, value_name = "SPEC")]
    pub workload: Option<String>,

    /// The format of the trace; detected when not given.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,

    /// Accesses to pass over first. 'strata run' lets the first touch of each page have its effect on
    /// memory, 'strata record' leaves them out [default: 0].
    #[arg(long, value_name = "N", value_parser = strata_text::parse_count)]
    pub skip: Option<u64>,

    /// Accesses to count or record at most, after those skipped and the warm-up; then a live program
    /// runs on unobserved.
    #[arg(long, value_name = "N", value_parser = limit)]
    pub limit: Option<u64>,

    /// Begin and end where the program says so, by the marks of docs/examples/strata.h; --skip,
    /// --warmup and --limit count from there.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub marked: Option<bool>,

    /// A program to run live, after --.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl Input {
    /// The files that it names, each with what it is. A program without a directory is looked for
    /// elsewhere.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let program = self.program.first().map(Path::new);
        let named = program.filter(|path| path.components().count() > 1 || path.is_absolute());
        let trace = self.trace.as_deref().filter(|path| *path != Path::new("-"));
        let trace = trace.map(|path| ("the trace", path));
        trace.into_iter().chain(named.map(|path| ("the program", path))).collect()
    }
}

/// Options of `strata run`. None has a default here: a configuration file comes in between.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,

    /// Stacks to model: native, vm, nested [default: nested].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = stack)]
    pub stack: Option<Vec<StackKind>>,

    /// Policies to compare; all results are relative to the first [default:
    /// base,thp,gemini,xgemini,aligned].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub policy: Option<Vec<String>>,

    /// A CPU preset or a file like one [default: broadwell-e5-2620v4].
    #[arg(long, value_name = "PRESET|FILE.toml")]
    pub cpu: Option<String>,

    /// Use these page tables, captured from a real machine with the recording, instead of a
    /// modelled stack; compares them with the same tables without huge pages and with every huge
    /// page well aligned.
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,

    /// Levels of every page table, 4 or 5 [default: 4].
    #[arg(long, value_parser = whole::<u8>(4, 5))]
    pub levels: Option<u8>,

    /// Memory of the guest, or a multiple of what the workload touches; L1 and the host get more in
    /// proportion [default: 8GiB, or half as much again as the workload touches].
    #[arg(long, value_name = "SIZE|3x", value_parser = GuestMemory::parse)]
    pub memory: Option<GuestMemory>,

    /// Fragmentation of memory before the program starts: none, an FMFI from 0 to 1, or one per
    /// layer as guest,l1,host [default: 0.8].
    #[arg(long, value_name = "none|FMFI|G,L1,HOST", value_parser = fragmentation)]
    pub fragmentation: Option<Fragmentation>,

    /// The VM ran something big before, so the layers below already back its memory.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub reused: Option<bool>,

    /// What the TLB does with a huge page not backed by one: caches pieces of it, or nothing
    /// [default: splinter].
    #[arg(long, value_name = "splinter|no-fill", value_parser = ["splinter", "no-fill"])]
    pub tlb_misaligned: Option<String>,

    /// Which caches page walks have: none, those of the guest's table, of both tables, or a nested TLB
    /// besides [default: all that the CPU has].
    #[arg(long, value_name = "none|1d|2d|2d+ntlb", value_parser = ["none", "1d", "2d", "2d+ntlb"])]
    pub walk_caches: Option<String>,

    /// Where the guest's kernel puts base pages, natively the host's: wherever Linux does, or by cache
    /// colour: random, bin-hopping, colouring, best-bin or hierarchical [default: linux].
    #[arg(long, value_name = "NAME")]
    pub placement: Option<PagePlacement>,

    /// How the last-level cache is made: plain, of one piece with LRU replacement, or with the slices,
    /// hash, replacement and inclusion of the CPU [default: plain].
    #[arg(long, value_name = "plain|cpu", value_parser = ["plain", "cpu"])]
    pub llc: Option<String>,

    /// Ways of the last-level cache that each VM may fill: a number, or a mask such as 0x7c0 as CAT
    /// takes it [default: all].
    #[arg(long, value_name = "WAYS|0xMASK")]
    pub llc_ways: Option<WayMask>,

    /// Tell misses of the last-level cache apart: cold, capacity and conflict.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub llc_misses: Option<bool>,

    /// A cache at the memory behind the last level, such as 1GiB or 1GiB/2 with its ways [default: none;
    /// direct-mapped]. --set cache.l4.cycles= sets its latency.
    #[arg(long, value_name = "SIZE[/WAYS]", value_parser = l4)]
    pub l4: Option<SizeAndWays>,

    /// The cache whose colours pages are placed by, by --placement and by policies: l2, each core's own,
    /// llc or l4 [default: llc].
    #[arg(long, value_name = "l2|llc|l4", value_parser = coloured_cache)]
    pub colours_of: Option<ColouredCache>,

    /// The last-level cache that VMs are told of, whose colours their kernels place pages by: its colours,
    /// or its size and ways, such as 512KiB/4 [default: one like the host's].
    #[arg(long, value_name = "COLOURS|SIZE/WAYS", value_parser = vllc)]
    pub vllc: Option<Colours>,
    /// Run windows of the stream in detail and estimate the rest: auto, or lengths in instructions as
    /// interval=10M,window=100k,warm=300k. Events and first touches of pages are all run.
    #[arg(long, value_name = "auto|LENGTHS")]
    pub sample: Option<Sample>,

    /// How often requests arrive, if the stream has any: as a share of what a policy can serve, of
    /// which the first is taken if none is named [default: 0.7].
    #[arg(long, value_name = "SHARE[@POLICY]")]
    pub request_load: Option<RequestLoad>,

    /// Accesses before counting begins [default: 0].
    #[arg(long, value_name = "N", value_parser = strata_text::parse_count)]
    pub warmup: Option<u64>,

    /// Seed of everything random; equal seeds give equal bytes [default: 1].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX))]
    pub seed: Option<u64>,

    /// Most machines to hold in memory at once; the stream is read again for the rest [default:
    /// as many as fit]. A live program's cannot be: all run together.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub jobs: Option<NonZeroUsize>,

    /// Threads to use [default: one per core]. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<NonZeroUsize>,

    /// Write everything found as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page to look at: everything found, as pictures, in one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write counters over time, and exits as slices, as a trace that ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE")]
    pub trace_events: Option<PathBuf>,

    /// Write where exits took cycles as folded stacks, for flame graphs.
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,

    /// Write the table here [default: standard output; for a live program standard error, since
    /// standard output is the program's].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Say where misalignment comes from: which layer, which cause, which addresses.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub explain: Option<bool>,

    /// Add to the JSON what pictures are made of: every region of the guest through all layers, states at
    /// fixed intervals of simulated time, free blocks. --html and --trace-events do.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub detail: Option<bool>,

    /// Say where every cycle went, the runs side by side: work, stalls, walks, faults and exits by layer.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bill: Option<bool>,

    /// A VM on a host that all VMs given share, with a workload, trace or program of its own; may be
    /// repeated. Keys are stack, policy, memory, cores, start, repeat, placement, llc-ways, vllc, balloon,
    /// in, format, workload, trace and program; docs/cli.md explains them.
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]", value_parser = VmArgs::parse)]
    pub vm: Vec<VmArgs>,

    /// Memory of the host that VMs share [default: 128 % of what they have together].
    #[arg(long, value_name = "SIZE", value_parser = strata_text::parse_size)]
    pub host_memory: Option<u64>,

    /// Run each VM without the others as well, and say how much they slow it down.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub alone: Option<bool>,

    /// Set a model constant or policy parameter; may be repeated. See 'strata list parameters'.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,

    /// Read options from a file; the command line wins.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
}

impl RunArgs {
    /// Whether results are to have what pictures are made of. Of captured tables there is no more.
    pub fn detail(&self) -> bool {
        let pictures = self.html.is_some() || self.trace_events.is_some();
        self.detail.unwrap_or(pictures) && self.tables.is_none()
    }
}

/// Options of `strata record`.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,

    /// Record windows of the stream, and what happens between them: auto, or lengths in instructions as
    /// 'strata run' takes them.
    #[arg(long, value_name = "auto|LENGTHS")]
    pub sample: Option<Sample>,

    /// Seed of where windows lie [default: 1].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX), requires = "sample")]
    pub seed: Option<u64>,

    /// The recording to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Options of `strata view`.
#[derive(Args, Clone, Debug)]
pub struct ViewArgs {
    /// What --json of strata run, join, lab or paper wrote; - is the standard input.
    #[arg(value_name = "FILE.json")]
    pub json: PathBuf,

    /// Write the page here; - is the standard output [default: the name of the JSON with .html].
    #[arg(short, long, value_name = "FILE.html")]
    pub output: Option<PathBuf>,
}

/// Options of `strata walk`.
#[derive(Args, Clone, Debug)]
pub struct WalkArgs {
    /// Levels of the guest's page table.
    #[arg(long, value_name = "N", default_value = "4", value_parser = whole::<u8>(4, 5))]
    pub guest_levels: u8,

    /// Levels of the second stage; 0 walks natively.
    #[arg(long, value_name = "N", default_value = "4", value_parser = ["0", "4", "5"])]
    pub host_levels: String,

    /// Page size of the guest: 4k, 2m or 1g.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = ["4k", "2m", "1g"])]
    pub guest_page: String,

    /// Page size of the second stage: 4k (as by default), 2m or 1g.
    #[arg(long, value_name = "SIZE", value_parser = ["4k", "2m", "1g"])]
    pub host_page: Option<String>,

    /// Write the walk as JSON in place of the drawing; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// FMFI of the layers: one for all, or guest, L1 and host.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragmentation(pub Vec<f64>);

fn fragmentation(text: &str) -> Result<Fragmentation, String> {
    let parse = |part: &str| match part.trim() {
        "none" => Ok(0.0),
        part => part.parse().ok().filter(|fmfi| (0.0..=1.0).contains(fmfi)).ok_or_else(|| {
            format!("'{part}' is no FMFI; write none, a number from 0 to 1, or guest,l1,host")
        }),
    };
    let values: Vec<f64> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    match values.len() {
        1 | 3 => Ok(Fragmentation(values)),
        n => Err(format!("{n} layers given; write one value for all, or three: guest,l1,host")),
    }
}

fn limit(text: &str) -> Result<u64, String> {
    match strata_text::parse_count(text)? {
        0 => Err("nothing would be left; give a number, or leave it out for all".to_owned()),
        count => Ok(count),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_cannot_be_read_is_answered_in_plain_words() {
        fn check(path: &[&str], command: &clap::Command) {
            for option in command.get_arguments().filter(|option| option.get_long().is_some()) {
                let named = format!("--{}", option.get_long().unwrap());
                for value in ["x", "", "-1", "1e3", "99999999999999999999999"] {
                    let given = format!("{named}={value}");
                    let words = path.iter().copied().chain([&given[..]]);
                    let Err(error) = Cli::try_parse_from(words) else { continue };
                    let message = crate::failure::Failure::from_clap(&error).message;
                    for raw in
                        ["invalid digit", "number too", "cannot parse", "zero", "provided string"]
                    {
                        assert!(!message.contains(raw), "{path:?} {given}: {message}");
                    }
                }
            }
            for inner in command.get_subcommands() {
                check(&[path, &[inner.get_name()]].concat(), inner);
            }
        }
        check(&["strata"], &Cli::command());
    }

    #[test]
    fn fragmentation_is_one_value_or_three() {
        assert_eq!(fragmentation("none"), Ok(Fragmentation(vec![0.0])));
        assert_eq!(fragmentation("0.5,none, 1"), Ok(Fragmentation(vec![0.5, 0.0, 1.0])));
        for wrong in ["", "2", "-0.1", "NaN", "0.1,0.2", "0,0,0,0"] {
            assert!(fragmentation(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn assignments_need_a_name() {
        assert_eq!(assignment("a.b = 1=2"), Ok(("a.b".to_owned(), "1=2".to_owned())));
        assert!(assignment("a").is_err() && assignment("=1").is_err());
    }
}

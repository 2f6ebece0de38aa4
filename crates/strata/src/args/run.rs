//! Options of `strata run`.

use super::input::Input;
use crate::guest_memory::GuestMemory;
use crate::sample::Sample;
use crate::values::{SizeAndWays, coloured_cache, l4, paging, positive, rate, stack, vllc, whole};
use crate::vm_args::VmArgs;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use strata_engine::{ColouredCache, Colours, PagePlacement, Paging, RequestLoad, StackKind};
use strata_hardware::WayMask;

/// Ticks a second at most: ten times the most that Linux can be built with.
const MOST_TICKS: u64 = 10_000;

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

    /// How a hypervisor has memory for a VM that runs programs: by a second stage that hardware walks, or by
    /// shadows of its page tables; in a nested VM L1 keeps these, on L0's second stage or on shadows of them
    /// [default: nested].
    #[arg(long, value_name = "nested|shadow|shadow-on-shadow", value_parser = paging)]
    pub paging: Option<Paging>,

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
    /// Run windows of the stream in detail and estimate the rest: auto, which chooses them as the stream
    /// is read (auto,within=2% says how narrow bounds are to be); phases, which finds parts that are alike
    /// in a first run (phases,interval=500k,warm=1600k,most=20); or lengths in instructions, as
    /// interval=10M,window=100k,warm=300k,whole=10M. Events and first touches of pages are all run.
    #[arg(long, value_name = "auto|phases|LENGTHS")]
    pub sample: Option<Sample>,

    /// How often requests arrive, if the stream has any: as a share of what a policy can serve, of
    /// which the first is taken if none is named [default: 0.7].
    #[arg(long, value_name = "SHARE[@POLICY]")]
    pub request_load: Option<RequestLoad>,

    /// Ticks a second of every kernel's timer on each of its CPUs; in VMs they exit [default: 0, none].
    #[arg(long, value_name = "HZ", value_parser = whole::<u32>(0, MOST_TICKS))]
    pub tick_hz: Option<u32>,

    /// Requests a second of each CPU to devices that software plays, which in VMs exit; program for those that
    /// system calls of the program lead to [default: program].
    #[arg(long, value_name = "HZ|program|none", value_parser = rate)]
    pub io_hz: Option<String>,

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

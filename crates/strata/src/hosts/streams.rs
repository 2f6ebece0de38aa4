//! The streams of the VMs of a host.

use super::plan::Plan;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::vm_args::VmArgs;
use crate::workload::refuse_sampled_where;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;
use strata_engine::OpenError;
use strata_stream::{Batch, Fill, Outcome, Source, WorkloadInfo};
use strata_workloads::record::{Encoder, Reader};
use strata_workloads::{Before, Excerpt, Part};

/// The streams of all VMs, each to be opened as often as one likes.
pub struct Streams<'a> {
    pub plan: &'a Plan,
    pub interrupt: &'a Interrupt,
    /// What live programs did, by VM.
    pub recordings: BTreeMap<String, File>,
}

impl Streams<'_> {
    /// Opens the stream of the VM of this name, from its beginning.
    pub fn open(&self, name: &str) -> Result<Box<dyn Source>, OpenError> {
        let vm = self.plan.vms.iter().find(|vm| vm.name == name).expect("hosts have these VMs");
        let Some(recording) = self.recordings.get(name) else {
            let input = vm.input.as_ref().expect("guests run something");
            let source = input.open(self.plan.part, Before::Touches, &self.interrupt.flag)?;
            let remedy = "give the VM one that is not (windows of several streams do not meet)";
            refuse_sampled_where(&source.info(), remedy)?;
            return Ok(source);
        };
        // A file without a name, opened anew: every reader has a place of its own in it.
        let path = PathBuf::from(format!("/proc/self/fd/{}", recording.as_raw_fd()));
        let reader = || {
            let file = File::open(&path).map_err(|error| OpenError(error.to_string()))?;
            let words = vm.input.as_ref().expect("it ran").words();
            Reader::new(file, words[1..].join(" ")).map_err(|error| OpenError(error.to_string()))
        };
        let source: Box<dyn Source> = Box::new(Live { reader: reader()?, info: vm.live_info() });
        Ok(match self.plan.part.is_whole() {
            true => source,
            false => Box::new(Excerpt::new(source, self.plan.part, Before::Touches)),
        })
    }
}

/// The recording of a live program, told of as the program.
struct Live {
    reader: Reader<File>,
    info: WorkloadInfo,
}

impl Source for Live {
    fn info(&self) -> WorkloadInfo {
        let recorded = self.reader.info();
        WorkloadInfo {
            footprint_bytes: recorded.footprint_bytes,
            accesses: recorded.accesses,
            notes: recorded.notes,
            exit_status: recorded.exit_status,
            ..self.info.clone()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, strata_stream::SourceError> {
        self.reader.fill(batch)
    }
}

/// Runs the live programs, all at the same time, and keeps what they do: every host makes the same of
/// it, at its own pace.
pub fn record(plan: &Plan, interrupt: &Interrupt) -> Result<BTreeMap<String, File>, Failure> {
    let live: Vec<&VmArgs> = plan.vms.iter().filter(|vm| vm.is_live()).collect();
    if live.is_empty() {
        return Ok(BTreeMap::new());
    }
    if !interrupt.is_told() {
        interrupt.pass_on();
    }
    let recorded: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> =
            live.iter().map(|vm| scope.spawn(|| record_one(vm, plan.part, interrupt))).collect();
        let ended = running.into_iter().map(|thread| thread.join().expect("nothing panics"));
        ended.collect()
    });
    if interrupt.happened() {
        let message = format!("{} before the hosts were run", interrupt.reason());
        return Err(Failure { message, status: interrupt.status() });
    }
    let named = live.iter().zip(recorded);
    named
        .map(|(vm, file)| match file {
            Ok(file) => Ok((vm.name.clone(), file)),
            Err(why) => Err(Failure::failed(format!("VM '{}': {why}", vm.name))),
        })
        .collect()
}

/// Keeps the stream of a live program in a file without a name.
fn record_one(vm: &VmArgs, part: Part, interrupt: &Interrupt) -> Result<File, String> {
    let input = vm.input.as_ref().expect("it is live");
    // What is passed over touches memory, so all of it is kept up to the limit.
    let whole =
        Part { skip: 0, limit: part.limit.map(|limit| limit.saturating_add(part.skip)), ..part };
    let whole = if part.marked { Part::default() } else { whole };
    let source = input.open(whole, Before::Touches, &interrupt.flag);
    let mut source = source.map_err(|error| error.to_string())?;
    let cannot = |error: std::io::Error| {
        let directory = std::env::temp_dir();
        format!(
            "cannot keep what the program does in {}: {error}; name another directory with TMPDIR",
            directory.display()
        )
    };
    let file = tempfile::tempfile().map_err(cannot)?;
    let mut encoder = Encoder::new(BufWriter::new(file)).map_err(cannot)?;
    let mut batch = Batch::new();
    loop {
        let filled = source.fill(&mut batch);
        source.news().iter().for_each(|news| crate::complain::complain(news));
        encoder.push(&batch).map_err(cannot)?;
        if filled.map_err(|error| error.to_string())? == Fill::End {
            break;
        }
    }
    let info = source.info();
    let outcome = Outcome {
        tables: None,
        command: info.argv,
        exit_status: info.exit_status,
        partial: None,
        notes: info.notes,
    };
    let (sink, _) = encoder.finish(outcome).map_err(cannot)?;
    sink.into_inner().map_err(|error| cannot(error.into_error()))
}

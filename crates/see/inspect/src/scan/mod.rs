//! A scan of one layer, from the head to the tail.

pub mod backing;
mod caches;
mod cpuid;
pub mod frame_set;
pub mod guest;
pub mod hot;
pub mod hypervisor;
pub mod infer;
pub mod layout;
pub mod pagemap;
pub mod qmp;
pub mod settings;
mod sys;
pub mod tree;

use crate::error::Error;
use crate::scan::pagemap::{AddressSpace, FrameFlags, Method, gone};
use crate::scan::tree::Tree;
use crate::snapshot::entry::flags;
use crate::snapshot::format::{FileWriter, Writer};
use crate::snapshot::model::{Blind, Head, SlotSource, Tail, Vm};
use crate::snapshot::{Sink, Snapshot};
use backing::Merged;
use guest::Looked;
use hot::{Used, Watch};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// Scans a layer into memory, after watching what its VMs use where that is wanted.
///
/// # Errors
/// When there is no `/proc`.
pub fn scan(tree: &Tree, watch: Option<Watch<'_>>) -> Result<Snapshot, Error> {
    let mut snapshot = Snapshot::default();
    scan_into(tree, watch, &mut snapshot).map_err(|error| cannot(tree, error))?;
    Ok(snapshot)
}

/// Scans a layer into a file, which appears when it is whole; gives its bytes and the tail. A device
/// or a pipe is written to as it is, and its bytes are not known: 0.
///
/// # Errors
/// When there is no `/proc` or the file cannot be written.
pub fn scan_to_file(
    tree: &Tree,
    watch: Option<Watch<'_>>,
    path: &Path,
) -> Result<(u64, Tail), Error> {
    if is_special(path) {
        let device = OpenOptions::new().write(true).open(path);
        let device = device.map_err(|error| Error::write(path, error))?;
        return Ok((0, scan_to(tree, watch, BufWriter::new(device))?));
    }
    let mut file = FileWriter::create(path, watch.is_some())?;
    check(tree)?;
    let tail =
        scan_into(tree, watch, &mut file.writer).map_err(|error| Error::write(path, error))?;
    Ok((file.finish()?, tail))
}

/// Whether a path is a device or a pipe, which must not be replaced by a file.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Scans a layer into anything that takes bytes; gives the tail.
///
/// # Errors
/// When there is no `/proc` or the bytes are not taken.
pub fn scan_to(tree: &Tree, watch: Option<Watch<'_>>, output: impl Write) -> Result<Tail, Error> {
    check(tree)?;
    let failed = |error| Error::write(Path::new("the snapshot"), error);
    let mut writer = Writer::new(output, watch.is_some()).map_err(failed)?;
    let tail = scan_into(tree, watch, &mut writer).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(tail)
}

fn check(tree: &Tree) -> Result<(), Error> {
    tree.processes().map(drop).map_err(|_| Error::NoProc(tree.root().to_owned()))
}

fn cannot(tree: &Tree, error: io::Error) -> Error {
    match check(tree) {
        Err(no_proc) => no_proc,
        Ok(()) => Error::read(tree.root(), error),
    }
}

/// A scan under way.
struct Scan<'a, S> {
    tree: &'a Tree,
    sink: &'a mut S,
    frames: FrameFlags,
    used: Option<Used>,
    tail: Tail,
}

/// Scans a layer; the tail is given to the sink and back.
///
/// # Errors
/// When the sink refuses, or there is no `/proc`.
pub fn scan_into(tree: &Tree, watch: Option<Watch<'_>>, sink: &mut impl Sink) -> io::Result<Tail> {
    // Before all else, so that what is seen of the layers is of one moment.
    let watched = match watch {
        Some(watch) => hot::watch(tree, &tree.processes()?, watch),
        None => hot::Found::default(),
    };
    let begun = Instant::now();
    let head = settings::head(tree);
    let pids = tree.processes()?;
    let tail = Tail { blind: watched.blind, ..Tail::default() };
    let used = watched.used;
    let mut scan = Scan { tree, sink, frames: FrameFlags::open(tree), used, tail };
    scan.sink.head(head.clone())?;
    scan.processes(&pids)?;
    let vms = scan.vms(&pids, &head.settings.cache_classes);
    let merged = scan.frames_of_all(&head, &vms)?;
    for vm in vms {
        scan.vm(vm, &merged)?;
    }
    scan.what_is_missing(&head);
    let mut tail = scan.tail;
    let after = settings::vmstat(tree);
    tail.moved = after
        .into_iter()
        .filter_map(|(name, value)| {
            let moved = value.saturating_sub(*head.settings.vmstat.get(&name)?);
            (moved > 0).then_some((name, moved))
        })
        .collect();
    tail.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    sink.tail(tail.clone())?;
    Ok(tail)
}

impl<S: Sink> Scan<'_, S> {
    fn blind(&mut self, what: impl Into<String>, cost: impl Into<String>) {
        self.tail.blind.push(Blind { what: what.into(), cost: cost.into() });
    }

    fn processes(&mut self, pids: &[u32]) -> io::Result<()> {
        let (mut refused, mut hidden) = (Vec::new(), 0u64);
        let mut method = None;
        for &pid in pids {
            match guest::look(self.tree, pid, &self.frames) {
                Ok(Looked::Found(process, counts)) => {
                    self.tail.reread += counts.reread;
                    self.tail.uncertain += counts.uncertain;
                    hidden += counts.hidden;
                    method = counts.method.or(method);
                    self.sink.process(*process)?;
                }
                Ok(Looked::Nothing(by)) => method = by.or(method),
                Ok(Looked::Gone) => self.tail.gone += 1,
                Err(error) => refused.push((pid, error)),
            }
        }
        if let Some(who) = named(&refused) {
            let what = format!("the page tables of {who}");
            self.blind(what, advised("their huge pages are missing"));
        }
        if hidden > 0 {
            let what = format!("the frames of {hidden} huge pages (CAP_SYS_ADMIN is missing)");
            self.blind(what, advised("they cannot be joined with the layer below"));
        }
        match method {
            Some(Method::Scan) => self.tail.huge_by = "PAGEMAP_SCAN".to_owned(),
            Some(Method::Flags) => {
                self.tail.huge_by = "kpageflags".to_owned();
                self.blind(
                    "huge mappings themselves (PAGEMAP_SCAN needs Linux 6.7)",
                    "a huge page that is mapped in base pages may count as huge",
                );
            }
            None => self.tail.huge_by = "nothing".to_owned(),
        }
        Ok(())
    }

    fn vms(&mut self, pids: &[u32], classes: &BTreeMap<String, String>) -> Vec<Vm> {
        let (found, refused) = hypervisor::find(self.tree, pids);
        if let Some(who) = named(&refused) {
            let what = format!("the open files of {who}");
            self.blind(what, advised("their VMs, if they run any, are missing"));
        }
        let mut vms = Vec::new();
        for (pid, fd) in found {
            match hypervisor::describe(self.tree, pid, fd) {
                Ok(vm) => {
                    let cache_class = caches::class_of(self.tree, pid, classes.keys());
                    vms.push(Vm { cache_class, ..vm });
                }
                Err(error) if gone(&error) => self.tail.gone += 1,
                Err(error) => {
                    self.blind(format!("the VM of process {pid} ({error})"), "it is missing");
                }
            }
        }
        if !vms.is_empty() && caches::is_sharing_hidden(self.tree, classes) {
            self.blind(
                "classes of service of the L3 (resctrl is not there: mount -t resctrl resctrl \
                 /sys/fs/resctrl)",
                "VMs count as sharing all ways of the L3",
            );
        }
        if !vms.is_empty() && vms.iter().all(|vm| vm.stats.is_empty()) {
            self.blind(
                "KVM's counters (/sys/kernel/debug/kvm is not there: mount -t debugfs none \
                 /sys/kernel/debug)",
                "huge pages that KVM itself splits, by nx_huge_pages or dirty logging, are not seen",
            );
        }
        vms
    }

    /// Goes over the flags of all frames where that is of use: what a guest uses its memory for,
    /// and which frames KSM merged.
    fn frames_of_all(&mut self, head: &Head, vms: &[Vm]) -> io::Result<Merged> {
        let mut merged = Merged::default();
        let ksm_pages = head.settings.ksm.get("pages_shared").is_some_and(|pages| pages != "0");
        let may_merge = |vm: &Vm| {
            vm.areas.iter().any(|area| area.ksm.map_or(area.has("mg"), |bytes| bytes > 0))
        };
        let wants_merged = ksm_pages && vms.iter().any(may_merge);
        let is_guest = head.machine.virtual_machine != Some(false);
        if !(wants_merged || is_guest) {
            return Ok(merged);
        }
        if !self.frames.readable() {
            self.blind(
                "/proc/kpageflags (not root, or CONFIG_PROC_PAGE_MONITOR is off)",
                "what the guest uses its memory for, balloon holes and pages merged by KSM",
            );
            return Ok(merged);
        }
        if head.machine.ram.is_empty() {
            self.blind(
                "/proc/iomem (addresses hidden or file missing)",
                "VMs cannot be matched by their memory, nor the use of memory be listed",
            );
            return Ok(merged);
        }
        let sink = &mut *self.sink;
        let keep = |usage: &[crate::snapshot::usage::Usage]| match is_guest {
            true => sink.usage(usage),
            false => Ok(()),
        };
        guest::usage(&self.frames, &head.machine.ram, keep, |frame, bits| {
            if wants_merged && bits & flags::KSM != 0 {
                merged.set(frame);
            }
        })?;
        Ok(merged)
    }

    fn vm(&mut self, mut vm: Vm, merged: &Merged) -> io::Result<()> {
        if vm.source == SlotSource::Unknown {
            let what = format!("the memory slots of {} ({})", vm.label(), vm.evidence);
            self.blind(what, "how its memory is backed");
        }
        let pseudo_huge = hypervisor::pseudo_huge(self.tree, &vm).unwrap_or_else(|error| {
            let what = format!("the pseudo huge pages of {} ({error})", vm.label());
            self.blind(what, advised("those of its guests count as misaligned"));
            None
        });
        vm.lists_pseudo_huge = pseudo_huge.is_some();
        vm.watched = self.used.as_ref().map(|used| used.how);
        self.sink.vm(vm.clone())?;
        self.sink.pseudo_huge(&pseudo_huge.unwrap_or_default())?;
        let space = match AddressSpace::open(self.tree, vm.pid) {
            Ok(Some(space)) => space,
            Ok(None) => {
                self.tail.gone += 1;
                return Ok(());
            }
            Err(error) => {
                let what = format!("the page table of {} ({error})", vm.label());
                self.blind(what, advised("how its memory is backed"));
                return Ok(());
            }
        };
        let (sink, used) = (&mut *self.sink, &self.used);
        let mut refused = None;
        let mut frames_hidden = false;
        let scanned = backing::scan(&vm, &space, &self.frames, merged, |regions| {
            frames_hidden |= regions.iter().any(|r| r.present > 0 && r.runs.is_empty());
            let hot = |used: &Used| regions.iter().filter_map(|region| used.of(region)).collect();
            let hot: Vec<_> = used.as_ref().map(hot).unwrap_or_default();
            // Told apart from failures to read the VMM.
            sink.regions(regions).and_then(|()| sink.hot(&hot)).map_err(|error| {
                let kind = error.kind();
                refused = Some(error);
                kind.into()
            })
        });
        if let Some(error) = refused {
            return Err(error);
        }
        match scanned {
            Ok(counts) => {
                self.tail.reread += counts.reread;
                self.tail.uncertain += counts.uncertain;
            }
            Err(_) => {
                self.tail.gone += 1;
                self.blind(format!("the rest of {} (it ended)", vm.label()), "its last regions");
            }
        }
        if frames_hidden {
            let what = format!("the frames of {} (CAP_SYS_ADMIN is missing)", vm.label());
            self.blind(what, advised("it cannot be joined with the layer below"));
        }
        Ok(())
    }

    fn what_is_missing(&mut self, head: &Head) {
        if head.settings.thp.is_empty() {
            self.blind(
                "the THP settings (no /sys/kernel/mm/transparent_hugepage)",
                "THP counts as off in this layer",
            );
        }
        if head.settings.zones.is_empty() {
            self.blind("/proc/buddyinfo", "fragmentation cannot be told from 'not yet collapsed'");
        }
        if head.machine.boot_id.is_none() {
            self.blind("the boot id", "snapshots of other boots cannot be told apart");
        }
    }
}

/// Processes that did not let themselves be read, and why the first of them did not.
fn named(refused: &[(u32, io::Error)]) -> Option<String> {
    let (pid, error) = refused.first()?;
    Some(match refused.len() {
        1 => format!("process {pid} ({error})"),
        count => format!("{count} processes (process {pid}: {error})"),
    })
}

/// A cost, with the remedy for who does not have all rights yet.
fn advised(cost: &str) -> String {
    match crate::scan::sys::is_root() {
        true => cost.to_owned(),
        false => format!("{cost}; run as root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_read_is_named_with_the_reason() {
        let refused = |pids: &[u32]| {
            let error = || io::Error::from_raw_os_error(libc::EACCES);
            named(&pids.iter().map(|&pid| (pid, error())).collect::<Vec<_>>())
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&[7]).unwrap(), "process 7 (Permission denied (os error 13))");
        let many = refused(&[7, 8]).unwrap();
        assert_eq!(many, "2 processes (process 7: Permission denied (os error 13))");
    }
}

//! Does something to another process's memory: puts it into swap, makes huge pages of it.

use super::region::{Advice, PAGE, advise};
use super::size;
use clap::Args;
use nix::libc;
use serde_json::json;
use std::fs;
use std::io::{self, ErrorKind};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Whose memory.
#[derive(Args, Debug)]
pub(super) struct Target {
    /// Name of the process, as `/proc/PID/comm` has it.
    process: String,
    /// How much of it, from a place taken at random; everything if not given.
    #[arg(long, value_parser = size)]
    part: Option<usize>,
}

impl Target {
    /// The process, and the range of its largest mapping that is meant.
    fn range(&self) -> Result<(u32, usize, usize), String> {
        let name = &self.process;
        let pid = find(name)?;
        let (start, end) = memory(pid, name)?;
        let Some(part) = self.part.filter(|&part| part < end - start) else {
            return Ok((pid, start, end));
        };
        let places = (end - start - part) / HUGE + 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        // The clock's last digits are good enough a die.
        let start = start + now as usize / 7 % places * HUGE;
        Ok((pid, start, start + part.next_multiple_of(PAGE)))
    }
}

/// Asks the kernel to put memory into swap, and prints one line of JSON.
pub(super) fn page_out(target: &Target) -> Result<(), String> {
    let name = &target.process;
    let (pid, start, end) = target.range()?;
    let before = swapped(pid)?;
    advise(pid, start, end - start, libc::MADV_PAGEOUT).map_err(|error| {
        format!("the kernel cannot put memory of {name} into swap: {error}; turn on swap first")
    })?;
    let bytes = swapped(pid)?.saturating_sub(before);
    println!("{}", json!({ "pid": pid, "bytes": end - start, "swapped_bytes": bytes }));
    // A part may have been there before.
    if bytes == 0 && target.part.is_none() {
        return Err(format!("nothing of {name} went into swap; turn on swap first"));
    }
    Ok(())
}

/// Asks the kernel to make huge pages of memory, and prints one line of JSON. It copies the contents
/// to do so.
pub(super) fn collapse(target: &Target) -> Result<(), String> {
    const ADVICE: Advice = libc::MADV_COLLAPSE;
    let (pid, start, end) = target.range()?;
    let (mut done, mut refused) = (0, 0);
    for at in (start.next_multiple_of(HUGE)..end).step_by(HUGE).filter(|at| at + HUGE <= end) {
        match advise(pid, at, HUGE, ADVICE) {
            Ok(()) => done += 1,
            // There is no memory at that place, or no huge page to be had.
            Err(error) if expected(&error) => refused += 1,
            Err(error) => {
                return Err(format!(
                    "the kernel makes no huge pages of {}: {error}",
                    target.process
                ));
            }
        }
    }
    println!("{}", json!({ "pid": pid, "huge_pages": done, "refused": refused }));
    Ok(())
}

/// Whether it is one of the reasons for which a huge page is not made (man 2 madvise).
fn expected(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EBUSY | libc::EINVAL | libc::ENOMEM | libc::EFAULT)
    ) || error.kind() == ErrorKind::UnexpectedEof
}

/// The largest private mapping of a process.
pub(super) fn memory(pid: u32, name: &str) -> Result<(usize, usize), String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| format!("/proc/{pid}/maps: {error}"))?;
    largest(&maps).ok_or_else(|| format!("{name} has no private memory"))
}

pub(super) fn find(name: &str) -> Result<u32, String> {
    let processes = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .ok_or_else(|| format!("no process is called {name}"))
}

/// Bytes of a process that are in swap.
fn swapped(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} has no VmSwap"))
}

/// The largest writable private mapping of `/proc/PID/maps`.
fn largest(maps: &str) -> Option<(usize, usize)> {
    maps.lines()
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let hex = |text| usize::from_str_radix(text, 16).ok();
            rest.starts_with("rw-p").then_some((hex(start)?, hex(end)?))
        })
        .max_by_key(|(start, end)| end - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_private_mapping_is_found() {
        let maps = "1000-9000 r--p 0 0:0 1 /bin/x\n9000-b000 rw-p 0 0:0 0\n\
                    c000-d000 rw-p 0 0:0 0 [heap]\n10000-90000 rw-s 0 0:0 5 /memfd:x\n";
        assert_eq!(largest(maps), Some((0x9000, 0xb000)));
        assert_eq!(largest("junk"), None);
    }

    #[test]
    fn processes_are_found_by_name() {
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(find(comm.trim()).is_ok());
        assert_eq!(find("no such"), Err("no process is called no such".into()));
        assert!(swapped(std::process::id()).is_ok());
    }
}

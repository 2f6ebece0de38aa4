//! Puts another process's memory into swap, now.

use super::region::page_out;
use clap::Args;
use serde_json::json;
use std::fs;

/// Whose memory.
#[derive(Args, Debug)]
pub(super) struct PageOut {
    /// Name of the process, as `/proc/PID/comm` has it.
    process: String,
}

/// Asks the kernel to put the largest mapping of the process into swap, and prints one line of JSON.
pub(super) fn run(choice: &PageOut) -> Result<(), String> {
    let name = &choice.process;
    let pid = find(name)?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| format!("/proc/{pid}/maps: {error}"))?;
    let (start, end) = largest(&maps).ok_or_else(|| format!("{name} has no private memory"))?;
    let before = swapped(pid)?;
    page_out(pid, start, end - start).map_err(|error| {
        format!("the kernel cannot put memory of {name} into swap: {error}; turn on swap first")
    })?;
    let bytes = swapped(pid)?.saturating_sub(before);
    println!("{}", json!({ "pid": pid, "bytes": end - start, "swapped_bytes": bytes }));
    if bytes == 0 {
        return Err(format!("nothing of {name} went into swap; turn on swap first"));
    }
    Ok(())
}

fn find(name: &str) -> Result<u32, String> {
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

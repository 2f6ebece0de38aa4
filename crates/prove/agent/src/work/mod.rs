//! The lab's own workloads: small programs with known memory.

mod chore;
mod corrupt;
mod exits;
mod fragment;
mod integrity;
mod launch;
mod other;
mod region;
mod touch;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// What the lab's agent can do as an ordinary program.
#[derive(Debug, Parser)]
#[command(name = "strata-agent", version)]
struct Cli {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Touch memory at known addresses, then read it in random order.
    Touch(touch::Touch),
    /// Fragment the free memory of this machine, and hold it so until killed.
    Fragment(fragment::Fragment),
    /// Start a program for which the kernel's huge pages work differently.
    Launch(launch::Launch),
    /// Prove that memory keeps what is written to it.
    Integrity(integrity::Integrity),
    /// Put another process's memory into swap.
    PageOut(other::Target),
    /// Make huge pages of another process's memory.
    Collapse(other::Target),
    /// Spoil pages of the program `integrity` in another process's memory.
    Corrupt(corrupt::Corrupt),
    /// Watch the exits of this layer's VMs.
    Exits(exits::Exits),
    /// Do the same small thing again and again: what it costs in a layer can be counted.
    Chore(chore::Chore),
}

/// Runs the workload that the command line names.
pub fn main() -> ExitCode {
    let done = match Cli::parse().work {
        Work::Touch(touch) => touch::run(&touch).map(|()| 0),
        Work::Fragment(fragment) => fragment::run(&fragment).map(|()| 0),
        Work::Launch(launch) => launch::run(&launch),
        Work::Integrity(integrity) => integrity::run(&integrity).map(|()| 0),
        Work::PageOut(target) => other::page_out(&target).map(|()| 0),
        Work::Collapse(target) => other::collapse(&target).map(|()| 0),
        Work::Corrupt(corrupt) => corrupt::run(&corrupt).map(|()| 0),
        Work::Exits(exits) => exits::run(&exits).map(|()| 0),
        Work::Chore(chore) => chore::run(&chore).map(|()| 0),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(reason) => {
            eprintln!("strata-agent: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// A size in bytes, such as `96M`.
fn size(text: &str) -> Result<usize, String> {
    usize::try_from(strata_text::parse_size(text)?).map_err(|_| "too large".to_owned())
}

/// An address, in hexadecimal after `0x` or in decimal.
fn address(text: &str) -> Result<usize, String> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("{text} is no address, such as 0x600000000000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_addresses_are_read() {
        assert_eq!(size("96M"), Ok(96 << 20));
        assert_eq!(size("4096"), Ok(4096));
        assert!(size("99999999999G").is_err());
        assert!(size("1x").is_err());
        assert_eq!(address("0x6000"), Ok(0x6000));
        assert!(address("x").is_err());
    }
}

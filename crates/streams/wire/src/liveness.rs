//! Whether a process still runs.

use std::fs;

/// A process as the kernel knows it. The start time tells it from a later process that was given
/// the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// The kernel's process number.
    pub number: u32,
    /// Clock ticks between boot and its start (proc(5), `stat`, field 22).
    pub started: u64,
}

impl ProcessId {
    /// The calling process.
    pub fn own() -> Self {
        Self::running(std::process::id()).unwrap_or(Self { number: std::process::id(), started: 0 })
    }

    /// The process with this number, unless there is none or it is a zombie.
    pub fn running(number: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // The name, in parentheses, may itself hold spaces and parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        if matches!(state, "Z" | "X") {
            return None;
        }
        let started = fields.nth(18)?.parse().ok()?;
        Some(Self { number, started })
    }

    /// Whether it runs: neither gone nor a zombie.
    pub fn is_running(&self) -> bool {
        Self::running(self.number).is_some_and(|now| now == *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_zombie_does_not_run() {
        assert!(ProcessId::own().is_running());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::running(child.id()).unwrap();
        assert!(id.is_running());
        assert!(!ProcessId { started: id.started + 1, ..id }.is_running());
        child.kill().unwrap();
        while id.is_running() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!id.is_running());
    }
}

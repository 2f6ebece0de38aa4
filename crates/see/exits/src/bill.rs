//! What is found: for each VM its exits by level and reason, the costliest first, and what they amount to
//! in words.

use crate::account::{Level, Vcpu};
use crate::reason::{Kind, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Shares of the time of vCPUs below this are not worth a remedy.
const NEGLIGIBLE: f64 = 0.01;

/// Where figures are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// KVM's tracepoints: every exit, with its level and time.
    Tracepoints,
    /// KVM's statistics: counts of some reasons, without level and time.
    Statistics,
}

/// Exits of all VMs on a kernel over some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Version of this format: [`Bill::VERSION`].
    pub strata_exits: u32,
    /// Seconds watched.
    pub seconds: f64,
    /// Where the figures are from.
    pub source: Source,
    /// Events that the kernel overwrote before they were read: then the figures are too low.
    pub lost_events: u64,
    /// Bytes of events that were read.
    pub event_bytes: u64,
    /// Seconds of processor time that reading them took. What writing them takes of the vCPUs' time is
    /// not known.
    pub own_cpu_seconds: f64,
    /// The VMs, by number of their process.
    pub vms: Vec<VmBill>,
}

/// Exits of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmBill {
    /// The process that is its VMM.
    pub pid: u32,
    /// Its name, where the VMM was told one.
    pub name: Option<String>,
    /// Its vCPUs that did anything.
    pub vcpus: usize,
    /// Exits.
    pub exits: u64,
    /// Times that it ran guests of its own.
    pub nested_entries: u64,
    /// Share of its vCPUs' time in exits, idling left out; `None` where time is not known.
    pub exit_share: Option<f64>,
    /// Share of its vCPUs' time that they idled.
    pub idle_share: Option<f64>,
    /// Share of its vCPUs' time that guests of its own waited for its own hypervisor to handle their exits,
    /// idling left out: what a level of nesting costs.
    pub nested_wait_share: Option<f64>,
    /// By level and reason, the costliest first.
    pub rows: Vec<Row>,
    /// What it amounts to.
    pub verdict: String,
    /// What helps, where something is to be helped.
    pub remedy: Option<String>,
}

/// Exits of one level and reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Who exited, and who handles it.
    pub level: Level,
    /// The reason's name.
    pub reason: String,
    /// What kind of work it is.
    pub kind: Kind,
    /// Exits.
    pub exits: u64,
    /// Exits in a second.
    pub per_second: f64,
    /// Seconds from exits to the next entry; `None` where time is not known.
    pub seconds: Option<f64>,
    /// The same as a share of all its vCPUs' time.
    pub share: Option<f64>,
    /// Of what was handed on: seconds until the nested guest ran again, which the VM's own hypervisor took.
    pub until_nested_seconds: Option<f64>,
}

impl Bill {
    /// Version of the format in JSON.
    pub const VERSION: u32 = 1;
}

impl VmBill {
    /// Of a VM whose `vcpus` were watched for so many `seconds`.
    pub fn of_vcpus(pid: u32, name: Option<String>, vcpus: &[Vcpu], seconds: f64) -> Self {
        let mut sums: BTreeMap<(Level, Reason), [u64; 3]> = BTreeMap::new();
        for ((level, reason), counted) in vcpus.iter().flat_map(|vcpu| &vcpu.counted) {
            let sum = sums.entry((*level, *reason)).or_default();
            sum[0] += counted.exits;
            sum[1] += counted.nanoseconds;
            sum[2] += counted.until_nested;
        }
        let all = seconds * vcpus.len() as f64;
        let rows = sums.into_iter().map(|((level, reason), [exits, time, until])| Row {
            level,
            reason: reason.name(),
            kind: reason.kind(),
            exits,
            per_second: exits as f64 / seconds,
            seconds: Some(time as f64 / 1e9),
            share: Some(time as f64 / 1e9 / all),
            until_nested_seconds: (level == Level::NestedHandedOn).then_some(until as f64 / 1e9),
        });
        let nested = vcpus.iter().map(|vcpu| vcpu.nested_entries).sum();
        Self::of_rows(pid, name, vcpus.len(), nested, rows.collect())
    }

    /// Of rows, in any order.
    pub fn of_rows(
        pid: u32,
        name: Option<String>,
        vcpus: usize,
        nested_entries: u64,
        mut rows: Vec<Row>,
    ) -> Self {
        rows.sort_by(|a, b| {
            let idle = |row: &Row| row.kind == Kind::Idle;
            let cost = |row: &Row| row.share.unwrap_or(0.0);
            let by_cost = idle(a).cmp(&idle(b)).then(cost(b).total_cmp(&cost(a)));
            by_cost.then(b.exits.cmp(&a.exits)).then_with(|| a.reason.cmp(&b.reason))
        });
        let share = |of_idle: bool| -> Option<f64> {
            let these = rows.iter().filter(|row| (row.kind == Kind::Idle) == of_idle);
            // An empty sum is -0.
            these.map(|row| row.share).sum::<Option<f64>>().map(|share| share + 0.0)
        };
        let (exit_share, idle_share) = (share(false), share(true));
        // The time of all vCPUs, from any row that has a share of it.
        let all = rows.iter().find_map(|row| Some(row.seconds? / row.share.filter(|s| *s > 0.0)?));
        let waited = rows.iter().filter(|row| row.kind != Kind::Idle);
        let waited: f64 = waited.filter_map(|row| row.until_nested_seconds).sum();
        let nested_wait_share = all.map(|all| waited / all);
        let (verdict, remedy) = verdict(&rows, exit_share, nested_wait_share);
        Self {
            pid,
            name,
            vcpus,
            exits: rows.iter().map(|row| row.exits).sum(),
            nested_entries,
            exit_share,
            idle_share,
            nested_wait_share,
            rows,
            verdict,
            remedy: remedy.map(str::to_owned),
        }
    }
}

/// What exits amount to, and what helps.
fn verdict(
    rows: &[Row],
    exit_share: Option<f64>,
    nested_wait_share: Option<f64>,
) -> (String, Option<&'static str>) {
    let cost = |row: &Row| row.share.unwrap_or(row.exits as f64);
    let at_work = || rows.iter().filter(|row| row.kind != Kind::Idle);
    let all: f64 = at_work().map(cost).sum();
    if all == 0.0 {
        return ("It did not exit but to idle.".to_owned(), None);
    }
    let of = |kind: Kind| at_work().filter(|row| row.kind == kind).map(cost).sum::<f64>() / all;
    let costliest = Kind::ALL.into_iter().max_by(|a, b| of(*a).total_cmp(&of(*b)));
    let costliest = costliest.expect("there are kinds");
    let not_memory = match costliest {
        Kind::Memory | Kind::Nesting => "",
        _ => "Not memory: ",
    };
    let (kind, part) = (costliest.words(), 100.0 * of(costliest));
    let mut words = match exit_share {
        None => format!("{not_memory}{part:.0} % of its exits are for {kind}."),
        Some(share) if share < NEGLIGIBLE => {
            let words = format!("Exits take {:.1} % of its time: little to win.", 100.0 * share);
            return (words, None);
        }
        Some(share) => format!(
            "{not_memory}{} take {:.0} % of its time, {part:.0} % of that for {kind}.",
            if not_memory.is_empty() { "Exits" } else { "exits" },
            100.0 * share
        ),
    };
    if let Some(wait) = nested_wait_share.filter(|wait| *wait >= NEGLIGIBLE) {
        words += &format!(
            " For {:.0} % of its time its own guests wait until its own hypervisor has handled their exits.",
            100.0 * wait
        );
    }
    (words, Some(costliest.remedy()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Isa;

    fn row(level: Level, code: u64, exits: u64, share: f64) -> Row {
        let reason = Reason { isa: Isa::Vmx, code };
        Row {
            level,
            reason: reason.name(),
            kind: reason.kind(),
            exits,
            per_second: exits as f64,
            seconds: Some(share),
            share: Some(share),
            until_nested_seconds: (level == Level::NestedHandedOn).then_some(2.0 * share),
        }
    }

    fn bill(rows: Vec<Row>) -> VmBill {
        VmBill::of_rows(1, None, 1, 0, rows)
    }

    #[test]
    fn the_costliest_is_first_and_idling_last() {
        let rows = vec![
            row(Level::Guest, 12, 5, 0.8),
            row(Level::Guest, 48, 10, 0.01),
            row(Level::NestedHere, 30, 1, 0.05),
        ];
        let bill = bill(rows);
        let order: Vec<_> = bill.rows.iter().map(|row| row.reason.as_str()).collect();
        assert_eq!(order, ["IO_INSTRUCTION", "EPT_VIOLATION", "HLT"]);
        assert_eq!(bill.exits, 16);
        assert!((bill.exit_share.unwrap() - 0.06).abs() < 1e-9);
        assert_eq!(bill.idle_share, Some(0.8));
    }

    /// A guest that sets timers all the time is not helped by huge pages.
    #[test]
    fn where_timers_are_to_blame_memory_is_not() {
        let timers =
            bill(vec![row(Level::Guest, 32, 90_000, 0.2), row(Level::Guest, 48, 10, 0.01)]);
        assert_eq!(
            timers.verdict,
            "Not memory: exits take 21 % of its time, 95 % of that for timers and interrupts."
        );
        assert_eq!(timers.remedy.as_deref(), Some(Kind::Interrupts.remedy()));
        let memory =
            bill(vec![row(Level::NestedHandedOn, 48, 10, 0.2), row(Level::Guest, 32, 1, 0.01)]);
        assert_eq!(
            memory.verdict,
            "Exits take 21 % of its time, 95 % of that for memory. For 40 % of its time its own guests \
             wait until its own hypervisor has handled their exits."
        );
    }

    #[test]
    fn little_is_called_little_and_idling_nothing() {
        let little = bill(vec![row(Level::Guest, 48, 10, 0.001)]);
        assert_eq!(little.verdict, "Exits take 0.1 % of its time: little to win.");
        assert_eq!(little.remedy, None);
        let idle = bill(vec![row(Level::Guest, 12, 10, 0.9)]);
        assert_eq!(idle.verdict, "It did not exit but to idle.");
        let untimed = Row { share: None, seconds: None, ..row(Level::Guest, 30, 10, 0.0) };
        assert_eq!(bill(vec![untimed]).verdict, "Not memory: 100 % of its exits are for devices.");
    }
}

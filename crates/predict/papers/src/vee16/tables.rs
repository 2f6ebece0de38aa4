//! The tables: the published shares, and ours.

use super::conditions::{
    DATABASES, PAGES, POLICIES, SIZES, STACKS, TILE, alone, database, seeds, tile,
};
use crate::cells::{over_seeds, percent};
use crate::{Document, Found, Table};
use strata_engine::RunResult;
use strata_engine::report::WalkPosition;

/// Published: the share of time in TLB misses in a VM, and the part of it that is virtualisation's.
const TPCC: [&str; 2] = ["20.0 %", "4.2 %"];
const VMMARK: [&str; 2] = ["12.3 %", "4.3 %"];

/// The share of cycles in walks, faults and exits left out: with 475 GB there are first touches for longer than
/// anybody runs, and a database that has run for hours has none.
fn share(run: &RunResult) -> Option<f64> {
    let kinds = &run.cycles_by_kind;
    let steady = kinds.execution + kinds.data + kinds.walks;
    (steady > 0).then(|| run.walk_cycles as f64 / steady as f64)
}

fn databases(found: &Found) -> Table {
    let mut table = Table::new(
        "Databases",
        &[
            "Share of cycles in page walks, of those of instructions, data and walks (the largest have faults of first \
             touches all the time, which a database that has run for hours has not), and how many points a VM and a nested VM have more than the native machine. \
             One seed. The paper's row is of TPC-C with large pages.",
        ],
        &["database", "size", "pages", "native", "VM", "VM - native", "nested VM - native"],
    );
    let [share_in_vm, more] = TPCC.map(str::to_owned);
    table.row(
        ["published: TPC-C", "475 GB", "large", "15.8 %"].map(str::to_owned).into_iter().chain([
            share_in_vm,
            more,
            crate::cells::NOTHING.to_owned(),
        ]),
    );
    for (name, _) in DATABASES {
        for size in &SIZES {
            for (policy, pages) in POLICIES.into_iter().zip(PAGES) {
                if policy == "base" && !size.in_base_pages() {
                    continue;
                }
                let of = |stack: &str| share(found.run(&database(name, size.text, stack), policy)?);
                let [native, vm, nested] = STACKS;
                let one = |share: Option<f64>| percent(over_seeds(1..=1, |_| share));
                let shares = [native, vm].map(|stack| one(of(stack)));
                let more = [vm, nested]
                    .map(|stack| one(of(stack).zip(of(native)).map(|(vm, native)| vm - native)));
                let labels = [name, size.text, pages].map(str::to_owned);
                table.row(labels.into_iter().chain(shares).chain(more));
            }
        }
    }
    table
}

/// What several runs have of something, together.
fn together(runs: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    runs.into_iter().sum()
}

fn tiles(found: &Found) -> Table {
    let mut table = Table::new(
        "Four VMs",
        &[
            "Share of cycles in page walks: natively and in a VM by itself, and beside the three others, which share \
             its last level of cache. The last row has the walks of all over the cycles of all.",
        ],
        &[
            "VM",
            "stands for",
            "pages",
            "native",
            "VM by itself",
            "one of four",
            "VM by itself - native",
        ],
    );
    let [of_vms, more] = VMMARK.map(str::to_owned);
    let none = || crate::cells::NOTHING.to_owned();
    table.row([
        "published".to_owned(),
        "VMmark".to_owned(),
        "large".to_owned(),
        none(),
        none(),
        of_vms,
        more,
    ]);
    type Of = fn(&RunResult) -> f64;
    let parts: [Of; 2] = [|run| run.walk_cycles as f64, |run| run.cycles as f64];
    for (policy, pages) in POLICIES.into_iter().zip(PAGES) {
        for vms in TILE.iter().map(std::slice::from_ref).chain([&TILE[..]]) {
            let by_itself = |stack: &str, seed: u64| {
                let [walks, cycles] = parts.map(|part| {
                    together(
                        vms.iter().map(|vm| found.run(&alone(vm, stack, seed), policy).map(part)),
                    )
                });
                Some(walks? / cycles?)
            };
            let beside = |seed: u64| {
                let [walks, cycles] = parts.map(|part| {
                    together(vms.iter().map(|vm| found.vm(&tile(seed), vm.name, policy).map(part)))
                });
                Some(walks? / cycles?)
            };
            let (name, of) = match vms {
                [vm] => (vm.name, vm.of),
                _ => ("all", "VMmark"),
            };
            let [native, vm] = ["native", "vm"]
                .map(|stack| percent(over_seeds(seeds(), |seed| by_itself(stack, seed))));
            let four = percent(over_seeds(seeds(), beside));
            let more = percent(over_seeds(seeds(), |seed| {
                Some(by_itself("vm", seed)? - by_itself("native", seed)?)
            }));
            let labels = [name, of, pages].map(str::to_owned);
            table.row(labels.into_iter().chain([native, vm, four, more]));
        }
    }
    table
}

fn served(found: &Found) -> Table {
    let mut table = Table::new(
        "Who serves walks",
        &[
            "Of all references of two-dimensional walks in a VM, those that walk caches and the nested TLB save, and \
             those that each cache and memory serve. The paper: most are satisfied by paging-structure \
             caches and by L1 and L2.",
        ],
        &["database", "size", "pages", "saved", "L1", "L2", "LLC", "memory"],
    );
    for (name, _) in DATABASES {
        for size in &SIZES {
            for (policy, pages) in POLICIES.into_iter().zip(PAGES) {
                if policy == "base" && !size.in_base_pages() {
                    continue;
                }
                let run = found.run(&database(name, size.text, "vm"), policy);
                let parts = run.map(|run| {
                    let of = |part: fn(&WalkPosition) -> u64| {
                        run.walk_positions.iter().map(part).sum::<u64>()
                    };
                    [
                        of(|at| at.pwc + at.nested_pwc + at.ntlb),
                        of(|at| at.l1),
                        of(|at| at.l2),
                        of(|at| at.llc),
                        of(|at| at.memory),
                    ]
                });
                let all = parts.map_or(0, |parts| parts.iter().sum::<u64>());
                let cells = (0..5).map(|at| {
                    let part = parts.filter(|_| all > 0).map(|parts| parts[at] as f64 / all as f64);
                    percent(over_seeds(1..=1, |_| part))
                });
                table.row([name, size.text, pages].map(str::to_owned).into_iter().chain(cells));
            }
        }
    }
    table
}

/// Everything.
pub(super) fn document(found: &Found) -> Document {
    Document {
        title: "VEE'16: TLB misses natively and in VMs".to_owned(),
        head: vec![
            "Published: the abstract of \"Performance Implications of Extended Page Tables on Virtualized x86 \
             Processors\" (VEE'16). Ours: `haswell-ep`, generators that stand for benchmarks which are not free; what \
             was run and why is in `crates/predict/papers/src/vee16/conditions.rs`, written down before any result was seen \
             but for what it says was wrong at first. \
             Shares are modelled; constants marked `?` in `docs/model.md` are among what they rest on."
                .to_owned(),
        ],
        tables: vec![databases(found), served(found), tiles(found)],
    }
}

//! Exits of the VMs of this layer, as `strata bill` sees them, beside what KVM itself counts.

use clap::Args;
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use strata_exits::Watching;
use strata_inspect::Tree;

/// KVM's count of all exits of all VMs.
const KVM_EXITS: &str = "sys/kernel/debug/kvm/exits";

/// How long to watch.
#[derive(Args, Debug)]
pub(super) struct Exits {
    /// Seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
}

/// Watches, and prints one line of JSON: `bill`, and `kvm_exits` of the same time.
pub(super) fn run(exits: &Exits) -> Result<(), String> {
    let tree = Tree::default();
    let failed = |error: strata_exits::WatchError| error.to_string();
    let mut watching = Watching::start(&tree).map_err(failed)?;
    let counted = || tree.number(KVM_EXITS).ok_or_else(|| format!("/{KVM_EXITS} is missing"));
    // What happened while this got ready belongs to neither.
    watching.interval(Duration::ZERO, &AtomicBool::new(false)).map_err(failed)?;
    let before = counted()?;
    let time = Duration::from_secs(exits.seconds);
    let bill = watching.interval(time, &AtomicBool::new(false)).map_err(failed)?;
    println!("{}", json!({ "bill": bill, "kvm_exits": counted()? - before }));
    Ok(())
}

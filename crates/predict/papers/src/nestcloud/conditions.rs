//! What is run, and why.
//!
//! The testbed is a Core i7-920 with KVM-84 as L0 and L1 (NestCloud, VI.A), so the CPU is `i7-920`, which has
//! no shadow VMCSs, and L1's script is `kvm-84`. Sequences are run on the machine of `strata_nested::modes`:
//! the same sequence in each configuration, none of which has a constant of its own.
//!
//! - *Writes to shadowed tables.* The paper's section VI.C says that L2's changes to its table trap. KVM-84 is of
//!   February 2009 and has out-of-sync shadow pages (merged for Linux 2.6.28), with which only the first write
//!   to a leaf table does. So `unsync` is the condition, and `trap` stands beside it. A first look at the exits
//!   of one page fault in each mode, and at their cycles, had been had by then; costs were set before it.
//! - *L1.* The paper's rows of L1 are with host EPT by its section VI. That of Table V cannot be, since L2 with two
//!   EPTs takes a tenth of its time; so for PF-Bench L1 has shadow paging, and for the rest EPT. Both are shown.
//! - *Page-fault bypass* is on in L0 and L1 where it is on (VI). Which error codes exit follows the manual: those
//!   that match PFEC do, with bit 14 of the exception bitmap set; section V.A says the opposite of it in words
//!   and the same in effect.
//! - *PF-Bench* is not published. Ours maps 4 MiB, touches every page, unmaps them, and begins anew; a round
//!   of all is run before counting begins, so that hypervisors have given the VMs memory.
//! - *SysBench's tests* of CPU and memory do not exit but for timers: a program that computes, or writes to one
//!   KiB over and over, makes no page faults and few system calls. So the same is run for both.
//! - *Timers.* 250 ticks a second in each kernel, as Ubuntu 9.04's `generic` kernels are built, each set
//!   anew (`NO_HZ`): an interrupt, its end, a timer written. L2's timer is one of L1's, L1's one of L0's.
//! - *SysBench's OLTP*: a transaction has 18 statements, BEGIN and COMMIT (its documentation); a statement is a
//!   request to MySQL in the same VM and an answer, two changes of process. A commit writes the log once:
//!   a disk request of libata takes 26 port accesses with LBA48 and bus-master DMA (Linux 2.6.28,
//!   `drivers/ata/libata-sff.c`, counted by hand) and an interrupt; L1 makes one of its own for each, as its disk
//!   image is written through (QEMU's default of that time). Processes wait for the disk with HLT. Data is in the
//!   buffer pool, and memory is allocated once.
//! - *Kernel build*: a compilation takes what `gcc -O2 -c` of a short file took here (getrusage): 0.028 s of CPU
//!   time, 2121 page faults, 27 changes of process; its three processes end, and their memory goes. Pages of
//!   files and of nobody are not told apart.
//! - *Work.* How much there is of it is not published. PF-Bench is compared by page fault with bare metal; the others
//!   have as much as makes L1 take the published time, so that only L2 over L1 is a result.
//! - *Walks* read their tables in the second-level cache; walk caches are left out, which makes walks in two
//!   dimensions dearer than they are.
//! - *QEMU's row* is emulation, of which there is no model here: the published number stands alone.

use strata_nested::Access;
use strata_nested::SecondStageWrites;
use strata_nested::modes::{Level, Setup, Switches};

/// A configuration of the paper.
#[derive(Clone, Debug)]
pub(super) struct Configuration {
    /// As in `nestcloud-tables.csv`.
    pub(super) name: &'static str,
    pub(super) setup: Setup,
}

/// What the tables are made with.
pub(super) const WRITES: SecondStageWrites = SecondStageWrites::Unsync;

/// Name of the configuration that the others of a table are over.
pub(super) const L1: &str = "L1";
pub(super) const L1_EPT: &str = "L1 with EPT";
pub(super) const NATIVE: &str = "L0";
pub(super) const BASIC: &str = "Basic";
pub(super) const BYPASS: &str = "Bypass";
pub(super) const HOST_EPT: &str = "Host EPT";
pub(super) const EPT_ON_EPT: &str = "Host EPT + Virtual EPT";
pub(super) const PV_VMCS: &str = "PV VMCS";
pub(super) const ALL: &str = "PV VMCS + Host EPT + Virtual EPT";

/// Every configuration.
pub(super) fn configurations(writes: SecondStageWrites) -> Vec<Configuration> {
    use Level::{Nested, Shadow};
    let of = |name, levels: &[Level], bypass, access| {
        let native = Setup::native();
        let switches = Switches { bypass, access, writes, ..native.switches };
        Configuration { name, setup: Setup { levels: levels.to_vec(), switches, ..native } }
    };
    let plain = Access::Instructions;
    vec![
        of(NATIVE, &[], false, plain),
        of(L1, &[Shadow], false, plain),
        of(L1_EPT, &[Nested], false, plain),
        of(BASIC, &[Shadow, Shadow], false, plain),
        of(BYPASS, &[Shadow, Shadow], true, plain),
        of(HOST_EPT, &[Nested, Shadow], false, plain),
        of(EPT_ON_EPT, &[Nested, Nested], false, plain),
        of(PV_VMCS, &[Shadow, Shadow], false, Access::Paravirtual),
        of(ALL, &[Nested, Nested], false, Access::Paravirtual),
    ]
}

/// PF-Bench: pages of a round.
pub(super) const FAULT_PAGES: u64 = 1024;
/// Rounds that are counted.
pub(super) const FAULT_ROUNDS: f64 = 4.0;

/// Ticks a second of each kernel.
pub(super) const HZ: u64 = 250;

/// OLTP: statements of a transaction, BEGIN and COMMIT included.
pub(super) const STATEMENTS: u64 = 20;
/// Changes of process for a statement.
pub(super) const SWITCHES: u64 = 2;
/// Port accesses of a disk request.
pub(super) const PORT_ACCESSES: u64 = 26;

/// A compilation: CPU time in seconds, page faults, changes of process.
pub(super) const COMPILATION: (f64, u64, u64) = (0.028, 2121, 27);
/// Compilations that are counted.
pub(super) const COMPILATIONS: f64 = 1.0;

/// The factor by which each constant is varied, up and down.
pub(super) const FACTOR: f64 = 4.0;

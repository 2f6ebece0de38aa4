//! The words of the output, a line each: `strata help terms`.

use std::fmt::Write;

/// Words that stand for the same in all outputs, by subject. A row of a table has the name of its
/// term; those of layers, and of counts `per 1000` accesses, have the name of what is counted.
const TERMS: [(&str, &[(&str, &str)]); 13] = [
    (
        "layers and addresses",
        &[
            ("guest", "the kernel the program runs on: L2 when nested, the only one natively"),
            ("l1", "the guest hypervisor, L1: itself a guest, and only there when nested"),
            ("host", "the host hypervisor, L0, on the hardware"),
            ("GVA, GPA", "guest virtual and guest physical address: the guest translates them"),
            ("GHPA, HPA", "physical address of the guest hypervisor, and of the host"),
            ("second stage", "a hypervisor's table for its guest's physical addresses: EPT, NPT"),
            ("shadow table", "the second stage GPA to HPA that L0 makes of L1's and its own"),
            ("base page", "4 KiB"),
            ("huge page", "2 MiB, mapped by one entry of a table"),
            ("HPAS region", "huge-page-aligned-and-sized region: what a huge page could map"),
            ("TLB", "the CPU's cache of translations, in two levels"),
            ("page walk", "the search of the tables that a miss of both levels of the TLB costs"),
        ],
    ),
    (
        "alignment of the guest's huge pages",
        &[
            ("all", "the sum of the section, leaving out what is counted in another row of it"),
            ("well aligned", "backed by one huge mapping down to HPA: one entry of the TLB"),
            ("misaligned", "not well aligned: the TLB has to cache it in pieces, or not at all"),
            ("type-1 misaligned", "nothing is allocated yet in the region of the layer below"),
            ("type-2 misaligned", "something is, and would have to move"),
            ("pseudo huge", "one HPAS region of HPA though L1 maps it with base pages"),
            ("pseudo huge among them", "pseudo huge, and mapped huge by the shadow table"),
            ("uncertain", "changed while it was looked at, so that nobody judged it"),
            ("unknown", "what is below is not known"),
            ("responsible", "the first layer below the guest that breaks a page, and by what"),
        ],
    ),
    (
        "translation",
        &[
            ("L1 TLB misses", "accesses that the first level of the data TLB did not have"),
            ("L2 TLB misses", "of those, accesses the second level did not have either: a walk"),
            ("references per walk", "memory references of a walk; walk caches save the others"),
            ("walk references", "memory references of all walks"),
            ("cycles in walks", "cycles that page walks took, over those of the first policy"),
            ("share of cycles in walks", "cycles that page walks took, of all cycles"),
            ("walk cycles per access", "cycles that page walks took, over the accesses"),
            ("cycles per access", "all cycles, over the accesses"),
            ("throughput, estimated", "accesses per cycle, over those of the first policy"),
            ("throughput", "accesses per cycle, over those of the present state"),
            ("cycles", "all cycles of all CPUs"),
            ("~", "before a figure: estimated from windows of a sampled stream"),
            ("windows", "parts of a sampled stream that were run in detail"),
            ("phases", "kinds of parts that a sampled stream has, each with windows of its own"),
        ],
    ),
    (
        "sweeps",
        &[
            ("point", "one combination of the values of a grid of options"),
            ("error", "why a point of a sweep has no result"),
        ],
    ),
    (
        "last-level cache",
        &[
            ("references", "all that the private caches lacked, those of page walks among them"),
            ("share of them missed", "of the references to the last-level cache"),
            ("cold misses", "of lines that were never read before"),
            ("capacity misses", "a fully associative cache of as many lines has them, too"),
            ("conflict misses", "a fully associative cache of as many lines has them not"),
            ("lucky hits", "a fully associative cache of as many lines would have missed"),
            ("own lines evicted", "put out to make room, of those the VM filled itself"),
            ("lines of others evicted", "put out to make room, of those other VMs filled"),
            ("inclusion victims", "dropped by a private cache since the last level dropped them"),
            ("held at the end", "bytes of the cache that the VM's lines fill"),
            ("cache at the memory", "behind the last level: the same of what that lacked (--l4)"),
        ],
    ),
    (
        "faults and exits",
        &[
            ("faults", "page faults that a layer handled"),
            ("exits", "times the guest stopped for a hypervisor to act"),
            ("ept_violation", "exit: what the guest touched is not in the second stage"),
            ("reflected", "of the guest's exits for memory, those that L0 handed on to L1"),
            (
                "page_fault",
                "exit: with shadow paging, a page fault or a write to a page table that is shadowed",
            ),
            ("control_register", "exit: with shadow paging, a load of a page table"),
            ("invalidation", "exit: with shadow paging, one page dropped from the TLB (INVLPG)"),
            ("apic, halt, io", "exits: of the interrupt controller, of HLT, of a device"),
            ("external_interrupt", "exit: an interrupt came, a timer's or a device's"),
            ("l1_ept_violation", "exit: L1 touched memory of its own that L0 had not backed"),
            ("l1_ept_write", "exit: L1 wrote an entry of its second stage, which L0 watches"),
            ("l1_invept", "exit: L1 dropped cached translations of its guest"),
            (
                "l1_instructions",
                "exits: VMREAD, VMRESUME, VMRUN and others, by which L1 runs its guest",
            ),
            ("first touch", "faults and exits as memory is used the first time: paid once"),
            ("steady state", "all that is not faults and exits: what a long run comes to"),
            ("data misses", "stalls on data that caches lack, whatever the tables"),
            ("TLB shootdowns", "dropping translations that other CPUs may have cached"),
        ],
    ),
    (
        "memory management",
        &[
            ("promotions", "huge pages made of base pages, over all layers"),
            ("demotions", "huge pages split into base pages, over all layers"),
            ("migrated pages", "base pages moved, over all layers"),
            ("FMFI", "share of free memory no huge page fits in: unusable free space index"),
            ("booking", "an HPAS region kept free for a time, for the huge page to come"),
            ("background work", "scanning, promoting, migrating on a CPU the program uses"),
            ("memory used", "most memory the guest had allocated for the program at one time"),
            (
                "memory used / touched",
                "over all pages ever touched: above 1 huge pages hold untouched parts, below 1 \
                 memory was given back, or processes share it",
            ),
        ],
    ),
    (
        "requests, where the stream has any",
        &[
            ("requests served", "those that began and ended while it was counted"),
            ("load", "share of the time in which servers are busy; from 1 on the queue only grows"),
            ("service time", "time that passed on the CPU from a request's begin to its end, mean"),
            ("latency mean", "from a request's arrival to its end, the wait for a server included"),
            ("latency p95", "what the latency of 95 % of the requests does not exceed"),
            ("latency p99", "what the latency of 99 % of the requests does not exceed"),
            ("mean latency", "the mean over that of the first policy"),
            ("p99 latency", "the 99 % over that of the first policy"),
        ],
    ),
    (
        "backing of a VM (scan, top, join)",
        &[
            ("type 1: nothing below", "misaligned as type 1"),
            ("type 2: something below", "misaligned as type 2"),
            ("one aligned block all the same", "pseudo huge, as far as frames tell"),
            ("huge", "a huge mapping"),
            ("base-contiguous", "base pages in a row, aligned as a huge page would be"),
            ("base-scattered", "base pages here and there"),
            ("absent", "nothing there yet"),
            ("swapped, ksm, zero", "pages in swap, merged with equal ones, the zero page"),
            ("memory slot", "where a VM's physical memory is in its process"),
            ("huge above, huge below", "huge pages of a layer; those usable in the one below"),
            ("unused below", "HPAS regions of the layer below that its guest does not use"),
        ],
    ),
    (
        "counters of the lab",
        &[
            ("memory", "memory the layer has at the end"),
            ("free", "free memory of the layer at the end"),
            ("huge page faults", "page faults answered with a huge page (thp_fault_alloc)"),
            ("fell back to base pages", "for which there was no huge page (thp_fault_fallback)"),
            ("huge pages collapsed", "made of base pages by khugepaged (thp_collapse_alloc)"),
            ("huge pages split", "into base pages again (thp_split_page)"),
            ("pages migrated", "moved by the kernel (pgmigrate_success)"),
            ("KVM: exits", "times a guest of this layer's KVM stopped for it"),
            ("MMU faults", "those for its second stage or shadow table (pf_taken)"),
            ("entries into nested guest", "times KVM started its guest's guest (nested_run)"),
            ("writes to guest tables", "writes that KVM watches for (mmu_pte_write)"),
            ("4 KiB entries at the end", "base mappings in KVM's tables (pages_4k)"),
            ("2 MiB entries at the end", "huge mappings in KVM's tables (pages_2m)"),
        ],
    ),
    (
        "several VMs on one host",
        &[
            (
                "time / alone",
                "time of a VM's program over that without the other VMs; ~ time of an access, of one that did not end",
            ),
            ("rounds", "how often a program that repeats came to its end"),
            ("seconds", "simulated time in which a VM's programs ran"),
            ("accesses of all VMs", "loads and stores of their programs"),
            ("faults of the host", "page faults that the host's kernel handled for all VMs"),
            ("exits of all VMs", "times a guest, or a guest hypervisor, stopped for the one below"),
            ("fewest free huge pages", "free huge pages of the host when there were fewest"),
        ],
    ),
    (
        "exits of live VMs",
        &[
            ("of nested", "a guest of the VM's own exited, and this machine's KVM handled it"),
            ("handed on", "the VM's own hypervisor is to handle the exit of its guest"),
            ("a second", "exits in a second"),
            ("time", "from exits to the next entry: share of the time of the VM's active vCPUs"),
            ("each", "the same for one exit"),
            ("until nested", "from handing an exit on until the VM runs its own guest again"),
            ("entries into guests of its own", "times a VM ran a guest of its own"),
        ],
    ),
    (
        "policies and what they are compared with",
        &[
            ("base", "no huge pages in any layer"),
            ("aligned", "the upper bound: every huge page well aligned; no remedy to install"),
            ("captured", "with --tables: the page tables as the real machine had them"),
            ("other policies", "'strata list policies' has a line for each"),
        ],
    ),
];

/// All terms, a line each.
pub fn text() -> String {
    let width = names().map(str::len).max().unwrap_or(0);
    let mut out = String::new();
    for (subject, terms) in TERMS {
        let space = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{space}{subject}");
        for (name, meaning) in terms {
            let _ = writeln!(out, "  {name:width$}  {meaning}");
        }
    }
    out + "\ndocs/concepts.md explains them, with drawings\n"
}

/// The names of all terms, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    TERMS.iter().flat_map(|(_, terms)| terms.iter().map(|(name, _)| *name))
}

/// What a row of a table is called by: without its VM, its layer, its unit, and what it relates to.
pub fn find(label: &str) -> Option<&'static str> {
    let label = label.trim();
    named(label).or_else(|| named(label.split_once(": ")?.1))
}

fn named(label: &str) -> Option<&'static str> {
    let plain = label.strip_suffix(" per 1000").unwrap_or(label);
    let plain = if plain.starts_with("FMFI") { "FMFI" } else { plain };
    let mut terms = TERMS.iter().flat_map(|(_, terms)| terms.iter());
    terms.find(|(name, _)| *name == plain).map(|(_, meaning)| *meaning)
}

//! Pilot.
mod conditions;
use conditions::*;
use strata_engine::StackKind;
use strata_hardware::Misaligned;
fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let t = std::time::Instant::now();
    if what.contains('a') {
        for mis in [Misaligned::NoFill, Misaligned::Splinter] {
            for mb in [4, 1024] {
                let runs = microbenchmark(&["base", "host-huge", "guest-huge", "aligned"], mb, mis);
                for r in &runs {
                    println!(
                        "{mis:?} {mb} {:12} thr {:.3} cyc/acc {:.1} l2/k {:.1} refs {:.2} {:?} {:?} {:?}",
                        r.policy,
                        throughput(r, 1.) / throughput(&runs[0], 1.),
                        r.cycles as f64 / r.accesses as f64,
                        r.tlb.l2_misses as f64 * 1e3 / r.accesses as f64,
                        r.walk_refs as f64 / r.walks.max(1) as f64,
                        r.alignment, r.cycles_by_kind, r.tlb.fills
                    );
                }
            }
        }
        println!("{:?}", t.elapsed());
    }
    for (c, stack, frag, pol) in [
        ('b', StackKind::Vm, true, &["base", "thp", "gemini"][..]),
        ('c', StackKind::Nested, true, &["base", "gemini", "xgemini"]),
        ('d', StackKind::Nested, false, &["base", "gemini", "xgemini"]),
    ] {
        if !what.contains(c) {
            continue;
        }
        for s in &STAND_INS {
            let runs = stand_in(s, stack, frag, pol);
            for r in &runs {
                println!(
                    "{c} {:24} {:8} tlb {:.3} thr {:.3} l2/k {:.1} al {:?} secs {:.3} cyc {:?} f {:?} pro {} mig {} fmfi {:?}",
                    s.name, r.policy,
                    r.tlb.l2_misses as f64 / runs[0].tlb.l2_misses as f64,
                    scaled_throughput(r) / scaled_throughput(&runs[0]),
                    r.tlb.l2_misses as f64 * 1e3 / r.accesses as f64,
                    r.alignment, r.elapsed_seconds,
                    r.cycles_by_kind, r.faults, r.promotions, r.migrated_pages, r.fmfi
                );
            }
            println!("{:?}", t.elapsed());
        }
    }
}

//! What `--sample` refuses.

use crate::common::{refused, run};

#[test]
fn options_of_which_windows_tell_nothing_are_refused_by_name() {
    let random = "--workload random:size=4MiB,accesses=100k";
    for (options, named) in [
        ("--vm a:workload=random:size=4MiB,accesses=100k", "--vm"),
        (&format!("{random} --llc cpu"), "--llc cpu"),
        (&format!("{random} --llc-misses"), "--llc-misses"),
        (&format!("{random},request=10 --request-load 0.5@base"), "--request-load"),
        (&format!("{random} --warmup 5"), "--warmup"),
        (&format!("{random} --skip 5"), "--skip"),
        (&format!("{random} --limit 5"), "--limit"),
        (&format!("{random} --marked"), "--marked"),
        ("--workload prepared:gcc", "a prepared workload"),
    ] {
        let output = run(&format!("run --policy base --sample auto {options}"));
        refused(&output, 2, &format!("strata: --sample does not go with {named} ("));
    }
}

//! The runs side by side: one table of what matters most.

use super::Group;
use crate::html::escaped;
use crate::number::{attribute, bytes, count, ratio, seconds};
use std::fmt::Write;

/// The table of all groups.
pub fn table(groups: &[Group<'_>]) -> String {
    let mut out = "<div class=scroll><table class=glance><thead><tr><th scope=col>policy</th>\
        <th scope=col colspan=2>throughput, relative</th><th scope=col class=n>time</th>\
        <th scope=col class=n>L2 TLB misses<br>per 1000 accesses</th>\
        <th scope=col class=n>references<br>per walk</th><th scope=col class=n>faults</th>\
        <th scope=col class=n>exits</th><th scope=col class=n>memory used</th></tr></thead>\n"
        .to_owned();
    let relative = |group: &Group<'_>| -> Vec<Option<f64>> {
        group.rows.iter().map(|row| row.run.relative_throughput).collect()
    };
    let most = groups.iter().flat_map(relative).flatten().fold(1.0, f64::max);
    for group in groups {
        out += "<tbody>\n";
        if groups.len() > 1 {
            let title = escaped(&group.title);
            let _ = writeln!(out, "<tr class=group><th scope=rowgroup colspan=9>{title}</th></tr>");
        }
        for row in &group.rows {
            let run = row.run;
            let per = |part: u64, whole: u64, times: f64| match whole {
                0 => "-".to_owned(),
                whole => format!("{:.2}", part as f64 * times / whole as f64),
            };
            let width = run.relative_throughput.unwrap_or(0.0) / most * 110.0;
            let bar = format!(
                "<svg aria-hidden=\"true\" class=bar viewBox=\"0 0 112 14\"><rect class=speed x=\"0\" \
                 y=\"1\" width=\"{}\" height=\"12\"/></svg>",
                attribute(width)
            );
            let label = escaped(&row.label);
            let ended = if run.out_of_memory { " <em>out of memory</em>" } else { "" };
            let _ = writeln!(
                out,
                "<tr><th scope=row>{label}{ended}</th><td class=n>{}</td><td>{bar}</td><td \
                 class=n>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td><td \
                 class=n>{}</td><td class=n>{}</td></tr>",
                run.mark(ratio(run.relative_throughput)),
                run.mark(seconds(run.elapsed_seconds)),
                run.mark(per(run.tlb.l2_misses, run.accesses, 1000.0)),
                run.mark(per(run.walk_refs, run.walks, 1.0)),
                count(run.all_faults()),
                count(run.all_exits()),
                bytes(run.memory.used_bytes),
            );
        }
        out += "</tbody>";
    }
    out + "</table></div>\n"
}

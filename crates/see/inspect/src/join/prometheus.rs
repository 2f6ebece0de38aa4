//! A join as Prometheus text (exposition format 0.0.4), for the textfile collector.

use crate::join::colours::{ColourUse, Colouring};
use crate::join::report::{Join, JoinedLayer, VmReport};
use crate::join::vm_accounts;
use crate::snapshot::Snapshot;
use std::collections::BTreeMap;
use strata_text::prometheus::Metrics;

/// The text.
pub fn text(join: &Join) -> String {
    let mut out = Metrics::default();
    let guest = join.layers.first().map_or("", |layer| layer.host.as_str());
    let totals = &join.totals;
    out.metric("strata_guest_huge_pages", "Huge pages of the guest by what backs them");
    for (state, pages) in [
        ("well_aligned", totals.well_aligned),
        ("misaligned", totals.misaligned),
        ("uncertain", totals.uncertain),
        ("unknown", totals.unknown),
    ] {
        out.sample(&[("guest", guest), ("state", state)], pages as f64);
    }
    out.metric(
        "strata_pseudo_huge_pages",
        "Well-aligned huge pages that a layer has in base pages",
    );
    out.sample(&[("guest", guest)], totals.pseudo_huge as f64);
    out.metric("strata_one_block_pages", "Misaligned huge pages whose memory is one aligned block");
    out.sample(&[("guest", guest)], totals.one_block as f64);
    out.metric("strata_aligned_ratio", "Well-aligned huge pages over those judged");
    out.sample(&[("guest", guest)], join.composite.huge);
    out.metric("strata_misaligned_pages", "Misaligned huge pages by responsible layer and cause");
    // A cause stands once for each thing behind it; a sample may stand only once.
    let mut causes: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for cause in &join.causes {
        *causes.entry((&cause.layer, cause.cause.name())).or_default() += cause.pages;
    }
    for ((layer, cause), pages) in causes {
        out.sample(&[("guest", guest), ("layer", layer), ("cause", cause)], pages as f64);
    }
    out.metric("strata_process_huge_pages", "Huge pages of a process by what backs them");
    for process in &join.processes {
        let pid = process.pid.to_string();
        for (state, pages) in [
            ("well_aligned", process.well_aligned),
            ("misaligned", process.misaligned),
            ("unjudged", process.unjudged),
        ] {
            let labels =
                [("guest", guest), ("pid", &pid), ("process", &process.name), ("state", state)];
            out.sample(&labels, pages as f64);
        }
    }
    backing(&mut out, join, guest);
    out.metric(
        "strata_host_huge_unused",
        "Huge mappings that the layer above does not use as huge",
    );
    for pair in &join.pairs {
        out.sample(&[("guest", guest), ("layer", &pair.lower)], pair.lower_unused as f64);
    }
    colours(&mut out, join, guest);
    out.metric("strata_fmfi", "Unusable free space index for order 9");
    for layer in &join.layers {
        out.sample(&[("layer", &layer.name), ("host", &layer.host)], layer.fmfi);
    }
    out.metric("strata_uncertain_regions", "Regions that changed while they were read");
    for layer in &join.layers {
        let labels = [("layer", layer.name.as_str()), ("host", &layer.host)];
        out.sample(&labels, layer.uncertain_regions as f64);
    }
    out.metric("strata_scan_timestamp_seconds", "When the layer was scanned, by its own clock");
    for layer in &join.layers {
        let labels = [("layer", layer.name.as_str()), ("host", &layer.host)];
        out.sample(&labels, layer.scanned_ms as f64 / 1000.0);
    }
    out.finish()
}

/// What is seen of the VMs in one layer, without a guest's snapshot: the label `guest` is empty, and `layer`
/// is the machine's name.
pub fn of_layer(snapshot: &Snapshot) -> String {
    let mut out = Metrics::default();
    let host = &snapshot.head.machine.host;
    let layers = vm_accounts(snapshot).into_iter().map(|vm| JoinedLayer {
        name: host.clone(),
        host: host.clone(),
        vm: Some(vm),
        ..JoinedLayer::default()
    });
    let join = Join { layers: layers.collect(), ..Join::default() };
    out.metric("strata_vms", "VMs that run in the layer");
    out.sample(&[("layer", host)], join.layers.len() as f64);
    backing(&mut out, &join, "");
    out.metric("strata_not_huge_regions", "2 MiB regions of a VM not usable as huge, by cause");
    for vm in join.layers.iter().filter_map(|layer| layer.vm.as_ref()) {
        for (cause, regions) in &vm.causes {
            let labels = [("guest", ""), ("layer", host), ("vm", &vm.vm), ("cause", cause)];
            out.sample(&labels, *regions as f64);
        }
    }
    colours(&mut out, &join, "");
    out.finish()
}

fn backing(out: &mut Metrics, join: &Join, guest: &str) {
    out.metric("strata_backing_regions", "2 MiB regions of the VM's memory by how they are backed");
    for layer in &join.layers {
        let Some(vm) = &layer.vm else { continue };
        for (class, regions) in &vm.backing {
            let labels = [
                ("guest", guest),
                ("layer", layer.name.as_str()),
                ("vm", vm.vm.as_str()),
                ("class", class),
            ];
            out.sample(&labels, *regions as f64);
        }
    }
}

/// Cache colours, where the caches are known, and hot memory, where somebody watched.
fn colours(out: &mut Metrics, join: &Join, guest: &str) {
    type OfGuest = fn(&Colouring) -> f64;
    let of_guest: [(&'static str, &str, OfGuest); 3] = [
        (
            "strata_colours_kept_ratio",
            "Pages with the real cache colour that most pages of their colour in the guest have",
            |it| it.kept,
        ),
        (
            "strata_colours_colliding",
            "Cache colours of the guest that end, by most of their pages, where another does",
            |it| it.colliding.into(),
        ),
        (
            "strata_colours_survive",
            "1 where what the guest keeps apart by colour is apart in the cache, else 0",
            |it| f64::from(u8::from(it.survives)),
        ),
    ];
    for (name, help, value) in of_guest {
        if !join.colouring.is_empty() {
            out.metric(name, help);
        }
        for colouring in &join.colouring {
            out.sample(&[("guest", guest), ("cache", &colouring.cache)], value(colouring));
        }
    }
    let vms = join.layers.iter().filter_map(|layer| Some((&layer.name, layer.vm.as_ref()?)));
    let vms: Vec<(&String, &VmReport)> = vms.collect();
    type OfCache = fn(&ColourUse) -> Option<f64>;
    let of_caches: [(&'static str, &str, OfCache); 6] = [
        (
            "strata_colour_fullest_ratio",
            "Pages of a VM's fullest cache colour over the mean",
            |used| Some(used.fullest),
        ),
        ("strata_colours", "Colours that a cache has", |used| Some(used.colours.into())),
        ("strata_colours_used", "Cache colours that a VM's memory uses", |used| {
            Some(used.used.into())
        }),
        (
            "strata_hot_colours_used",
            "Cache colours that the memory uses which the VM used while it was watched",
            |used| Some(used.hot?.used.into()),
        ),
        (
            "strata_hot_colour_fullest_ratio",
            "The same as strata_colour_fullest_ratio, of the memory used",
            |used| Some(used.hot?.fullest),
        ),
        (
            "strata_hot_colour_pages",
            "Base pages of known frames that the VM used while it was watched",
            |used| Some(used.hot?.pages as f64),
        ),
    ];
    for (name, help, value) in of_caches {
        let samples = vms.iter().flat_map(|(layer, vm)| {
            let each = vm.colours.iter();
            each.filter_map(move |used| Some((*layer, *vm, used, value(used)?)))
        });
        let samples: Vec<_> = samples.collect();
        if !samples.is_empty() {
            out.metric(name, help);
        }
        for (layer, vm, used, value) in samples {
            let labels =
                [("guest", guest), ("layer", layer), ("vm", &vm.vm), ("cache", &used.cache)];
            out.sample(&labels, value);
        }
    }
    let shared = |used: &ColourUse| !used.shared_with.is_empty();
    if vms.iter().any(|(_, vm)| vm.colours.iter().any(shared)) {
        out.metric(
            "strata_colours_shared_ratio",
            "How alike a VM and another spread over the cache colours: 0 not at all, 1 wholly",
        );
    }
    for (layer, vm) in &vms {
        for used in &vm.colours {
            for other in &used.shared_with {
                let labels = [
                    ("guest", guest),
                    ("layer", layer.as_str()),
                    ("vm", &vm.vm),
                    ("cache", &used.cache),
                    ("other", &other.vm),
                ];
                out.sample(&labels, other.share);
            }
        }
    }
    if vms.iter().any(|(_, vm)| vm.hot.is_some()) {
        out.metric("strata_hot_pages", "Base pages of a VM by whether they were used when watched");
    }
    for (layer, vm) in &vms {
        let Some(hot) = vm.hot else { continue };
        for (state, pages) in [("used", hot.pages), ("idle", hot.watched - hot.pages)] {
            let labels = [
                ("guest", guest),
                ("layer", layer.as_str()),
                ("vm", &vm.vm),
                ("by", hot.by.name()),
                ("state", state),
            ];
            out.sample(&labels, pages as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::cause::Cause;
    use crate::join::colours::{HotUse, Shared};
    use crate::join::report::{CauseCount, HotMemory, ProcessCount};
    use std::path::Path;

    #[test]
    fn no_sample_stands_twice() {
        let count = |behind| CauseCount {
            layer: "L0".to_owned(),
            cause: Cause::SlotMisaligned,
            pages: 2,
            remedy: "",
            behind,
            behind_remedy: None,
            ranges: Vec::new(),
        };
        let causes = vec![count(None), count(Some(Cause::FileWithoutThp))];
        let text = text(&Join { causes, ..Join::default() });
        let lines: Vec<_> = text.lines().filter(|line| line.contains("slot-misaligned")).collect();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with(" 4"), "{lines:?}");
    }

    #[test]
    fn colours_and_hot_memory_are_metrics() {
        let hot = HotUse { pages: 40, used: 3, fullest: 2.5 };
        let shared_with = ["a", "b"].map(|vm| Shared { vm: vm.to_owned(), share: 0.25 });
        let used = ColourUse {
            cache: "L3".to_owned(),
            colours: 32,
            used: 16,
            fullest: 2.0,
            hot: Some(hot),
            shared_with: shared_with.into(),
            ..ColourUse::default()
        };
        let memory = HotMemory { watched: 100, pages: 41, ..HotMemory::default() };
        let vm = VmReport { colours: vec![used], hot: Some(memory), ..VmReport::default() };
        let layer = JoinedLayer { name: "L0".into(), vm: Some(vm), ..JoinedLayer::default() };
        let guest = Colouring { cache: "L3".to_owned(), colliding: 7, ..Colouring::default() };
        let join = Join { layers: vec![layer], colouring: vec![guest], ..Join::default() };
        let text = text(&join);
        for (name, labels, value) in [
            ("strata_colours", "", "32"),
            ("strata_colours_used", "", "16"),
            ("strata_colours_colliding", "", "7"),
            ("strata_colours_survive", "", "0"),
            ("strata_colours_shared_ratio", ",other=\"b\"", "0.25"),
            ("strata_hot_colour_pages", "", "40"),
            ("strata_hot_colours_used", "", "3"),
            ("strata_hot_colour_fullest_ratio", "", "2.5"),
            ("strata_hot_pages", ",by=\"page_idle\",state=\"used\"", "41"),
            ("strata_hot_pages", ",by=\"page_idle\",state=\"idle\"", "59"),
        ] {
            let is_sample = |line: &&str| {
                line.starts_with(&format!("{name}{{"))
                    && line.ends_with(&format!("{labels}}} {value}"))
            };
            assert_eq!(text.lines().filter(is_sample).count(), 1, "{name}{labels}: {text}");
            assert_eq!(text.matches(&format!("# HELP {name} ")).count(), 1, "{name}: {text}");
        }
        // Where nobody watched there is no metric of it.
        assert!(!super::text(&Join::default()).contains("strata_hot"));
    }

    /// The same samples of VMs as in a join, without one: by the machine's name, and with no guest's.
    #[test]
    fn one_layer_tells_of_its_vms() {
        let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/examples/host.scan");
        let snapshot = crate::read(&host).unwrap();
        let vms = vm_accounts(&snapshot);
        let text = of_layer(&snapshot);
        let value = |start: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(start)).expect(start);
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert_eq!(value("strata_vms{") as usize, vms.len());
        let (class, regions) = vms[0].backing.iter().next().unwrap();
        let (machine, vm) = (&snapshot.head.machine.host, &vms[0].vm);
        let labels = format!("guest=\"\",layer=\"{machine}\",vm=\"{vm}\"");
        assert_eq!(
            value(&format!("strata_backing_regions{{{labels},class=\"{class}\"}}")),
            *regions as f64
        );
        let (cause, regions) = vms[0].causes.iter().next().unwrap();
        assert_eq!(
            value(&format!("strata_not_huge_regions{{{labels},cause=\"{cause}\"}}")),
            *regions as f64
        );
    }

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_names_are_escaped() {
        let process = ProcessCount { name: "a\"b\\c\nd".to_owned(), ..ProcessCount::default() };
        let layer = JoinedLayer { name: "L1".to_owned(), ..JoinedLayer::default() };
        let join = Join { processes: vec![process], layers: vec![layer], ..Join::default() };
        let text = text(&join);
        assert!(text.contains("process=\"a\\\"b\\\\c\\nd\""), "{text}");
        for line in text.lines().filter(|line| !line.starts_with("# ")) {
            let (labels, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && labels.ends_with('}'), "{line}");
        }
    }
}

//! Pages of results: what is in them, whatever a name says, and the same bytes twice.

use serde_json::{Value, json};
use strata_view::{Verdict, page};

fn run(policy: &str, well_aligned: u64, type2: u64) -> Value {
    json!({
        "stack": "nested", "policy": policy, "cpu": "a-cpu", "accesses": 1000,
        "tlb": {"l1_misses": 500, "l2_misses": 300, "fills": {}},
        "walks": 300, "walk_refs": 900,
        "walk_positions": [
            {"position": "g1", "references": 300},
            {"position": "g1n1", "references": 150},
            {"position": "dn1", "references": 30},
        ],
        "cycles": 10_000, "elapsed_seconds": 0.001,
        "cycles_by_kind": {"execution": 4000, "walks": 6000},
        "bill": [
            {"name": "useful work", "level": "guest", "cycles": 4000, "event": "instructions"},
            {"name": "walks, second stage", "level": "host", "cycles": 6000, "event": "ept.walk_cycles"},
        ],
        "alignment": {
            "guest_huge": well_aligned + type2, "well_aligned": well_aligned, "type1": 0,
            "type2": type2, "pseudo_huge": 0,
        },
        "faults": {"guest": 10, "l1": 20, "host": null},
        "exits": {}, "fmfi": {"guest": 0.5, "l1": 0.25, "host": 0.0},
        "memory": {"touched_bytes": 1 << 24, "used_bytes": 1 << 25},
        "relative_throughput": 1.5,
        "notes": ["a note on it"],
    })
}

fn report(name: &str) -> Value {
    json!({
        "strata": 1, "partial": false, "partial_reason": null, "seed": 1, "warmup": 0,
        "command": ["strata", "run", "--", name],
        "workload": {"name": name, "argv": [], "kind": "live", "footprint_bytes": 1 << 24},
        "runs": [run("base", 0, 0), run("thp", 5, 3)],
    })
}

fn page_of(result: &Value) -> String {
    let said = Verdict { of: "nested".into(), sentences: vec!["Under base it <walks>.".into()] };
    page(&result.to_string(), &[said]).unwrap()
}

/// What stands in a script element of a page.
fn script(page: &str, begin: &str) -> String {
    let (_, rest) = page.split_once(begin).expect("the element is there");
    rest.split_once("</script>").expect("it ends").0.to_owned()
}

#[test]
fn a_page_says_shows_and_has_everything() {
    let result = report("a program");
    let page = page_of(&result);
    for part in [
        "Under base it &lt;walks&gt;.",
        "5 of 8 well aligned",
        "a note on it",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Raw numbers of every figure.
    assert!(page.matches("<details>").count() >= 3);
    let embedded = script(&page, "<script type=application/json id=result>");
    assert_eq!(serde_json::from_str::<Value>(&embedded).unwrap(), result);
}

#[test]
fn a_page_asks_for_nothing() {
    let page = page_of(&report("x"));
    for asks in ["http:", "https:", "src=", "@import", "<link rel=stylesheet", "url(\"", "fetch("] {
        assert!(!page.contains(asks), "{asks}");
    }
}

#[test]
fn equal_results_give_equal_bytes() {
    assert_eq!(page_of(&report("x")), page_of(&report("x")));
}

#[test]
fn a_hostile_name_is_text() {
    let hostile =
        "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onload='alert(3)";
    let mut result = report(hostile);
    result["runs"][0]["policy"] = hostile.into();
    result["runs"][0]["bill"][0]["name"] = hostile.into();
    result["runs"][0]["walk_positions"][0]["position"] = hostile.into();
    let page = page_of(&result);
    assert_eq!(page.matches("<script").count(), 2, "the JSON and our own");
    assert!(!page.contains("<img"));
    let markup = page.replace(&script(&page, "<script type=application/json id=result>"), "");
    assert!(!markup.contains("\" onload="));
    // And were there a way in, nothing but our own script may run.
    let policy = page.split_once("Content-Security-Policy content=\"").unwrap().1;
    let policy = policy.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
}

#[test]
fn shares_are_drawn_to_scale() {
    let page = page_of(&report("x"));
    // Of 16 times 2 MiB five are well aligned: 31.25 % of an axis that is 640 long.
    let bar = page.split_once("<rect class=\"aligned\" x=\"150\"").unwrap().1;
    let width = bar.split_once("width=\"").unwrap().1.split_once('"').unwrap().0;
    let width: f64 = width.parse().unwrap();
    assert!((width - (0.3125 * 640.0 - 1.0)).abs() < 0.02, "{width}");
}

#[test]
fn results_of_other_commands_have_pages_too() {
    let totals = json!({
        "huge": 8, "well_aligned": 2, "misaligned": 6, "type1": 1, "type2": 5, "uncertain": 0,
        "unknown": 0,
    });
    let layer = |name: &str| json!({"name": name, "host": "a host", "kernel": "6.12", "fmfi": 0.5, "free_huge_pages": 3});
    let join = json!({
        "strata_join": 2, "layers": [layer("L1"), layer("L0")], "notes": ["beware"],
        "totals": totals,
        "pairs": [{"upper": "L1", "lower": "L0", "upper_huge": 8, "lower_huge": 2}],
        "causes": [{"layer": "L0", "cause": "fragmentation", "pages": 6, "remedy": "compact"}],
        "processes": [{
            "pid": 7, "name": "<b>", "huge": 8, "well_aligned": 2, "misaligned": 6,
            "main_cause": "L0 fragmentation",
        }],
    });
    let lab = json!({
        "strata_lab": 1, "scenario": "clean", "layers": [{"layer": 0, "kernel": "6.12"}],
        "steps": [{"what": "touch", "seconds": 1.5, "status": 0}], "alignment": join,
    });
    let paper = json!({
        "scale": 1.0, "partial": true, "title": "A paper", "head": ["It says `so`."],
        "runs": [{"name": "first", "command": "strata run"}],
        "tables": [{"title": "T", "text": [], "columns": ["a", "b"], "rows": [["x", "1.00"]]}],
    });
    for (result, parts) in [
        (&join, ["2 of 8 (25 %)", "What helps: compact.", "&lt;b&gt; (7)", "beware"]),
        (&lab, ["2 of 8 (25 %)", "touch", "1.5 s", "L0 fragmentation"]),
        (&paper, ["A paper", "<code>so</code>", "Partial", "strata run"]),
    ] {
        let page = page(&result.to_string(), &[]).unwrap();
        for part in parts {
            assert!(page.contains(part), "{part}");
        }
    }
}

#[test]
fn what_windows_of_a_sampled_stream_tell_is_marked_and_bounded() {
    let mut result = report("x");
    for run in result["runs"].as_array_mut().unwrap() {
        let moments = |counts: [u64; 3]| json!(counts);
        run["series"] = json!({
            "seconds": [0.0, 0.001, 0.002], "accesses": moments([0, 1000, 900]),
            "l2_misses": moments([0, 300, 310]), "faults": {"guest": moments([0, 5, 10])},
            "exits": {}, "fmfi": {"guest": [0.5, 0.5, 0.5]}, "well_aligned": moments([0, 2, 5]),
            "used_bytes": moments([0, 1 << 24, 1 << 25]),
        });
    }
    let whole = page_of(&result);
    assert!(!whole.contains(">~") && !whole.contains("What is estimated"));
    for run in result["runs"].as_array_mut().unwrap() {
        run["sampled"] = json!({
            "windows": 40, "confidence": 95,
            "bounds": {
                "cycles": {"low": 9800.0, "high": 10_150.0},
                "relative_throughput": {"low": 1.485, "high": 1.515},
                "tlb.l2_misses": {"low": 240.0, "high": 330.0},
            },
            "phases": [{"share": 0.75, "intervals": 30, "windows": 4}],
        });
    }
    let page = page_of(&result);
    for part in [
        "Sampled: figures with ~ are estimated from windows of the stream",
        "within these bounds 95 of 100 times",
        // Bounds, and none where there are none.
        "<td class=n>40</td><td class=n>±1.0 %</td><td class=n>±2.0 %</td><td class=n>-</td>\
         <td class=n>±20 %</td>",
        "<td class=n>75 %</td><td class=n>30</td><td class=n>4</td>",
        // At a glance: throughput, time, misses and references, but not faults.
        "<td class=n>~1.50</td>",
        "<td class=n>~1.00 ms</td><td class=n>~300.00</td><td class=n>~3.00</td><td \
         class=n>30</td>",
        // The bill, the walk, and states over time.
        ">~10.0k<",
        ">~60 %<",
        "<td class=n>~4,000</td>",
        ">~1.60 of 24<",
        ">~L2 TLB misses per 1000 accesses<",
        ">well-aligned huge pages<",
        ">simulated ms, estimated<",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

//! Pages and traces as a user asks for them: `--html`, `--detail`, `--trace-events`, `--folded`, `strata view`.

use crate::common::{self, complaint, refused, strata};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

const RUN: &str = "run --policy base,thp,gemini,aligned --memory 128MiB --fragmentation 0.3,0.9,0.8 \
                   --workload random:size=64MiB,accesses=300k";

fn in_room(room: &Path, line: &str) -> Output {
    strata(line).current_dir(room).output().unwrap()
}

fn done(output: Output) -> Output {
    assert!(output.status.success(), "{}", complaint(&output));
    output
}

#[test]
fn a_page_is_the_same_made_at_once_or_later_and_the_table_stays_as_it_is() {
    let room = tempfile::tempdir().unwrap();
    let files = "--json run.json --html run.html --trace-events run.perfetto --folded run.folded";
    let drawn = done(in_room(room.path(), &format!("{RUN} {files}")));
    assert_eq!(drawn.stdout, done(in_room(room.path(), RUN)).stdout);
    let read = |name: &str| fs::read(room.path().join(name)).unwrap();
    done(in_room(room.path(), "view run.json -o later.html"));
    assert_eq!(read("run.html"), read("later.html"));
    // And in the place where it is looked for.
    done(in_room(room.path(), "view run.json"));
    assert_eq!(read("run.html"), read("later.html"));
    let page = String::from_utf8(read("run.html")).unwrap();
    // The words of the table.
    let table = String::from_utf8(drawn.stdout).unwrap();
    let sentence = table.lines().find(|line| line.starts_with("Under base, ")).expect("a verdict");
    assert!(page.contains(sentence), "{sentence}");
    // The first key of a trace is that of a packet.
    assert_eq!(read("run.perfetto")[0], 10);
    let folded = String::from_utf8(read("run.folded")).unwrap();
    let json: Value = serde_json::from_slice(&read("run.json")).unwrap();
    let runs = json["runs"].as_array().unwrap();
    let exits: u64 = runs.iter().map(|run| run["cycles_by_kind"]["exits"].as_u64().unwrap()).sum();
    let cycles =
        folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(cycles.sum::<u64>(), exits, "every cycle of an exit is in a stack");
}

#[test]
fn detail_says_of_each_region_what_the_counts_say_of_all() {
    let output = done(common::run(&format!("{RUN} --detail --json -")));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let regions = &run["regions"];
        let columns: Vec<&str> = regions["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        let column = |name: &str| columns.iter().position(|column| *column == name).unwrap();
        let rows = regions["rows"].as_array().unwrap();
        let number = |row: &Value, name: &str| row[column(name)].as_i64().unwrap();
        let with_state = |state: i64| -> i64 {
            let rows = rows.iter().filter(|row| number(row, "state") == state);
            rows.map(|row| number(row, "count")).sum()
        };
        let policy = &run["policy"];
        for (state, count) in [(1, "well_aligned"), (2, "type1"), (3, "type2")] {
            assert_eq!(
                Some(with_state(state)),
                run["alignment"][count].as_i64(),
                "{policy}: {count}"
            );
        }
        for row in rows {
            // Well aligned is one huge page in every layer; misaligned has a cause.
            if number(row, "state") == 1 {
                for layer in ["guest", "l1", "host"] {
                    assert!(number(row, &format!("{layer}.at")) >= 0, "{policy}: {row}");
                }
                assert_eq!(number(row, "host.huge"), 512, "{policy}: {row}");
            }
            assert_eq!(number(row, "cause") >= 0, number(row, "state") >= 2, "{policy}: {row}");
            assert!(number(row, "l1.mapped") <= number(row, "guest.mapped"), "{policy}: {row}");
        }
        let series = &run["series"];
        let last = |name: &str| series[name].as_array().unwrap().last().unwrap().as_u64();
        assert_eq!(last("accesses"), run["accesses"].as_u64(), "{policy}");
        assert_eq!(last("l2_misses"), run["tlb"]["l2_misses"].as_u64(), "{policy}");
        let faults = series["faults"]["guest"].as_array().unwrap().last().unwrap();
        assert_eq!(faults, &run["faults"]["guest"], "{policy}");
        for layer in run["layers"].as_array().unwrap() {
            let blocks = layer["free_blocks"].as_array().unwrap().iter().enumerate();
            let bytes: u64 =
                blocks.map(|(order, count)| count.as_u64().unwrap() << (12 + order)).sum();
            assert_eq!(Some(bytes), layer["free_bytes"].as_u64(), "{policy}: {layer}");
        }
    }
}

#[test]
fn a_page_of_a_sampled_run_marks_what_is_estimated() {
    let room = tempfile::tempdir().unwrap();
    let line = "run --policy base,thp --stack vm --sample interval=60k,window=5k,warm=5k --workload \
                random:size=16MiB,accesses=300k --html run.html --json run.json";
    done(in_room(room.path(), line));
    let page = fs::read_to_string(room.path().join("run.html")).unwrap();
    for part in ["Sampled: figures with ~ are", "<td class=n>~1.00</td>", "<td class=n>\u{b1}"] {
        assert!(page.contains(part), "{part}");
    }
    let text = fs::read_to_string(room.path().join("run.json")).unwrap();
    let said = strata::inside::sentences(&text).unwrap();
    assert!(said[0].starts_with("Sampled: figures with ~ are") && said.len() > 1, "{said:?}");
    let json: Value = serde_json::from_str(&text).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let accesses = run["series"]["accesses"].as_array().unwrap();
        assert_eq!(*accesses.last().unwrap(), run["accesses"]);
    }
}

#[test]
fn what_nobody_asked_for_is_not_there() {
    let output = done(common::run(&format!("{RUN} --json -")));
    let text = String::from_utf8(output.stdout).unwrap();
    for field in ["\"regions\"", "\"series\"", "\"free_blocks\"", "\"detail\""] {
        assert!(!text.contains(field), "{field}");
    }
}

#[test]
fn a_join_has_a_page_with_its_huge_pages() {
    let room = tempfile::tempdir().unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
    let line = format!("join {0}/guest.scan {0}/host.scan", docs.display());
    let drawn = done(in_room(room.path(), &format!("{line} --html join.html --json join.json")));
    assert_eq!(drawn.stdout, done(in_room(room.path(), &line)).stdout);
    let json: Value =
        serde_json::from_slice(&fs::read(room.path().join("join.json")).unwrap()).unwrap();
    let rows = json["regions"]["rows"].as_array().unwrap();
    let pages: u64 = rows.iter().map(|row| row[2].as_u64().unwrap()).sum();
    assert_eq!(Some(pages), json["totals"]["huge"].as_u64());
    done(in_room(room.path(), "view join.json -o again.html"));
    let read = |name: &str| fs::read_to_string(room.path().join(name)).unwrap();
    assert_eq!(read("join.html"), read("again.html"));
    assert!(read("join.html").contains("slot-misaligned"));
}

#[test]
fn what_cannot_be_drawn_is_refused_and_nothing_is_left() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    write("text.json", "no JSON");
    write("other.json", "{\"name\": 1}");
    write("newer.json", "{\"strata\": 99}");
    write("damaged.json", "{\"strata\": 1}");
    for (name, expected) in [
        ("text", "not JSON"),
        ("other", "no result that can be drawn"),
        ("newer", "version 99"),
        ("damaged", "damaged"),
        ("missing", "check its name"),
    ] {
        refused(&in_room(room.path(), &format!("view {name}.json")), 1, expected);
        assert!(!room.path().join(format!("{name}.html")).exists(), "{name}");
    }
    refused(&in_room(room.path(), "view other.json -o other.json"), 2, "would replace");
    refused(&in_room(room.path(), &format!("{RUN} --html /nonexistent/x.html")), 1, "directory");
    refused(&in_room(room.path(), &format!("{RUN} --html x --folded x")), 2, "same file");
}

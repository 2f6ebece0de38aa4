//! `strata scan`, `join` and `top` from outside: results, refusals, pipes, Ctrl-C.

use crate::common::{complaint, program, refused, run, strata};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn example(layer: &str) -> String {
    format!("{}/../../docs/examples/{layer}.scan", env!("CARGO_MANIFEST_DIR"))
}

fn pair() -> String {
    format!("{} {}", example("guest"), example("host"))
}

#[test]
fn a_join_is_a_table_json_and_prometheus_text() {
    let table = run(&format!("join {}", pair()));
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(table.status.success() && !text.contains('\x1b'), "{text}");
    assert!(text.contains("well aligned") && text.contains("slot-misaligned"), "{text}");
    assert!(
        text.lines().filter(|line| !line.contains("qemu")).all(|line| line.len() <= 90),
        "{text}"
    );
    let json = run(&format!("join {} --json -", pair()));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["strata_join"], 2);
    let count = |field: &str| json["totals"][field].as_u64().unwrap();
    assert_eq!(count("huge"), count("well_aligned") + count("misaligned"));
    assert_eq!(json["causes"][0]["cause"], "slot-misaligned");
    let prometheus = run(&format!("join {} --prometheus -", pair()));
    let prometheus = String::from_utf8(prometheus.stdout).unwrap();
    let line = format!(
        "strata_guest_huge_pages{{guest=\"guest\",state=\"misaligned\"}} {}",
        count("misaligned")
    );
    assert!(prometheus.lines().any(|own| own == line), "{prometheus}");
}

#[test]
fn every_field_of_the_json_is_documented() {
    let docs = format!("{}/../../docs/inspect.md", env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_to_string(docs).unwrap();
    let json = run(&format!("join {} --gain --json -", pair()));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let mut seen = 0;
    for (name, value) in json.as_object().unwrap() {
        assert!(docs.contains(&format!("`{name}")), "{name}");
        let inner = value.as_array().and_then(|all| all.last()).unwrap_or(value);
        for (field, _) in inner.as_object().into_iter().flatten() {
            assert!(docs.contains(&format!("`{field}")), "{name}.{field}");
            seen += 1;
        }
    }
    assert!(seen > 45, "{seen} fields");
}

#[test]
fn the_gain_is_estimated_on_request() {
    let plain = run(&format!("join {} --json -", pair()));
    let plain: serde_json::Value = serde_json::from_slice(&plain.stdout).unwrap();
    assert!(plain.get("gain").is_none());
    let json = run(&format!("join {} --gain --json -", pair()));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let (gain, totals) = (&json["gain"], &json["totals"]);
    let count = |value: &serde_json::Value| value.as_u64().unwrap();
    assert_eq!(gain["cpu"], "broadwell-e5-2620v4");
    assert_eq!(gain["accesses"], 1_000_000);
    assert_eq!(gain["well_aligned"], totals["well_aligned"]);
    assert_eq!(
        count(&gain["pages"]),
        count(&totals["well_aligned"]) + count(&totals["misaligned"])
    );
    assert_eq!(count(&gain["left_out"]), count(&totals["uncertain"]) + count(&totals["unknown"]));
    let misses = &gain["l2_misses_per_1000"];
    assert!(misses["now"].as_f64() >= misses["aligned"].as_f64(), "{gain}");
    let table = run(&format!("join {} --gain --cpu skylake-gold-6138", pair()));
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.contains("on skylake-gold-6138") && text.contains("throughput"), "{text}");
    refused(&run(&format!("join {} --cpu skylake-gold-6138", pair())), 2, "--gain");
    refused(&run(&format!("join {} --gain --cpu nothing", pair())), 2, "strata list cpus");
}

#[test]
fn every_row_about_huge_pages_has_a_term() {
    let output = run(&format!("join {} --gain", pair()));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut rows = 0;
    for heading in ["guest huge pages ", "model "] {
        let table = text.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
        for line in table.take_while(|line| !line.is_empty() && !line.contains("accesses to")) {
            let label = line[..27].trim();
            assert!(strata::terms::find(label).is_some(), "'{label}' is no term: {text}");
            rows += 1;
        }
    }
    assert!(rows >= 7, "{rows} rows: {text}");
}

#[test]
fn snapshots_go_through_pipes_and_devices() {
    let scanned = run("scan -o -");
    assert!(scanned.stdout.starts_with(b"STRATAS\n"), "{}", complaint(&scanned));
    let mut join = strata(&format!("join - {}", example("host")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    join.stdin.take().unwrap().write_all(&scanned.stdout).unwrap();
    // This machine is not the example's guest.
    assert!(!join.wait_with_output().unwrap().status.success());
    assert!(run("scan -o /dev/null").status.success());
    assert!(
        fs::metadata("/dev/null").unwrap().file_type()
            != fs::metadata(example("host")).unwrap().file_type()
    );
    refused(&run_quietly("scan -o /dev/full"), 1, "cannot write");
}

/// Runs and keeps the last line of the complaint: notes on what cannot be seen come before.
fn run_quietly(line: &str) -> std::process::Output {
    let mut output = run(line);
    let text = complaint(&output);
    output.stderr = text.lines().last().unwrap_or("").as_bytes().to_vec();
    output
}

#[test]
fn refusals_are_one_line_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("foreign"), "hello").unwrap();
    let mut bytes = fs::read(example("guest")).unwrap();
    bytes[100] ^= 1;
    fs::write(path("damaged"), &bytes).unwrap();
    let host = example("host");
    refused(&run(&format!("join {} {host}", path("none"))), 1, "check the path");
    refused(&run(&format!("join {} {host}", path("foreign"))), 1, "is no snapshot");
    refused(&run(&format!("join {} {host}", path("damaged"))), 1, "checksum is wrong");
    refused(&run(&format!("join {host}")), 1, "two snapshots at least");
    refused(&run("join"), 2, "required");
    refused(&run("join - -"), 2, "only one snapshot can come from the standard input");
    let two = format!("join {} --json - --prometheus -", pair());
    refused(&run(&two), 2, "only one result can go to the standard output");
    refused(&run(&format!("join {} --vm nobody", pair())), 1, "choose with --vm PID|NAME|UUID");
    refused(&run(&format!("join {host} {}", example("guest"))), 1, "has no VM");
    refused(&run(&format!("join {} -o /nowhere/x", pair())), 1, "/nowhere");
    refused(&run("scan -o /nowhere/x"), 1, "cannot write /nowhere/x");
    refused(&run(&format!("scan --root {}", path(""))), 1, "mount /proc first");
    refused(&run("top --interval 0"), 2, "give seconds from 0.1");
    refused(&run("top --once -n 3"), 2, "cannot be used with");
}

#[test]
fn a_refused_scan_leaves_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.scan");
    fs::write(&file, "old").unwrap();
    let root = directory.path().join("empty");
    fs::create_dir(&root).unwrap();
    let line = format!("scan -o {} --root {}", file.display(), root.display());
    refused(&run(&line), 1, "mount /proc first");
    assert_eq!(fs::read(&file).unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn top_in_a_pipe_is_plain_and_ends() {
    let begun = Instant::now();
    let output = run("top -n 2 --interval 0.1");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !text.contains('\x1b'), "{text}");
    assert_eq!(text.matches(", Linux ").count(), 2, "{text}");
    let once = String::from_utf8(run("top").stdout).unwrap();
    assert_eq!(once.matches(", Linux ").count(), 1, "one picture where nobody watches");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn ctrl_c_ends_top() {
    let mut child = Command::new(program())
        .args(["top", "-n", "1000", "--interval", "60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first picture shows that it runs.
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    let pressed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(pressed.success());
    let begun = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_pipe_in_a_synthetic_tree_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/7")).unwrap();
    for name in ["vmstat", "7/maps", "kpageflags"] {
        let pipe = root.path().join("proc").join(name);
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let mut child = strata("scan --root")
        .arg(root.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if patience.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("it waits for the pipe");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success());
}

/// A host with a VM of 2 MiB in one huge page, whose kernel tracks idle frames.
fn watched_host() -> tempfile::TempDir {
    const HVA: u64 = 1 << 28;
    const FRAME: u64 = 1024;
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let words = |word: &dyn Fn(u64) -> u64, count: u64| -> Vec<u8> {
        (0..count).flat_map(|at| word(at).to_ne_bytes()).collect()
    };
    put("proc/7/cmdline", b"vmm\0");
    put("proc/7/comm", b"vmm\n");
    put("proc/7/status", b"Name:\tvmm\n");
    let area = format!("{HVA:x}-{:x} rw-p 00000000 00:00 0 \n", HVA + (2 << 20));
    put("proc/7/maps", area.as_bytes());
    put("proc/7/smaps", format!("{area}VmFlags: rd wr\n").as_bytes());
    put("proc/7/fd/0", b"");
    std::os::unix::fs::symlink("anon_inode:kvm-vm", root.path().join("proc/7/fd/9")).unwrap();
    put("proc/7/pagemap", b"");
    let pagemap = fs::File::options().write(true).open(root.path().join("proc/7/pagemap")).unwrap();
    let mapped = words(&|page| 1 << 63 | (FRAME + page), 512);
    std::os::unix::fs::FileExt::write_all_at(&pagemap, &mapped, HVA / 4096 * 8).unwrap();
    // In one transparent huge page on a list: a head, and tails.
    let flags = |frame: u64| match frame.checked_sub(FRAME) {
        Some(0) => 1 << 22 | 1 << 15 | 1 << 5,
        Some(..512) => 1 << 22 | 1 << 16,
        _ => 0,
    };
    put("proc/kpageflags", &words(&flags, 2048));
    put("sys/kernel/mm/page_idle/bitmap", &[0; 256]);
    let cache = "sys/devices/system/cpu/cpu0/cache/index2";
    for (name, text) in [
        ("level", "2"),
        ("type", "Unified"),
        ("number_of_sets", "1024"),
        ("ways_of_associativity", "16"),
        ("coherency_line_size", "64"),
        ("shared_cpu_list", "0"),
    ] {
        put(&format!("{cache}/{name}"), text.as_bytes());
    }
    root
}

#[test]
fn ctrl_c_ends_the_watching_and_not_the_scan() {
    let root = watched_host();
    let bitmap = root.path().join("sys/kernel/mm/page_idle/bitmap");
    let wait = ["--hot", "600"].map(str::to_owned);
    for verb in ["scan", "top"] {
        fs::write(&bitmap, [0; 256]).unwrap();
        let child = Command::new(program())
            .arg(verb)
            .args(&wait)
            .arg("--root")
            .arg(root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while fs::read(&bitmap).unwrap().iter().all(|byte| *byte == 0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is marked");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Its guest uses it.
        fs::write(&bitmap, [0; 256]).unwrap();
        let pressed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(pressed.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
        assert!(begun.elapsed() < Duration::from_secs(120));
        let text = String::from_utf8(output.stdout).unwrap();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("hot: 512 of 512 base pages watched, used within"), "{text}");
        assert!(flat.contains("(page_idle); a huge page counts as a whole"), "{text}");
        assert!(flat.contains("L2 512 16 of 16 1.00 x mean"), "{text}");
    }
}

#[test]
fn hot_memory_is_asked_for_in_seconds() {
    refused(&run("scan --hot 0"), 2, "give seconds from 0.1");
    refused(&run("top --hot never --once"), 2, "give seconds from 0.1");
    // No VM of this tree is watched, so nobody waits.
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("proc")).unwrap();
    let output = run(&format!("scan --hot 3600 --root {}", directory.path().display()));
    assert!(output.status.success(), "{}", complaint(&output));
}

/// A layer that gives its snapshot while `then` runs: where it listens, and the key. What it said on its way.
fn served(then: impl FnOnce(&str, &str)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let [key, socket] = ["key", "socket"].map(|name| directory.path().join(name));
    fs::write(&key, [1; 32]).unwrap();
    let (key, place) = (key.display().to_string(), format!("unix:{}", socket.display()));
    /// Whatever fails, no server is left behind.
    struct Ended(Option<std::process::Child>);
    impl Drop for Ended {
        fn drop(&mut self) {
            if let Some(child) = &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
    let mut guarded = Ended(Some(
        strata(&format!("scan --serve={place} --key {key}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    ));
    let server = guarded.0.as_mut().unwrap();
    let mut line = [0; 9];
    server.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"snapshots");
    then(&place, &key);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(server.id() as i32),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    let output = guarded.0.take().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(!socket.exists(), "its socket goes with it");
    complaint(&output)
}

#[test]
fn a_layer_gives_its_snapshot_to_who_knows_the_key() {
    let said = served(|place, key| {
        // What it gave is a snapshot, but of this very machine: none of its VMs.
        let output = run(&format!("join --from {place} --key {key}"));
        refused(&output, 1, "snapshot");
        let wrong = format!("{key}.wrong");
        fs::write(&wrong, [2; 32]).unwrap();
        let output = run(&format!("join --from {place} --key {wrong} {}", example("host")));
        refused(&output, 1, "both ends need the same --key");
    });
    assert!(said.contains("a snapshot was given"), "{said}");
    assert!(said.contains("without the key was turned away"), "{said}");
}

#[test]
fn bad_places_and_keys_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let short = directory.path().join("short");
    fs::write(&short, "secret").unwrap();
    let short = short.display();
    for (line, status, why) in [
        ("scan --serve".to_owned(), 2, "--key"),
        (format!("scan --serve=tcp:1 --key {short}"), 2, "vsock:PORT or unix:PATH"),
        (format!("scan --serve=unix:/x --key {short}"), 1, "has 6 bytes"),
        (format!("scan --serve --key {short} -o x.scan"), 2, "--output"),
        ("scan --key x".to_owned(), 2, "--serve"),
        ("join --from vsock:3".to_owned(), 2, "--key"),
        (format!("join --from tcp:3 --key {short}"), 2, "vsock:CID"),
        ("join --from vsock:3 --key nokey".to_owned(), 1, "head -c 32"),
        ("join --key x a.scan".to_owned(), 2, "--from"),
        ("join".to_owned(), 2, "SNAPSHOT"),
    ] {
        refused(&run(&line), status, why);
    }
    let key = directory.path().join("key");
    fs::write(&key, [1; 32]).unwrap();
    let line = format!("join --from unix:{short}.nowhere --key {}", key.display());
    refused(&run(&line), 1, "run 'strata scan --serve' there");
}

//! Real programs that benches run, as far as they are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs, each a name and words; `%` is a file of some megabytes, `@` a C file, `!` a socket where it is asked.
pub const PROGRAMS: [(&str, &[&str]); 13] = [
    ("sqlite", &["sqlite3", ":memory:", SQL]),
    ("redis", &["redis-server", "--port", "0", "--save", "", "--unixsocket", "!"]),
    ("xz", &["xz", "-1", "-k", "-c", "%"]),
    // The compiler itself: its driver would start it outside of plain emulation.
    ("cc1", &["cc1", "-quiet", "-O2", "-o", "/dev/null", "@"]),
    (
        "python",
        &["python3", "-c", "d={}\nfor i in range(600000): d[i*7919%100003]=str(i)\nprint(len(d))"],
    ),
    ("numpy", &["python3", "-c", NUMPY]),
    ("gather", &["python3", "-c", GATHER]),
    ("perl", &["perl", "-e", "for (1..1500000) { $h{$_*7919 % 50021} .= 'x' } print scalar(%h)"]),
    ("gzip", &["gzip", "-6", "-c", "%"]),
    ("sort", &["sort", "--parallel=1", "-S", "64M", "%"]),
    ("awk", &["awk", "BEGIN { for (i = 0; i < 2000000; i++) a[i % 70001] += i; print length(a) }"]),
    ("zstd", &["zstd", "-T1", "-9", "-c", "%"]),
    ("sha256sum", &["sha256sum", "%"]),
];

const SQL: &str = "create table t(a integer primary key, b text, c integer);
    with recursive n(i) as (select 1 union all select i+1 from n where i < 400000)
    insert into t select i, hex(i*7919 % 100003), i*31 % 10007 from n;
    create index x on t(c); select count(*), sum(length(b)) from t where c between 100 and 5000;
    select c, count(*) from t group by c order by 2 desc limit 5;";

const NUMPY: &str = "import numpy as np
a = np.random.default_rng(1).random((300, 300))
for i in range(12): a = a @ a / np.linalg.norm(a)
b = np.sort(np.random.default_rng(2).random(600000)); print(a.sum(), b[:9])";

/// Loads at random from 256 MiB.
const GATHER: &str = "import numpy as np
a = np.arange(1 << 25); r = np.random.default_rng(1)
print(sum(int(a[r.integers(0, a.size, 1 << 20)].sum()) for i in range(8)))";

/// The words to run, the program by its path.
pub fn command(words: &[&str], room: &Path) -> Option<Vec<String>> {
    let file = room.join("file");
    if !file.exists() {
        let emulator = std::fs::read(found("qemu-x86_64")?).ok()?;
        let bytes: Vec<u8> = emulator.iter().copied().cycle().take(24 << 20).collect();
        std::fs::write(&file, bytes).ok()?;
    }
    let source = room.join("source.c");
    if !source.exists() {
        std::fs::write(&source, c_source()).ok()?;
    }
    let mut command: Vec<String> = words
        .iter()
        .map(|word| match *word {
            "%" => file.display().to_string(),
            "@" => source.display().to_string(),
            "!" => room.join("socket").display().to_string(),
            word => word.to_owned(),
        })
        .collect();
    let path = match words[0] {
        // What is found may be a script that looks for it.
        "python3" => told("python3", &["-c", "import sys; print(sys.executable)"])?,
        "cc1" => told("gcc", &["-print-prog-name=cc1"])?,
        name => found(name)?,
    };
    if words.contains(&NUMPY) || words.contains(&GATHER) {
        told("python3", &["-c", "import numpy; print(numpy.__file__)"])?;
    }
    command[0] = path.display().to_string();
    Some(command)
}

/// The path that a program tells; `None` if it is not there or fails.
fn told(name: &str, words: &[&str]) -> Option<PathBuf> {
    let said = Command::new(found(name)?).args(words).stderr(Stdio::null()).output().ok()?;
    let path = String::from_utf8(said.stdout).ok()?;
    said.status.success().then(|| PathBuf::from(path.trim()))
}

fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|at| at.join(name)).find(|file| file.is_file())
}

fn c_source() -> String {
    let function = |n: usize| {
        format!(
            "int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) {{ if (a[i] & {n}) \
             s += a[i] * {n}; else s ^= a[i] >> 3; switch (s & 7) {{ case 0: s -= a[i / 2]; break; \
             case 3: s -= 2; case 5: s *= 3; }} }} return s; }}\n"
        )
    };
    (0..60).map(function).collect()
}

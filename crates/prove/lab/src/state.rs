//! Keeping the state of an emulated machine, and going on from it: a migration to a file (QEMU,
//! docs/devel/migration.rst), without the memory, which is a file already.

use serde_json::{Value, json};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use strata_inspect::scan::qmp::{Client, QmpError};

/// The variable of the emulator's environment that says which file the state of its devices is.
pub(crate) const DEVICES: &str = "STRATA_DEVICES";
/// Time that the emulator may take for it.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(5);

/// Stops the machine whose emulator takes commands here for good, and writes the state of its devices into `file`,
/// which is the one that [`DEVICES`] names.
///
/// # Errors
/// What the emulator says.
pub(crate) fn save(control: &Path, file: &Path) -> Result<(), String> {
    let mut emulator = connect(control)?;
    let mut execute = |command: &str, arguments: &Value| {
        emulator.execute(command, arguments).map_err(|error| error.to_string())
    };
    execute("stop", &json!({}))?;
    execute("migrate-set-capabilities", &capabilities())?;
    // The emulator has done its part when all is in a pipe; the file has its name when all is in the file.
    let whole = format!("exec:cat > \"${DEVICES}.part\" && mv \"${DEVICES}.part\" \"${DEVICES}\"");
    execute("migrate", &json!({ "uri": whole }))?;
    wait(|| {
        let answer = execute("query-migrate", &json!({}))?;
        let text = |key| answer.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("status") {
            "completed" => Ok(true),
            "failed" | "cancelled" => {
                Err(format!("its state is not saved: {}", text("error-desc")))
            }
            _ => Ok(false),
        }
    })?;
    // It may hang up before it answers.
    let _ = execute("quit", &json!({}));
    wait(|| Ok(file.exists())).map_err(|error| format!("its state is not written: {error}"))
}

/// Has the machine whose emulator takes commands here, and waits for a state, go on from the one in the
/// file that [`DEVICES`] names.
///
/// # Errors
/// What the emulator says; that it hung up, if the state is none of such a machine.
pub(crate) fn restore(control: &Path) -> Result<(), String> {
    let mut emulator = connect(control)?;
    let mut execute = |command: &str, arguments: &Value| {
        emulator.execute(command, arguments).map_err(|error| error.to_string())
    };
    execute("migrate-set-capabilities", &capabilities())?;
    execute("migrate-incoming", &json!({ "uri": format!("exec:cat \"${DEVICES}\"") }))?;
    wait(|| {
        let answer = execute("query-status", &json!({}))?;
        let status = answer.get("status").and_then(Value::as_str).unwrap_or_default();
        match status {
            "inmigrate" => Ok(false),
            "paused" | "prelaunch" | "postmigrate" => Ok(true),
            other => Err(format!("it is {other} after its state was read")),
        }
    })?;
    execute("cont", &json!({})).map(drop)
}

/// Memory that is a file is not part of the state.
fn capabilities() -> Value {
    json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": true }] })
}

/// Connects as soon as the emulator listens.
fn connect(control: &Path) -> Result<Client, String> {
    let begin = Instant::now();
    loop {
        match Client::connect(control, Some(LIMIT)) {
            Err(QmpError::Socket(_)) if begin.elapsed() < LIMIT => thread::sleep(LOOK),
            connected => return connected.map_err(|error| error.to_string()),
        }
    }
}

fn wait(mut done: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let begin = Instant::now();
    while !done()? {
        if begin.elapsed() > LIMIT {
            return Err(format!("it takes more than {} s", LIMIT.as_secs()));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    /// An emulator that says that its state is written as soon as it has begun to write it.
    fn emulator(listener: &UnixListener, devices: &Path) {
        let (connection, _) = listener.accept().unwrap();
        let mut answers = connection.try_clone().unwrap();
        writeln!(answers, r#"{{"QMP": {{}}}}"#).unwrap();
        for line in BufReader::new(connection).lines() {
            let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let answer = match command["execute"].as_str().unwrap() {
                "migrate" => {
                    let uri = command["arguments"]["uri"].as_str().unwrap().to_owned();
                    let mut child = Command::new("sh")
                        .args(["-c", uri.strip_prefix("exec:").unwrap()])
                        .env(DEVICES, devices)
                        .stdin(Stdio::piped())
                        .spawn()
                        .unwrap();
                    thread::spawn(move || {
                        let mut pipe = child.stdin.take().unwrap();
                        for part in ["all ", "of ", "it"] {
                            pipe.write_all(part.as_bytes()).unwrap();
                            thread::sleep(Duration::from_millis(50));
                        }
                        drop(pipe);
                        child.wait().unwrap()
                    });
                    json!({})
                }
                "query-migrate" => json!({ "status": "completed" }),
                _ => json!({}),
            };
            writeln!(answers, "{}", json!({ "return": answer })).unwrap();
        }
    }

    #[test]
    fn a_state_that_is_saved_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (control, devices) =
            (directory.path().join("socket"), directory.path().join("devices"));
        let listener = UnixListener::bind(&control).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| emulator(&listener, &devices));
            save(&control, &devices).unwrap();
            assert_eq!(std::fs::read_to_string(&devices).unwrap(), "all of it");
        });
    }
}

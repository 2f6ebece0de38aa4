//! Commands to a VMM over its control socket (QEMU Machine Protocol Specification).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// Sends one command and returns what it answers. The connection is closed again: a VMM serves one
/// at a time, and others may want it.
pub(crate) fn send(socket: &str, execute: &str, arguments: &Value) -> Result<Value, String> {
    let failed = |error: std::io::Error| format!("the VMM's socket {socket}: {error}");
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let mut lines = BufReader::new(stream.try_clone().map_err(failed)?);
    let answer = |lines: &mut BufReader<UnixStream>| -> Result<Value, String> {
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).map_err(failed)? == 0 {
                return Err(format!("the VMM closed {socket}"));
            }
            let value: Value = serde_json::from_str(&line)
                .map_err(|error| format!("the VMM says {line:?}: {error}"))?;
            // Events come in between.
            if value.get("event").is_none() {
                return Ok(value);
            }
        }
    };
    answer(&mut lines)?;
    for command in [
        json!({ "execute": "qmp_capabilities" }),
        json!({ "execute": execute, "arguments": arguments }),
    ] {
        stream.write_all(format!("{command}\n").as_bytes()).map_err(failed)?;
        let value = answer(&mut lines)?;
        if let Some(error) = value.get("error") {
            let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(format!("the VMM refuses {execute}: {reason}"));
        }
        if command["execute"] == *execute {
            return Ok(value["return"].clone());
        }
    }
    Err(format!("the VMM does not answer {execute}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[test]
    fn a_command_is_answered_whatever_events_come_between() {
        let path = std::env::temp_dir().join(format!("strata-agent-qmp-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let vmm = thread::spawn(move || {
            for reply in [r#"{"return": {"a": 1}}"#, r#"{"error": {"desc": "no such thing"}}"#] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                stream.write_all(b"{\"QMP\": {}}\n").unwrap();
                lines.next().unwrap().unwrap();
                stream.write_all(b"{\"event\": \"RESUME\"}\n{\"return\": {}}\n").unwrap();
                assert!(lines.next().unwrap().unwrap().contains("balloon"));
                stream.write_all(format!("{{\"event\": \"X\"}}\n{reply}\n").as_bytes()).unwrap();
            }
        });
        let socket = path.to_str().unwrap();
        assert_eq!(send(socket, "balloon", &json!({ "value": 1 })), Ok(json!({ "a": 1 })));
        let refused = send(socket, "balloon", &json!({}));
        assert_eq!(refused, Err("the VMM refuses balloon: no such thing".into()));
        vmm.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(send(socket, "balloon", &json!({})).unwrap_err().contains(socket));
    }
}

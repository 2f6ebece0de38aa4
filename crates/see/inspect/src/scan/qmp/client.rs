//! Commands to a VMM over its control socket (QEMU Machine Protocol Specification).

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of all that a VMM says on one connection, at most.
const LONGEST: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The VMM hung up.
    #[error("the VMM closed it")]
    Closed,
    /// What it says is no QMP.
    #[error("the VMM says {said:?}: {error}")]
    Garbled {
        /// The line.
        said: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// The VMM will not.
    #[error("the VMM refuses {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// What it says.
        reason: String,
    },
}

/// A connection to a VMM, ready for commands. A VMM serves one at a time, and others may want it: drop
/// it soon.
#[derive(Debug)]
pub struct Client {
    input: BufReader<io::Take<UnixStream>>,
    stream: UnixStream,
}

impl Client {
    /// Connects, and waits for each answer as long as `patience`, or for ever.
    ///
    /// # Errors
    /// When nobody listens at `path`, or what does is no VMM.
    pub fn connect(path: &Path, patience: Option<Duration>) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        let input = BufReader::new(stream.try_clone()?.take(LONGEST));
        let mut client = Self { input, stream };
        client.receive("QMP", "to talk")?;
        client.execute("qmp_capabilities", &json!({}))?;
        Ok(client)
    }

    /// What the VMM answers to a command with these arguments, an object.
    ///
    /// # Errors
    /// When it refuses, or is gone.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.stream.write_all(format!("{line}\n").as_bytes())?;
        self.receive("return", command)
    }

    /// The next message with this key; events in between are left out.
    fn receive(&mut self, key: &str, command: &str) -> Result<Value, QmpError> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                return Err(QmpError::Closed);
            }
            let mut message: Value = serde_json::from_str(&line)
                .map_err(|error| QmpError::Garbled { said: line.trim_end().to_owned(), error })?;
            if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str);
                let reason = reason.unwrap_or("no reason given").to_owned();
                return Err(QmpError::Refused { command: command.to_owned(), reason });
            }
            if let Some(found) = message.get_mut(key) {
                return Ok(found.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[test]
    fn a_command_is_answered_whatever_events_come_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let vmm = thread::spawn(move || {
            let replies =
                [r#"{"return": {"a": 1}}"#, r#"{"error": {"desc": "no such thing"}}"#, "HMP"];
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                stream.write_all(b"{\"QMP\": {}}\n").unwrap();
                lines.next().unwrap().unwrap();
                stream.write_all(b"{\"event\": \"RESUME\"}\n{\"return\": {}}\n").unwrap();
                assert!(lines.next().unwrap().unwrap().contains("balloon"));
                stream.write_all(format!("{{\"event\": \"X\"}}\n{reply}\n").as_bytes()).unwrap();
            }
        });
        let send = || {
            let mut client = Client::connect(&path, Some(Duration::from_secs(10)))?;
            client.execute("balloon", &json!({ "value": 1 }))
        };
        assert_eq!(send().unwrap(), json!({ "a": 1 }));
        let refused = send().unwrap_err().to_string();
        assert_eq!(refused, "the VMM refuses balloon: no such thing");
        assert!(send().unwrap_err().to_string().starts_with("the VMM says \"HMP\": "));
        vmm.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(send(), Err(QmpError::Socket(_))));
    }
}

//! The virtual machine of the layer above, as this layer runs it.

use crate::port::Reporter;
use crate::program::status;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use strata_protocol::{Event, VM_SOCKET};

/// A running machine's port.
#[derive(Debug)]
pub(crate) struct Vm {
    port: UnixStream,
}

impl Vm {
    /// Starts the machine and relays its console and its port. Returns its process number.
    pub(crate) fn boot(argv: &[String], reporter: &Reporter) -> Result<(Self, u32), String> {
        let failed = |error: io::Error| format!("cannot start {}: {error}", argv.join(" "));
        let (program, arguments) = argv.split_first().ok_or("there is no VMM to start")?;
        // Of a machine that ran before.
        let _ = fs::remove_file(VM_SOCKET);
        let listener = UnixListener::bind(VM_SOCKET).map_err(failed)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pid = child.id();
        let console = child.stdout.take().expect("it is piped");
        let errors = child.stderr.take().expect("it is piped");
        relay_lines(console, reporter.clone(), |line| Event::Console { line });
        relay_lines(errors, reporter.clone(), |line| Event::Console { line });
        // The VMM connects before the machine runs; if it dies instead, its end is what counts.
        let ending = reporter.clone();
        thread::spawn(move || {
            let status = child.wait().map_or(-1, status);
            // Whoever still waits for the connection gets one that is at its end.
            let _ = UnixStream::connect(VM_SOCKET);
            ending.tell(Event::Down { status });
        });
        let (port, _) = listener.accept().map_err(failed)?;
        let mut lines = BufReader::new(port.try_clone().map_err(failed)?);
        let reporter = reporter.clone();
        thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                reporter.pass(&line);
                line.clear();
            }
        });
        Ok((Self { port }, pid))
    }

    /// Passes an order on to the layers above.
    pub(crate) fn pass_on(&mut self, line: &str) -> io::Result<()> {
        self.port.write_all(line.as_bytes())
    }
}

fn relay_lines(
    stream: impl io::Read + Send + 'static,
    reporter: Reporter,
    event: impl Fn(String) -> Event + Send + 'static,
) {
    thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            reporter.tell_of_above(event(text));
            line.clear();
        }
    });
}

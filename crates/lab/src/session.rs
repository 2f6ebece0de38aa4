//! A shell in a layer, for a person to look around.

use crate::boot::ORDER_LIMIT;
use crate::error::{LabError, on};
use crate::link::Link;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use strata_agent::message::{Command, Event};

/// What the shell is called between the lab and the agent.
const NAME: &str = "shell";
/// Ends the session whatever the shell does: Ctrl-].
const LEAVE: u8 = 0x1d;
/// End of file on a terminal: Ctrl-D.
const END: u8 = 0x04;

/// Time after which a shell that did not take the end of its input is told of it again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs a shell in a layer until it ends, until the user leaves, or until input is at its end and
/// the shell has taken it.
pub(crate) fn run(
    link: &mut Link,
    layer: u8,
    input: &Receiver<Vec<u8>>,
    output: &mut dyn Write,
) -> Result<(), LabError> {
    let argv = ["/bin/busybox", "sh"].map(str::to_owned).into();
    let command = Command::Terminal { name: NAME.into(), argv };
    link.order(layer, "start a shell", command, ORDER_LIMIT)?;
    let mut ended: Option<Instant> = None;
    loop {
        loop {
            let bytes = match input.try_recv() {
                Ok(bytes) => bytes,
                Err(TryRecvError::Empty) => break,
                // A command that runs may take the end for its own, so the shell is told again.
                Err(TryRecvError::Disconnected) if ended.is_none_or(|at| at.elapsed() > AGAIN) => {
                    ended = Some(Instant::now());
                    vec![END]
                }
                Err(TryRecvError::Disconnected) => break,
            };
            if bytes.contains(&LEAVE) {
                return Ok(());
            }
            let base64 = STANDARD.encode(&bytes);
            link.send(layer, Command::Type { name: NAME.into(), base64 });
        }
        match link.hear(layer, "run a shell")? {
            Some(Event::Screen { base64, .. }) => {
                let bytes = STANDARD.decode(base64).unwrap_or_default();
                let out = Path::new("the standard output");
                on(out, output.write_all(&bytes).and_then(|()| output.flush()))?;
            }
            Some(Event::Exited { name, .. }) if name == NAME => return Ok(()),
            _ => {}
        }
    }
}

//! A shell in a layer, for a person to look around.

use crate::error::{LabError, on};
use crate::link::{Link, ORDER_LIMIT};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use strata_protocol::{Command, Event};

/// What the shell is called between the lab and the agent.
const NAME: &str = "shell";
/// Ends the session whatever the shell does: Ctrl-].
const LEAVE: u8 = 0x1d;
/// Where a shell's commands come from and where what it prints goes.
pub struct Console<'a> {
    /// Rows and columns of the terminal that the shell is to have; without, what comes in is its
    /// script.
    pub size: Option<(u16, u16)>,
    /// What comes in; at its end once the sender is gone.
    pub input: &'a Receiver<Vec<u8>>,
    /// What goes out.
    pub output: &'a mut dyn Write,
}

/// Runs a shell in a layer until it ends or the user leaves. Returns its status.
pub(crate) fn run(
    link: &mut Link,
    layer: u8,
    Console { size, input, output }: Console<'_>,
) -> Result<i32, LabError> {
    let argv = ["/bin/busybox", "sh"].map(str::to_owned).into();
    let command = Command::Terminal { name: NAME.into(), argv, size };
    link.order(layer, "start a shell", command, ORDER_LIMIT)?;
    let mut ended = false;
    loop {
        loop {
            let bytes = match input.try_recv() {
                Ok(bytes) => bytes,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if ended => break,
                Err(TryRecvError::Disconnected) if size.is_some() => return Ok(0),
                Err(TryRecvError::Disconnected) => {
                    ended = true;
                    Vec::new()
                }
            };
            if size.is_some() && bytes.contains(&LEAVE) {
                return Ok(0);
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
            Some(Event::Exited { name, status }) if name == NAME => return Ok(status),
            _ => {}
        }
    }
}

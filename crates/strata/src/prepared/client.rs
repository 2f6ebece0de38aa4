//! Whoever asks a server while it is recorded, unobserved.

use super::recipe::Recipe;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a server may take until it listens: it starts in the emulator, which is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scripts of a recipe, one after the other.
pub struct Client {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// What the server does from now on is to be recorded.
    cue: Arc<AtomicBool>,
    stop: AtomicBool,
    /// The process group of the script that runs; 0 for none.
    group: AtomicI32,
    failure: Mutex<Option<String>>,
}

impl Client {
    /// Fills the server of a recipe once it listens, then gives the cue and asks until it is dropped.
    pub fn start(recipe: &Recipe, directory: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let script = |text: &Option<String>| {
            text.as_ref().map(|text| Recipe::within(text, directory)).unwrap_or_default()
        };
        let (socket, fill, load) =
            (script(&recipe.ready), script(&recipe.fill), script(&recipe.load));
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || {
                if let Err(why) = shared.ask(&PathBuf::from(socket), &fill, &load) {
                    *shared.failure.lock().expect("nobody panics") = Some(why);
                }
            })
        };
        Self { shared, thread: Some(thread) }
    }

    /// Set when the server is filled.
    pub fn cue(&self) -> Arc<AtomicBool> {
        self.shared.cue.clone()
    }

    /// Why it gave up, if it did.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().expect("nobody panics").clone()
    }
}

impl Shared {
    fn ask(&self, socket: &Path, fill: &str, load: &str) -> Result<(), String> {
        let since = Instant::now();
        while UnixStream::connect(socket).is_err() {
            if self.stop.load(Relaxed) {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("it does not listen after {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.run(fill)?;
        self.cue.store(true, Relaxed);
        while !self.stop.load(Relaxed) {
            self.run(load)?;
        }
        Ok(())
    }

    /// Runs a script to its end, or until the client is dropped.
    fn run(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).process_group(0).spawn();
        let child = child.map_err(|error| format!("cannot run sh: {error}"))?;
        self.group.store(child.id().cast_signed(), Relaxed);
        // Dropped meanwhile, when it did not know whom to end.
        if self.stop.load(Relaxed) {
            self.end();
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        self.group.store(0, Relaxed);
        if output.status.success() || self.stop.load(Relaxed) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("nothing said").to_owned();
        Err(format!("its client failed ({}): {last}", output.status))
    }

    fn end(&self) {
        let group = self.group.load(Relaxed);
        if group > 0 {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! The way to the layer below: a virtio port.

use nix::time::{ClockId, clock_gettime};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;
use strata_protocol::{Event, PORT_NAME, Report};

/// Opens the port that bears the agreed name. Drivers may still be at work, so it is waited for.
pub(crate) fn open() -> Result<File, String> {
    const TRIES: u32 = 500;
    for _ in 0..TRIES {
        if let Some(device) = find() {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .open(&device)
                .map_err(|error| format!("cannot open {device}: {error}"));
        }
        sleep(Duration::from_millis(20));
    }
    Err(format!("there is no virtio port named {PORT_NAME}"))
}

fn find() -> Option<String> {
    fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        (name.trim() == PORT_NAME).then(|| format!("/dev/{}", entry.file_name().display()))
    })
}

/// Sends reports to the layer below, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    layer: u8,
    port: Arc<Mutex<File>>,
}

impl Reporter {
    pub(crate) fn new(layer: u8, port: File) -> Self {
        Self { layer, port: Arc::new(Mutex::new(port)) }
    }

    /// Ends the line that an agent before this one may have begun when its machine was reset.
    pub(crate) fn begin(&self) {
        self.pass(b"\n");
    }

    /// Reports what happened in this layer.
    pub(crate) fn tell(&self, event: Event) {
        self.tell_of(self.layer, event);
    }

    /// Reports what is seen here of the layer above.
    pub(crate) fn tell_of_above(&self, event: Event) {
        self.tell_of(self.layer + 1, event);
    }

    fn tell_of(&self, from: u8, event: Event) {
        let mut line = serde_json::to_vec(&Report { from, at: uptime(), event })
            .expect("reports are plain data");
        line.push(b'\n');
        self.pass(&line);
    }

    /// Passes on a report of a layer above, whole lines.
    pub(crate) fn pass(&self, line: &[u8]) {
        // A port that fails leaves nobody to tell; the lab notices the silence.
        let _ = self.port.lock().unwrap_or_else(PoisonError::into_inner).write_all(line);
    }
}

/// Seconds since this layer's kernel started.
pub(crate) fn uptime() -> f64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

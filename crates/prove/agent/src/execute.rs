//! Doing what the lab orders.

use crate::files;
use crate::port::{Reporter, uptime};
use crate::program::{self, How, Program};
use crate::terminal::Terminal;
use crate::vm::Vm;
use crate::watch;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sync};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use strata_inspect::scan::qmp::{Client, QmpError};
use strata_protocol::{Command, Event, Order, Reply};

/// What the agent holds on to.
#[derive(Debug)]
pub(crate) struct Hands {
    reporter: Reporter,
    vm: Mutex<Option<Vm>>,
    programs: Mutex<HashMap<String, Program>>,
    terminals: Mutex<HashMap<String, Terminal>>,
}

impl Hands {
    pub(crate) fn new(reporter: Reporter) -> Self {
        Self {
            reporter,
            vm: Mutex::default(),
            programs: Mutex::default(),
            terminals: Mutex::default(),
        }
    }

    /// Does what is ordered and answers, without keeping the next order waiting.
    pub(crate) fn obey(self: &Arc<Self>, order: Order) {
        if let Command::Type { .. } = order.command {
            // What is typed is in order, and takes no time.
            return self.answer(order);
        }
        let hands = Arc::clone(self);
        thread::spawn(move || hands.answer(order));
    }

    fn answer(&self, order: Order) {
        let event = match self.execute(order.command) {
            Ok(reply) => Event::Done { id: order.id, reply },
            Err(reason) => Event::Failed { id: order.id, reason },
        };
        self.reporter.tell(event);
    }

    /// Passes an order on to the layers above.
    pub(crate) fn pass_on(&self, line: &str) -> Result<(), String> {
        match lock(&self.vm).as_mut() {
            Some(vm) => match vm.pass_on(line) {
                // Its VMM has ended, and whoever waits for that is about to tell so.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                passed => passed.map_err(|error| format!("the VM's port: {error}")),
            },
            None => Err(format!("there is no layer above to pass on {line}")),
        }
    }

    fn execute(&self, command: Command) -> Result<Reply, String> {
        match command {
            Command::Write { path, text } => {
                files::write(&path, &text)?;
            }
            Command::Read { paths } => {
                return Ok(Reply::Texts { at: uptime(), texts: files::texts(&paths) });
            }
            Command::Fetch { path, offset } => {
                let (base64, last) = files::chunk(&path, offset)?;
                return Ok(Reply::Chunk { base64, last });
            }
            Command::Load { modules } => {
                for (file, parameters) in modules {
                    load(&file, &parameters)?;
                }
            }
            Command::Boot { argv } => {
                let (vm, pid) = Vm::boot(&argv, &self.reporter)?;
                *lock(&self.vm) = Some(vm);
                return Ok(Reply::Started { pid, faults: None });
            }
            Command::Start { name, argv, layout, hold, count, watched } => {
                let how = How { layout, hold, count, watched };
                let (program, faults) = program::start(&name, &argv, how, &self.reporter)?;
                let pid = program.pid;
                lock(&self.programs).insert(name, program);
                return Ok(Reply::Started { pid, faults });
            }
            Command::Terminal { name, argv, size } => {
                let terminal = Terminal::start(&name, &argv, size, &self.reporter)?;
                lock(&self.terminals).insert(name, terminal);
            }
            Command::Type { name, base64 } => {
                let mut terminals = lock(&self.terminals);
                let terminal = terminals
                    .get_mut(&name)
                    .ok_or_else(|| format!("no terminal is called {name}"))?;
                terminal.write(&base64)?;
            }
            Command::Signal { name, signal } => {
                let signal = Signal::try_from(signal).map_err(|error| error.to_string())?;
                let pid = self.program(&name, |program| program.pid)?;
                kill(Pid::from_raw(pid as i32), signal)
                    .map_err(|error| format!("cannot signal {name}: {error}"))?;
            }
            Command::Release { name } => {
                // A program that has ended is released already.
                let _ = self.program(&name, |program| program.release.send(()))?;
            }
            Command::Sample { paths, every } => {
                let reporter = self.reporter.clone();
                thread::spawn(move || {
                    loop {
                        reporter.tell(Event::Sample { texts: files::texts(&paths) });
                        thread::sleep(Duration::from_millis(every));
                    }
                });
            }
            Command::Qmp { socket, execute, arguments } => {
                // A connection for each command: a VMM serves one at a time, and others may want it.
                return Client::connect(Path::new(&socket), None)
                    .and_then(|mut vmm| vmm.execute(&execute, &arguments))
                    .map(|answer| Reply::Qmp { answer })
                    .map_err(|error| match error {
                        refused @ QmpError::Refused { .. } => refused.to_string(),
                        error => format!("the VMM's socket {socket}: {error}"),
                    });
            }
            Command::StopWatching => {
                watch::stop().map_err(|error| format!("cannot mark the end: {error}"))?;
            }
            Command::PowerOff => {
                sync();
                let _ = reboot(RebootMode::RB_POWER_OFF);
                return Err("the kernel cannot turn the machine off".into());
            }
        }
        Ok(Reply::Nothing)
    }

    fn program<T>(&self, name: &str, act: impl FnOnce(&Program) -> T) -> Result<T, String> {
        lock(&self.programs)
            .get(name)
            .map(act)
            .ok_or_else(|| format!("no program is called {name}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(file: &str, parameters: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot load {file}: {error}");
    let module = File::open(file).map_err(|error| failed(&error))?;
    let parameters = CString::new(parameters).map_err(|error| failed(&error))?;
    finit_module(&module, &parameters, ModuleInitFlags::empty()).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use std::time::Instant;
    use strata_protocol::Report;

    #[test]
    fn what_is_typed_arrives_in_order_with_its_end_last() {
        let heard = tempfile::NamedTempFile::new().unwrap();
        let hands = Arc::new(Hands::new(Reporter::new(0, heard.reopen().unwrap())));
        let order = |id, command| Order { to: 0, id, command };
        let argv = vec!["/bin/cat".to_owned()];
        let start = Command::Terminal { name: "x".into(), argv, size: None };
        hands.answer(order(0, start));
        let typed = |text: &str| Command::Type { name: "x".into(), base64: STANDARD.encode(text) };
        let words: Vec<String> = (0..500).map(|number| format!("{number} ")).collect();
        for (id, word) in (1..).zip(&words) {
            hands.obey(order(id, typed(word)));
        }
        hands.obey(order(501, typed("")));
        let begin = Instant::now();
        loop {
            let text = std::fs::read_to_string(heard.path()).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let events: Vec<Event> = whole
                .lines()
                .map(|line| serde_json::from_str::<Report>(line).unwrap().event)
                .collect();
            if let Some(Event::Exited { status, .. }) =
                events.iter().find(|event| matches!(event, Event::Exited { .. }))
            {
                let screen = events.iter().filter_map(|event| match event {
                    Event::Screen { base64, .. } => Some(STANDARD.decode(base64).unwrap()),
                    _ => None,
                });
                assert_eq!(String::from_utf8(screen.flatten().collect()).unwrap(), words.concat());
                assert_eq!(*status, 0);
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{text}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

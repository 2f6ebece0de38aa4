//! What happens with an access of the program.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use strata_wire::machine::{
    Frozen, GOODBYE, MARK_AT, MARK_BYTES, MAX_ACCESSES, Placed, START, STOP, Told, VERSION,
};

/// Records accesses and tells the reader.
#[derive(Debug)]
pub struct Recorder {
    /// `None` once the reader is gone.
    reader: Option<UnixStream>,
    recording: bool,
    limit: u64,
    skip: u64,
    /// Accesses still to be left out.
    to_skip: u64,
    /// Accesses still to be recorded.
    left: u64,
    /// The count of instructions when they were last told.
    instructions: u64,
    pending: Vec<Placed>,
}

/// How much to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Accesses to record, at most.
    pub limit: Option<u64>,
    /// Accesses to leave out before.
    pub skip: u64,
}

impl Recorder {
    /// Connects to the reader. A frozen machine waits for it as long as `patience`.
    ///
    /// # Errors
    /// When there is none.
    pub fn connect(path: &Path, amount: Amount, patience: Duration) -> io::Result<Self> {
        let reader = UnixStream::connect(path)?;
        reader.set_read_timeout(Some(patience))?;
        reader.set_write_timeout(Some(patience))?;
        Ok(Self::new(reader, amount))
    }

    fn new(reader: UnixStream, amount: Amount) -> Self {
        let mut recorder = Self {
            reader: Some(reader),
            recording: false,
            limit: amount.limit.unwrap_or(u64::MAX),
            skip: amount.skip,
            to_skip: 0,
            left: 0,
            instructions: 0,
            pending: Vec::with_capacity(MAX_ACCESSES),
        };
        recorder.tell(&Told::Hello(VERSION));
        recorder
    }

    /// Code is instrumented now.
    pub fn armed(&mut self) {
        self.tell(&Told::Armed);
    }

    /// Whether anybody listens.
    pub fn has_reader(&self) -> bool {
        self.reader.is_some()
    }

    /// A store to the page of markers. `instructions` counts those of user code so far.
    pub fn mark(&mut self, at: u64, instructions: u64) {
        debug_assert!(at.wrapping_sub(MARK_AT) < MARK_BYTES);
        match ((at - MARK_AT) / 8, self.recording) {
            (START, false) => {
                self.recording = true;
                (self.to_skip, self.left) = (self.skip, self.limit);
                self.instructions = instructions;
                self.tell(&Told::Started);
                self.recording = self.reader.is_some();
            }
            (STOP, true) => self.freeze(Frozen::Marker, instructions),
            _ => {}
        }
    }

    /// An access in the windows. `place` finds where in RAM its first byte is.
    pub fn access(
        &mut self,
        access: strata_stream::Access,
        vcpu: u32,
        instructions: u64,
        place: impl FnOnce() -> Option<u64>,
    ) {
        if !self.recording {
            return;
        }
        if self.to_skip > 0 {
            self.to_skip -= 1;
            self.instructions = instructions;
            return;
        }
        self.pending.push(Placed { access, ram: place(), vcpu: vcpu as u16 });
        self.left -= 1;
        if self.left == 0 {
            self.freeze(Frozen::Limit, instructions);
        } else if self.pending.len() == MAX_ACCESSES {
            self.flush(instructions);
        }
    }

    /// Holds the machine until the reader has looked, or is gone.
    fn freeze(&mut self, why: Frozen, instructions: u64) {
        self.flush(instructions);
        self.tell(&Told::Frozen(why));
        let mut answer = [0];
        match self.reader.as_mut().map(|reader| reader.read_exact(&mut answer)) {
            Some(Err(error)) => self.give_up(&error),
            Some(Ok(())) if answer[0] == GOODBYE => self.reader = None,
            _ => {}
        }
        self.recording = false;
    }

    fn flush(&mut self, instructions: u64) {
        let retired = instructions.wrapping_sub(self.instructions);
        self.instructions = instructions;
        let accesses = std::mem::take(&mut self.pending);
        let told = Told::Accesses { instructions: retired, accesses };
        self.tell(&told);
        if let Told::Accesses { accesses, .. } = told {
            self.pending = accesses;
            self.pending.clear();
        }
    }

    fn tell(&mut self, told: &Told) {
        if let Some(reader) = &mut self.reader
            && let Err(error) = told.write(reader)
        {
            self.give_up(&error);
        }
    }

    /// The reader is gone; the machine goes on without.
    fn give_up(&mut self, error: &io::Error) {
        eprintln!("strata: nobody reads the accesses any more ({error}); the machine goes on");
        self.reader = None;
        self.recording = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use strata_stream::Access;

    fn load(at: u64) -> Access {
        Access::load(strata_addr::Gva::new(at), 8)
    }

    #[test]
    fn what_lies_between_the_markers_is_told_and_the_machine_waits() {
        let (mut reader, own) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(own, Amount { limit: None, skip: 1 });
        let machine = std::thread::spawn(move || {
            let place = |ram| move || Some(ram);
            recorder.access(load(1), 0, 5, place(7));
            recorder.mark(MARK_AT + 8 * START, 10);
            recorder.access(load(2), 0, 11, place(8));
            recorder.access(load(3), 1, 14, place(9));
            recorder.mark(MARK_AT + 8 * STOP, 15);
            recorder.access(load(4), 1, 16, place(9));
            assert!(recorder.has_reader());
        });
        let mut next = || Told::read(&mut reader).unwrap().unwrap();
        assert_eq!(next(), Told::Hello(VERSION));
        assert_eq!(next(), Told::Started);
        let placed = Placed { access: load(3), ram: Some(9), vcpu: 1 };
        assert_eq!(next(), Told::Accesses { instructions: 4, accesses: vec![placed] });
        assert_eq!(next(), Told::Frozen(Frozen::Marker));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!machine.is_finished(), "frozen until the reader answers");
        reader.write_all(&[1]).unwrap();
        machine.join().unwrap();
    }

    #[test]
    fn a_machine_outlives_its_reader() {
        let (reader, own) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(own, Amount { limit: Some(2), skip: 0 });
        recorder.mark(MARK_AT, 0);
        drop(reader);
        recorder.access(load(1), 0, 1, || None);
        recorder.access(load(1), 0, 1, || None);
        assert!(!recorder.has_reader());
        recorder.mark(MARK_AT, 0);
        recorder.access(load(1), 0, 1, || panic!("not recorded"));
    }
}

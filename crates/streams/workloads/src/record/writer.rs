//! Writes recordings.

use super::block::{BLOCK_ACCESSES, BLOCK_ITEM_BYTES, Packer};
use super::footer::{self, BlockEntry, Summary};
use super::header::{HEADER_LEN, file_header};
use super::{codec, items};
use crate::Footprint;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use strata_files::{OutFile, PUBLIC};
use strata_stream::{Access, Batch, Event, Outcome, SourceError, Step, Tid};

/// Writes a recording to any sink. [`Writer`] does so to a file with a name.
pub struct Encoder<W> {
    sink: W,
    packer: Packer,
    accesses: codec::Encoder,
    items: Vec<u8>,
    block: BlockEntry,
    index: Vec<BlockEntry>,
    footprint: Footprint,
    summary: Summary,
}

impl<W: Write> Encoder<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// When the sink fails.
    pub fn new(mut sink: W) -> io::Result<Self> {
        sink.write_all(&file_header())?;
        Ok(Self {
            sink,
            packer: Packer::new()?,
            accesses: codec::Encoder::default(),
            items: Vec::new(),
            block: BlockEntry { offset: HEADER_LEN, first_access: 0, accesses: 0, events: 0 },
            index: Vec::new(),
            footprint: Footprint::default(),
            summary: Summary::default(),
        })
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// When the sink fails; the recording cannot be finished then.
    pub fn push(&mut self, batch: &Batch) -> io::Result<()> {
        for step in batch.steps() {
            match step {
                Step::Event(event) => self.event(event),
                Step::Run { tid, instructions, accesses } => {
                    self.run(tid, instructions, accesses)?;
                }
            }
            self.end_block_when_full()?;
        }
        Ok(())
    }

    /// Accesses pushed so far.
    pub fn accesses(&self) -> u64 {
        self.summary.accesses
    }

    /// Writes what is left and the totals, and gives the sink back.
    ///
    /// # Errors
    /// When the sink fails.
    pub fn finish(mut self, outcome: Outcome) -> io::Result<(W, Summary)> {
        self.end_block()?;
        let mut summary = self.summary;
        summary.footprint_bytes = self.footprint.bytes();
        summary.command = outcome.command;
        summary.exit_status = outcome.exit_status;
        summary.partial = outcome.partial;
        summary.notes = outcome.notes;
        summary.tables = outcome.tables;
        let footer = footer::pack(self.block.offset, HEADER_LEN, &summary, &self.index);
        self.sink.write_all(&footer)?;
        self.sink.flush()?;
        Ok((self.sink, summary))
    }

    fn event(&mut self, event: &Event) {
        items::put_event(&mut self.items, event);
        self.footprint.event(event);
        self.block.events += 1;
        self.summary.events += 1;
        match event {
            Event::ProcessStart { .. } | Event::Fork { .. } => self.summary.processes += 1,
            Event::ThreadStart { .. } => self.summary.threads += 1,
            Event::Skipped { instructions, .. } => {
                self.summary.instructions = self.summary.instructions.saturating_add(*instructions);
            }
            _ => {}
        }
    }

    /// Adds a run, in pieces of at most what a source should put into one batch.
    fn run(&mut self, tid: Tid, instructions: u64, mut accesses: &[Access]) -> io::Result<()> {
        let mut instructions = instructions;
        self.summary.instructions = self.summary.instructions.saturating_add(instructions);
        while accesses.len() > Batch::TARGET {
            let (piece, rest) = accesses.split_at(Batch::TARGET);
            let share = share(instructions, piece.len(), accesses.len());
            self.piece(tid, share, piece);
            self.end_block_when_full()?;
            instructions -= share;
            accesses = rest;
        }
        self.piece(tid, instructions, accesses);
        Ok(())
    }

    fn piece(&mut self, tid: Tid, instructions: u64, accesses: &[Access]) {
        items::put_run(&mut self.items, tid, accesses.len() as u32, instructions);
        self.accesses.push(tid, accesses);
        self.footprint.run(tid, accesses);
        self.block.accesses += accesses.len() as u32;
        self.summary.accesses += accesses.len() as u64;
    }

    fn end_block_when_full(&mut self) -> io::Result<()> {
        if self.block.accesses as usize >= BLOCK_ACCESSES || self.items.len() >= BLOCK_ITEM_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let BlockEntry { offset, first_access, events, .. } = self.block;
        let streams = self.accesses.streams();
        let bytes = self.packer.pack(first_access, events, &self.items, streams)?;
        self.sink.write_all(bytes)?;
        self.index.push(self.block);
        self.block = BlockEntry {
            offset: offset + bytes.len() as u64,
            first_access: self.summary.accesses,
            accesses: 0,
            events: 0,
        };
        self.items.clear();
        self.accesses.clear();
        Ok(())
    }
}

/// The part of `instructions` that belongs to the first `part` of `whole` accesses.
pub(crate) fn share(instructions: u64, part: usize, whole: usize) -> u64 {
    (u128::from(instructions) * part as u128 / whole.max(1) as u128) as u64
}

/// Writes a recording to a file, which is there when it is finished: a writer that is aborted,
/// dropped or out of disk space leaves the name as it was.
pub struct Writer {
    encoder: Encoder<BufWriter<OutFile>>,
    path: PathBuf,
}

impl Writer {
    /// Begins a recording that will be at `path`.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn create(path: &Path) -> Result<Self, SourceError> {
        let encoder = OutFile::create(path, PUBLIC)
            .and_then(|file| Encoder::new(BufWriter::with_capacity(1 << 16, file)));
        match encoder {
            Ok(encoder) => Ok(Self { encoder, path: path.to_owned() }),
            Err(source) => Err(cannot_write(path, source)),
        }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// When the file cannot be written, as when the disk is full. Drop the writer then.
    pub fn push(&mut self, batch: &Batch) -> Result<(), SourceError> {
        self.encoder.push(batch).map_err(|source| cannot_write(&self.path, source))
    }

    /// Accesses pushed so far.
    pub fn accesses(&self) -> u64 {
        self.encoder.accesses()
    }

    /// Writes what is left and the totals; the recording is at its name when this returns. A
    /// recording that was interrupted is finished too, and says so ([`Outcome::partial`]).
    ///
    /// # Errors
    /// When the file cannot be written; nothing is at the name then but what was there before.
    pub fn finish(self, outcome: Outcome) -> Result<Summary, SourceError> {
        let Self { encoder, path } = self;
        let complete = || {
            let (sink, summary) = encoder.finish(outcome)?;
            sink.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
            Ok(summary)
        };
        complete().map_err(|source| cannot_write(&path, source))
    }

    /// Gives up; nothing is left behind. Dropping the writer does the same.
    pub fn abort(self) {}
}

fn cannot_write(path: &Path, source: io::Error) -> SourceError {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space or record to another disk)"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            " (record to a directory you may write to)"
        }
        io::ErrorKind::NotFound => " (create its directory first)",
        _ => "",
    };
    let context = format!("cannot write recording '{}'{remedy}", path.display());
    SourceError::Io { context, source }
}

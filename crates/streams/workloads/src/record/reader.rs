//! Reads recordings.

use super::block::{BLOCK_HEADER_LEN, Header, Unpacker};
use super::codec::Decoder;
use super::footer::{self, BlockEntry, FOOTER_HEADER_LEN, Summary, TRAILER_LEN};
use super::header::{HEADER_LEN, check_file_header};
use super::items;
use super::writer::share;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use strata_stream::{
    Access, Batch, Fill, Item, Outcome, Source, SourceError, Tid, WorkloadInfo, command_line,
};

/// A recording that is read.
///
/// A recording that was cut short or damaged is read up to there; [`Source::fill`] then fails
/// once, saying where, and ends.
pub struct Reader<R = File> {
    file: R,
    /// Its length in bytes, when it was opened.
    size: u64,
    name: String,
    unpacker: Unpacker,
    /// Totals, when the recording is whole.
    summary: Option<Summary>,
    index: Vec<BlockEntry>,
    /// Where the file stops being sound.
    damage: Option<Damage>,
    /// Bytes after the end that belong to no recording.
    surplus: u64,
    /// The next block to open.
    next_block: usize,
    decoder: Decoder,
    /// Items of the open block and how far they are read.
    items: Vec<u8>,
    items_read: usize,
    /// Position of the open block, for messages.
    block_offset: u64,
    /// Accesses given or skipped.
    position: u64,
    /// Accesses before this one are skipped.
    target: u64,
    /// Bytes as stored, and accesses that are skipped; kept for their memory.
    stored: Vec<u8>,
    skipped: Vec<Access>,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Damage {
    /// Where the block, footer or trailer begins that is not sound.
    offset: u64,
    /// Accesses before it.
    access: u64,
    cause: Cause,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    CutShort,
    Altered,
}

/// Why a step of reading failed.
enum Failure {
    Io(io::Error),
    Damaged(Cause),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged(Cause::CutShort),
            _ => Self::Io(error),
        }
    }
}

impl Reader {
    /// Opens a recording.
    ///
    /// # Errors
    /// When the file cannot be read, is no recording, or is of a newer version.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(file, name),
            Err(source) => Err(cannot_read(&name, source)),
        }
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the recording in `file`; `name` is for messages.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(mut file: R, name: String) -> Result<Self, SourceError> {
        let mut header = Vec::new();
        let size = file
            .seek(SeekFrom::End(0))
            .and_then(|size| file.rewind().map(|()| size))
            .and_then(|size| file.by_ref().take(HEADER_LEN).read_to_end(&mut header).map(|_| size))
            .map_err(|source| cannot_read(&name, source))?;
        check_file_header(&header)
            .map_err(|why| SourceError::Invalid(format!("'{name}': {why}")))?;
        let unpacker = Unpacker::new().map_err(|source| cannot_read(&name, source))?;
        let mut reader = Self {
            file,
            size,
            name,
            unpacker,
            summary: None,
            index: Vec::new(),
            damage: None,
            surplus: 0,
            next_block: 0,
            decoder: Decoder::default(),
            items: Vec::new(),
            items_read: 0,
            block_offset: 0,
            position: 0,
            target: 0,
            stored: Vec::new(),
            skipped: Vec::new(),
            over: false,
        };
        match reader.read_footer() {
            Ok(()) => {}
            Err(Failure::Damaged(_)) => {
                reader.scan().map_err(|source| cannot_read(&reader.name, source))?;
            }
            Err(Failure::Io(source)) => return Err(cannot_read(&reader.name, source)),
        }
        Ok(reader)
    }

    /// The totals, unless the end of the recording is missing or damaged.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Number of the access that [`Source::fill`] gives next.
    pub fn position(&self) -> u64 {
        self.position.max(self.target)
    }

    /// Goes to an access, counted from 0. What [`Source::fill`] gives next are all events before
    /// it from the beginning, so that address spaces are as they must be, and then the stream from
    /// there on. Blocks that lie before are not decoded, save their events. Past the last access
    /// the stream ends after its last event.
    pub fn seek(&mut self, access: u64) {
        self.target = access;
        self.position = 0;
        self.next_block = 0;
        self.items.clear();
        self.items_read = 0;
        self.over = false;
    }

    /// Finds the footer by the trailer.
    fn read_footer(&mut self) -> Result<(), Failure> {
        let at = self.size.checked_sub(TRAILER_LEN as u64);
        let at = at.ok_or(Failure::Damaged(Cause::CutShort))?;
        let mut trailer = [0; TRAILER_LEN];
        self.read_at(at, &mut trailer)?;
        let offset = footer::parse_trailer(&trailer).ok_or(Failure::Damaged(Cause::Altered))?;
        let trailer = self.read_footer_at(offset)?;
        // What follows the end may end like a recording.
        if trailer != at { self.look_behind(offset, trailer).map_err(Failure::Io) } else { Ok(()) }
    }

    /// Reads the footer at a place, and gives the place after it, where the trailer is.
    fn read_footer_at(&mut self, offset: u64) -> Result<u64, Failure> {
        let altered = || Failure::Damaged(Cause::Altered);
        let mut header = [0; FOOTER_HEADER_LEN];
        self.read_at(offset, &mut header)?;
        let (length, crc) = footer::parse_header(&header).ok_or_else(altered)?;
        // The length is checked by the header's own checksum, but may still exceed the file.
        let mut payload = Vec::new();
        self.file.by_ref().take(length.into()).read_to_end(&mut payload)?;
        if payload.len() < length as usize {
            return Err(Failure::Damaged(Cause::CutShort));
        }
        let parsed = footer::parse_payload(&payload, crc, HEADER_LEN);
        let (summary, index) = parsed.ok_or_else(altered)?;
        self.summary = Some(summary);
        self.index = index;
        Ok(offset + FOOTER_HEADER_LEN as u64 + u64::from(length))
    }

    /// Looks at what follows a sound footer: a trailer and something more, or no sound trailer.
    fn look_behind(&mut self, footer: u64, trailer: u64) -> io::Result<()> {
        let end = trailer + TRAILER_LEN as u64;
        if self.size < end {
            let access = self.summary.as_ref().map_or(0, |summary| summary.accesses);
            self.damage = Some(Damage { offset: trailer, access, cause: Cause::CutShort });
            return Ok(());
        }
        let mut bytes = [0; TRAILER_LEN];
        self.read_at(trailer, &mut bytes)?;
        if footer::parse_trailer(&bytes) == Some(footer) {
            self.surplus = self.size - end;
        } else {
            let access = self.summary.as_ref().map_or(0, |summary| summary.accesses);
            self.damage = Some(Damage { offset: trailer, access, cause: Cause::Altered });
        }
        Ok(())
    }

    /// Finds the blocks one by one, without the footer.
    fn scan(&mut self) -> io::Result<()> {
        let (mut offset, mut first_access) = (HEADER_LEN, 0);
        let cause = loop {
            match self.block_header(offset) {
                Ok(header) if header.first_access != first_access => break Cause::Altered,
                Ok(header) if header.block_len() > self.size - offset => break Cause::CutShort,
                Ok(header) => {
                    let Header { accesses, events, .. } = header;
                    self.index.push(BlockEntry { offset, first_access, accesses, events });
                    offset += header.block_len();
                    first_access += u64::from(accesses);
                }
                Err(Failure::Io(error)) => return Err(error),
                Err(Failure::Damaged(cause)) => {
                    // Only the trailer is damaged when the footer is here.
                    match self.read_footer_at(offset) {
                        Ok(trailer) => return self.look_behind(offset, trailer),
                        Err(Failure::Io(error)) => return Err(error),
                        Err(Failure::Damaged(Cause::CutShort)) => break Cause::CutShort,
                        Err(Failure::Damaged(Cause::Altered)) => break cause,
                    }
                }
            }
        };
        self.damage = Some(Damage { offset, access: first_access, cause });
        Ok(())
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.read_exact(out)
    }

    fn block_header(&mut self, offset: u64) -> Result<Header, Failure> {
        let mut bytes = [0; BLOCK_HEADER_LEN];
        self.read_at(offset, &mut bytes)?;
        Header::parse(&bytes).ok_or(Failure::Damaged(Cause::Altered))
    }

    /// Opens the next block that matters. `Ok(false)` when there is none.
    fn open_block(&mut self) -> Result<bool, Failure> {
        while let Some(&entry) = self.index.get(self.next_block) {
            self.next_block += 1;
            self.block_offset = entry.offset;
            self.position = entry.first_access;
            let skip =
                entry.first_access + u64::from(entry.accesses) <= self.target && entry.accesses > 0;
            if skip && entry.events == 0 {
                continue;
            }
            let altered = || Failure::Damaged(Cause::Altered);
            let header = self.block_header(entry.offset)?;
            if (header.first_access, header.accesses) != (entry.first_access, entry.accesses) {
                return Err(altered());
            }
            self.items.clear();
            self.items_read = 0;
            self.stored.resize(header.items_len(), 0);
            self.file.read_exact(&mut self.stored)?;
            if self.unpacker.items(&header, &self.stored, &mut self.items).is_err() {
                self.items.clear();
                return Err(altered());
            }
            let streams = self.decoder.streams();
            let data = if skip {
                // Only the events will be taken from this block.
                Ok(())
            } else {
                self.stored.resize(header.data_len(), 0);
                let read = self.file.read_exact(&mut self.stored).map_err(Failure::from);
                read.and_then(|()| {
                    let unpacked = self.unpacker.streams(&header, &self.stored, streams);
                    unpacked.map_err(|_| altered())
                })
            };
            let data = data.and_then(|()| self.decoder.start().map_err(|_| altered()));
            if data.is_err() {
                // Events without the accesses between them would be no part of the stream.
                self.items.clear();
            }
            return data.map(|()| true);
        }
        Ok(false)
    }

    /// Gives the next item of the open block.
    fn item(&mut self, batch: &mut Batch) -> Result<(), Failure> {
        let altered = || Failure::Damaged(Cause::Altered);
        let mut rest = &self.items[self.items_read..];
        let item = items::take_item(&mut rest).ok_or_else(altered)?;
        let read = self.items.len() - rest.len();
        match item {
            Item::Event(event) => batch.event(event),
            Item::Run { tid, accesses, instructions } => {
                self.run(batch, tid, accesses as usize, instructions)?;
            }
        }
        self.items_read = read;
        Ok(())
    }

    fn run(
        &mut self,
        batch: &mut Batch,
        tid: Tid,
        accesses: usize,
        instructions: u64,
    ) -> Result<(), Failure> {
        let end = self.position + accesses as u64;
        let before_target = self.position < self.target;
        let block = &self.index[self.next_block - 1];
        if before_target && block.first_access + u64::from(block.accesses) <= self.target {
            // The block's accesses have not been unpacked.
        } else if accesses > self.decoder.remaining() {
            return Err(Failure::Damaged(Cause::Altered));
        } else if before_target {
            self.skipped.clear();
            self.decoder.read(tid, accesses, &mut self.skipped);
            if end > self.target {
                let kept = &self.skipped[(self.target - self.position) as usize..];
                let instructions = share(instructions, kept.len(), accesses);
                batch.run(tid, instructions, |out| out.extend_from_slice(kept));
            }
        } else {
            batch.run(tid, instructions, |out| self.decoder.read(tid, accesses, out));
        }
        self.position = end;
        Ok(())
    }

    fn step(&mut self, batch: &mut Batch) -> Result<Fill, Failure> {
        while !batch.is_full() {
            if self.items_read < self.items.len() {
                self.item(batch)?;
            } else if !self.open_block()? {
                return Ok(Fill::End);
            }
        }
        Ok(Fill::More)
    }

    /// What a recording of what is read says. Damage after the last access loses nothing.
    fn outcome(&self) -> Outcome {
        let mut outcome = self.summary.as_ref().map(Summary::outcome).unwrap_or_default();
        if let Some(damage) = self.damage.filter(|damage| !self.lost_nothing(damage)) {
            outcome.partial = Some(self.message(damage));
        }
        outcome
    }

    /// Whether all accesses and events come before the damage.
    fn lost_nothing(&self, damage: &Damage) -> bool {
        let last = self.index.last();
        self.summary.is_some() && last.is_none_or(|block| block.offset < damage.offset)
    }

    fn message(&self, damage: Damage) -> String {
        let Damage { offset, access, cause } = damage;
        let what = match cause {
            Cause::CutShort => format!("cut short at byte {}", self.size),
            Cause::Altered => format!("damaged at byte {offset}"),
        };
        let name = &self.name;
        if self.lost_nothing(&damage) {
            return format!(
                "recording '{name}' is {what}, after its last access ({access}): nothing was \
                 lost, but copy it again to be sure"
            );
        }
        format!(
            "recording '{name}' is {what}; all whole blocks before, up to byte {offset} (access \
             {access}), were used, record it again for the rest"
        )
    }
}

impl<R: Read + Seek + Send> Source for Reader<R> {
    fn info(&self) -> WorkloadInfo {
        let mut info =
            WorkloadInfo { name: self.name.clone(), kind: "recording", ..WorkloadInfo::default() };
        if let Some(summary) = &self.summary {
            info.footprint_bytes = Some(summary.footprint_bytes);
            info.accesses = Some(summary.accesses);
            info.exit_status = summary.exit_status;
            info.tables = summary.tables;
            info.argv.clone_from(&summary.command);
            match &summary.command[..] {
                [] => {}
                // A description, which may have blanks.
                [one] => info.notes.push(format!("recording of: {one}")),
                words => {
                    let line = command_line(words.iter().map(String::as_str));
                    info.notes.push(format!("recording of: {line}"));
                }
            }
            if let Some(why) = &summary.partial {
                info.notes.push(format!("recording is partial: {why}"));
            }
            info.notes.extend_from_slice(&summary.notes);
        }
        if self.surplus > 0 {
            info.notes.push(format!(
                "{} bytes after the end of the recording belong to something else and were passed \
                 over",
                self.surplus
            ));
        }
        if let Some(damage) = self.damage {
            info.accesses = Some(damage.access);
            info.notes.push(self.message(damage));
        }
        info.recorded = Some(self.outcome());
        info
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.over {
            return Ok(Fill::End);
        }
        match self.step(batch) {
            Ok(Fill::More) => return Ok(Fill::More),
            Ok(Fill::End) => {}
            Err(Failure::Io(source)) => return Err(cannot_read(&self.name, source)),
            Err(Failure::Damaged(cause)) => {
                let (offset, access) = (self.block_offset, self.position);
                self.damage = Some(Damage { offset, access, cause });
            }
        }
        self.over = true;
        match self.damage {
            Some(damage) => Err(SourceError::Invalid(self.message(damage))),
            None => Ok(Fill::End),
        }
    }
}

fn cannot_read(name: &str, source: io::Error) -> SourceError {
    SourceError::Io { context: format!("cannot read recording '{name}'"), source }
}

//! Writing a snapshot.

use super::codec::{put_hot, put_huge, put_pseudo_huge, put_regions, put_usage};
use super::sections::{
    FORMAT, HEAD, HOT, MAX_SECTION, PROCESS, PSEUDO_HUGE, REGIONS, TAIL, USAGE, VM, WITHOUT_HOT,
};
use crate::error::Error;
use crate::snapshot::Sink;
use crate::snapshot::hot::HotRegion;
use crate::snapshot::model::{Head, Process, Tail, Vm};
use crate::snapshot::pseudo::PseudoHuge;
use crate::snapshot::region::Region;
use crate::snapshot::usage::Usage;
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use strata_files::{OutFile, PRIVATE, stream, varint};

/// zstd's level: packed parts are small already.
const LEVEL: i32 = 3;

/// Regions of a section: some 100 KiB of scattered runs at most.
const REGIONS_A_SECTION: usize = 64;
/// Pseudo huge pages of a section: some MiB at most.
const PSEUDO_HUGE_A_SECTION: usize = 1 << 16;

/// Writes a snapshot to anything.
pub struct Writer<W: Write> {
    file: stream::Writer<W>,
}

impl<W: Write> Writer<W> {
    /// Begins a snapshot, `hot` for one that may have hot pages.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(inner: W, hot: bool) -> io::Result<Self> {
        let format = if hot { &FORMAT } else { &WITHOUT_HOT };
        Ok(Self { file: stream::Writer::new(inner, format, LEVEL)? })
    }

    /// Ends the snapshot and gives back what it was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> io::Result<W> {
        self.file.finish()
    }

    fn section(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).ok().filter(|&n| n as usize <= MAX_SECTION);
        let length =
            length.ok_or_else(|| io::Error::other("a part of the snapshot is too long"))?;
        self.file.write_all(&[kind])?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(bytes)
    }

    fn json(&mut self, kind: u8, value: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(value)?;
        self.section(kind, &bytes)
    }
}

impl<W: Write> Sink for Writer<W> {
    fn head(&mut self, head: Head) -> io::Result<()> {
        self.json(HEAD, &head)
    }

    fn process(&mut self, process: Process) -> io::Result<()> {
        let json = serde_json::to_vec(&process)?;
        let mut bytes = Vec::new();
        varint::put(&mut bytes, json.len() as u64);
        bytes.extend(json);
        for area in &process.areas {
            put_huge(&mut bytes, &area.huge);
        }
        self.section(PROCESS, &bytes)
    }

    fn usage(&mut self, usage: &[Usage]) -> io::Result<()> {
        self.section(USAGE, &put_usage(usage))
    }

    fn vm(&mut self, vm: Vm) -> io::Result<()> {
        self.json(VM, &vm)
    }

    fn pseudo_huge(&mut self, pages: &[PseudoHuge]) -> io::Result<()> {
        let mut chunks = pages.chunks(PSEUDO_HUGE_A_SECTION);
        chunks.try_for_each(|chunk| self.section(PSEUDO_HUGE, &put_pseudo_huge(chunk)))
    }

    fn regions(&mut self, regions: Vec<Region>) -> io::Result<()> {
        let mut chunks = regions.chunks(REGIONS_A_SECTION);
        chunks.try_for_each(|chunk| self.section(REGIONS, &put_regions(chunk)))
    }

    fn hot(&mut self, hot: &[HotRegion]) -> io::Result<()> {
        let mut chunks = hot.chunks(REGIONS_A_SECTION);
        chunks.try_for_each(|chunk| self.section(HOT, &put_hot(chunk)))
    }

    fn tail(&mut self, tail: Tail) -> io::Result<()> {
        self.json(TAIL, &tail)
    }
}

/// Writes a snapshot to a file that appears when it is whole.
pub struct FileWriter {
    path: PathBuf,
    /// What writes it.
    pub writer: Writer<BufWriter<OutFile>>,
}

impl FileWriter {
    /// Begins the file, `hot` for a snapshot that may have hot pages.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn create(path: &Path, hot: bool) -> Result<Self, Error> {
        let failed = |error| Error::write(path, error);
        // Addresses of other people's memory are no business of everybody.
        let file = OutFile::create(path, PRIVATE);
        let writer =
            file.and_then(|file| Writer::new(BufWriter::new(file), hot)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Puts the file in place; gives its bytes.
    ///
    /// # Errors
    /// When that fails; nothing is left behind.
    pub fn finish(self) -> Result<u64, Error> {
        let Self { path, writer } = self;
        let finished = writer.finish().and_then(|buffered| {
            buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
        });
        finished.map_err(|error| Error::write(&path, error))
    }
}

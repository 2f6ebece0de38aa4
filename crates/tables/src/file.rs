//! The tables file; `docs/tables-format.md` describes the bytes.

use crate::capture::{Capture, Composition, Role, Table};
use crate::ram::Page;
use crate::seen::Check;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use strata_outfile::{OutFile, PUBLIC};
use strata_paging::ENTRIES;

/// First bytes of a tables file. The first is no text and the last a line feed, so a transfer that
/// mistakes the file for text is noticed at once.
pub const MAGIC: [u8; 8] = *b"\x89STRTAB\n";

/// Version of the format that is written, and the newest that is read.
pub const VERSION: u16 = 2;

/// Length of the header.
const HEADER: usize = 36;
/// What a file may hold, unpacked: tables of 256 GiB of base pages, four times.
const LARGEST: u64 = 2 << 30;
/// Bytes of a table page with its frame number.
const PAGE_BYTES: usize = 8 + 8 * ENTRIES;
const ZSTD_LEVEL: i32 = 3;

/// A tables file could not be read or written. One line: cause and remedy.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Input or output failed.
    #[error("'{0}': {1}")]
    Io(String, io::Error),
    /// The bytes are not what they should be.
    #[error("'{0}' {1}")]
    Invalid(String, &'static str),
}

/// The bytes of a file.
///
/// # Errors
/// When there is no memory for packing.
pub fn encode(capture: &Capture) -> io::Result<Vec<u8>> {
    let mut raw = vec![capture.layers, capture.tables.len() as u8];
    raw.push(u8::from(capture.composition.is_some()));
    raw.extend([0; 5]);
    raw.extend(capture.id.to_le_bytes());
    let check = capture.check;
    let made = capture.composition.unwrap_or_default();
    for number in [
        check.accesses,
        check.pages,
        check.matched,
        check.changed,
        check.mismatched,
        check.not_ram,
        made.equal,
        made.different,
        made.only_shadow,
    ] {
        raw.extend(number.to_le_bytes());
    }
    for table in &capture.tables {
        let role = Role::ALL.iter().position(|role| *role == table.role);
        raw.extend((role.expect("every role is in the list") as u64).to_le_bytes());
        raw.extend(table.root.to_le_bytes());
        raw.extend((table.pages.len() as u64).to_le_bytes());
        for (frame, page) in &table.pages {
            raw.extend(frame.to_le_bytes());
            page.iter().for_each(|entry| raw.extend(entry.to_le_bytes()));
        }
    }
    let body = zstd::bulk::compress(&raw, ZSTD_LEVEL)?;
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend([0; 2]);
    file.extend(crc32c::crc32c(&body).to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend((raw.len() as u64).to_le_bytes());
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    debug_assert_eq!(file.len(), HEADER);
    file.extend(body);
    Ok(file)
}

/// The tables in these bytes.
///
/// # Errors
/// What is wrong with them, to be put after the file's name.
pub fn decode(bytes: &[u8]) -> Result<Capture, &'static str> {
    const DAMAGED: &str = "is damaged: it does not match its checksum; capture it again";
    const SHORT: &str = "is cut short; copy or capture it again";
    if !bytes.starts_with(&MAGIC) {
        return Err("is no tables file; give one written by 'strata lab run --trace'");
    }
    let (header, body) = bytes.split_at_checked(HEADER).ok_or(SHORT)?;
    let mut fields = Cursor(&header[8..]);
    let (version, checksum) = (fields.take()?, fields.take::<6>()?);
    let (body_len, raw_len) = (number(fields.take()?), number(fields.take()?));
    if crc32c::crc32c(&header[..HEADER - 4]) != u32::from_le_bytes(fields.take()?) {
        return Err(DAMAGED);
    }
    let version: [u8; 2] = version;
    if u16::from_le_bytes(version) != VERSION {
        return Err(
            "has another version of the format; use the Strata that wrote it, or capture it again",
        );
    }
    if body.len() as u64 != body_len {
        return Err(SHORT);
    }
    if crc32c::crc32c(body).to_le_bytes() != checksum[2..6] || raw_len > LARGEST {
        return Err(DAMAGED);
    }
    let mut raw = Vec::new();
    let unpacked = zstd::stream::read::Decoder::with_buffer(body)
        .and_then(|decoder| decoder.take(raw_len + 1).read_to_end(&mut raw));
    if unpacked.is_err() || raw.len() as u64 != raw_len {
        return Err(DAMAGED);
    }
    content(&raw).map_err(|_| "holds no tables that make sense; capture it again")
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("is cut short; capture it again")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        self.take().map(number)
    }
}

fn number(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// What is behind the checksums.
pub(crate) fn content(raw: &[u8]) -> Result<Capture, &'static str> {
    const WRONG: &str = "makes no sense";
    let mut rest = Cursor(raw);
    let [layers, tables, composed, ..] = rest.take::<8>()?;
    let id = rest.number()?;
    let check = Check {
        accesses: rest.number()?,
        pages: rest.number()?,
        matched: rest.number()?,
        changed: rest.number()?,
        mismatched: rest.number()?,
        not_ram: rest.number()?,
    };
    let composition = Composition {
        equal: rest.number()?,
        different: rest.number()?,
        only_shadow: rest.number()?,
    };
    let mut capture = Capture {
        id,
        layers,
        tables: Vec::new(),
        check,
        composition: (composed == 1).then_some(composition),
    };
    for _ in 0..tables {
        let role = usize::try_from(rest.number()?).ok().and_then(|role| Role::ALL.get(role));
        let (role, root, count) = (*role.ok_or(WRONG)?, rest.number()?, rest.number()?);
        if count > (rest.0.len() / PAGE_BYTES) as u64 || capture.table(role).is_some() {
            return Err(WRONG);
        }
        let mut pages = BTreeMap::new();
        for _ in 0..count {
            let frame = rest.number()?;
            let mut page: Page = [0; ENTRIES];
            for entry in &mut page {
                *entry = rest.number()?;
            }
            if pages.last_key_value().is_some_and(|(last, _)| *last >= frame) {
                return Err(WRONG);
            }
            pages.insert(frame, Arc::new(page));
        }
        if !pages.contains_key(&root) {
            return Err(WRONG);
        }
        capture.tables.push(Table { role, root, pages });
    }
    let has = |role| capture.table(role).is_some();
    let whole = has(Role::Guest)
        && (has(Role::Second) || layers == 1)
        && (has(Role::L1) == has(Role::L0))
        && (1..=3).contains(&layers)
        && rest.0.is_empty();
    if whole { Ok(capture) } else { Err(WRONG) }
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read or is no whole tables file.
pub fn read(path: &Path) -> Result<Capture, FileError> {
    let name = || path.display().to_string();
    let io = |error| FileError::Io(name(), error);
    // A device would never end, and its memory is the computer's.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(FileError::Invalid(name(), "is no file: give one that 'strata lab' wrote"));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    decode(&bytes).map_err(|why| FileError::Invalid(name(), why))
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// When it cannot be written; nothing is at the name then but what was there before.
pub fn write(path: &Path, capture: &Capture) -> Result<(), FileError> {
    let written = || -> io::Result<()> {
        let mut file = OutFile::create(path, PUBLIC)?;
        file.write_all(&encode(capture)?)?;
        file.finish().map(drop)
    };
    written().map_err(|error| FileError::Io(path.display().to_string(), error))
}

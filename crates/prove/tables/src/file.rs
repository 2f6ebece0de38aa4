//! The tables file; `docs/tables-format.md` describes the bytes.

use crate::capture::{Capture, Role, ShadowCheck, Table};
use crate::entries::Entries;
use crate::observed::Check;
use crate::ram::Page;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use strata_addr::Frame;
use strata_addr::space::Space;
use strata_files::{Fault, Fields, Format, OutFile, PUBLIC, body};
use strata_paging::ENTRIES;

/// How a tables file begins. The first byte is no text and the last a line feed, so a transfer that
/// mistakes the file for text is noticed at once.
pub const FORMAT: Format = Format { magic: *b"\x89STRTAB\n", version: 2 };

/// What a file may hold, unpacked: tables of 256 GiB of base pages, four times.
const LARGEST: u64 = 2 << 30;
/// Where the number of the entries' format is in the number of a table's role.
const ENTRIES_SHIFT: u32 = 8;
/// Bytes of a table page with its frame number.
const PAGE_BYTES: usize = 8 + 8 * ENTRIES;

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
    let Capture { guest, second, lower, .. } = capture;
    let tables = 1 + usize::from(second.is_some()) + 2 * usize::from(lower.is_some());
    let mut raw = vec![capture.layers, tables as u8];
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
    put(guest, &mut raw);
    if let Some(second) = second {
        put(second, &mut raw);
    }
    if let Some((l1, l0)) = lower {
        put(l1, &mut raw);
        put(l0, &mut raw);
    }
    body::pack(&FORMAT, &raw)
}

fn put<U: Space, L: Space>(table: &Table<U, L>, raw: &mut Vec<u8>) {
    let role = Role::ALL.iter().position(|role| *role == table.role);
    let role = role.expect("every role is in the list") as u64;
    let entries = Entries::ALL.iter().position(|entries| *entries == table.entries);
    let entries = entries.expect("every format is in the list") as u64;
    raw.extend((role | entries << ENTRIES_SHIFT).to_le_bytes());
    raw.extend(table.root.get().to_le_bytes());
    raw.extend((table.pages.len() as u64).to_le_bytes());
    for (frame, page) in &table.pages {
        raw.extend(frame.get().to_le_bytes());
        page.iter().for_each(|entry| raw.extend(entry.to_le_bytes()));
    }
}

/// The tables in these bytes.
///
/// # Errors
/// What is wrong with them, to be put after the file's name.
pub fn decode(bytes: &[u8]) -> Result<Capture, &'static str> {
    let raw = body::unpack(&FORMAT, bytes, LARGEST).map_err(|fault| match fault {
        Fault::Foreign => "is no tables file; give one written by 'strata lab run --trace'",
        Fault::Short => "is cut short; copy or capture it again",
        Fault::Version(_) => {
            "has another version of the format; use the Strata that wrote it, or capture it again"
        }
        Fault::Altered | Fault::Packing => {
            "is damaged: it does not match its checksum; capture it again"
        }
    })?;
    content(&raw).ok_or("holds no tables that make sense; capture it again")
}

/// What is behind the checksums.
pub(crate) fn content(raw: &[u8]) -> Option<Capture> {
    let mut rest = Fields(raw);
    let [layers, tables, composed, ..] = rest.array::<8>()?;
    let id = rest.u64()?;
    let check = Check {
        accesses: rest.u64()?,
        pages: rest.u64()?,
        matched: rest.u64()?,
        changed: rest.u64()?,
        mismatched: rest.u64()?,
        not_ram: rest.u64()?,
    };
    let composition =
        ShadowCheck { equal: rest.u64()?, different: rest.u64()?, only_shadow: rest.u64()? };
    let mut read = Role::ALL.map(|_| None);
    for _ in 0..tables {
        let kind = rest.u64()?;
        let entries = *Entries::ALL.get(usize::try_from(kind >> ENTRIES_SHIFT).ok()?)?;
        let role = Some((kind & 0xff) as usize).filter(|role| *role < read.len())?;
        if role == 0 && entries != Entries::X86 {
            return None;
        }
        let (root, count) = (rest.u64()?, rest.u64()?);
        if count > (rest.0.len() / PAGE_BYTES) as u64 || read[role].is_some() {
            return None;
        }
        let mut pages = BTreeMap::new();
        for _ in 0..count {
            let frame = rest.u64()?;
            let mut page: Page = [0; ENTRIES];
            for entry in &mut page {
                *entry = rest.u64()?;
            }
            if pages.last_key_value().is_some_and(|(last, _)| *last >= frame) {
                return None;
            }
            pages.insert(frame, Arc::new(page));
        }
        if !pages.contains_key(&root) {
            return None;
        }
        read[role] = Some(Read { kind: (Role::ALL[role], entries), root, pages });
    }
    let [guest, second, l1, l0] = read;
    let lower = match (l1, l0) {
        (None, None) => None,
        (l1, l0) => Some((l1?.table(), l0?.table())),
    };
    let capture = Capture {
        id,
        layers,
        guest: guest?.table(),
        second: second.map(Read::table),
        lower,
        check,
        composition: (composed == 1).then_some(composition),
    };
    let whole =
        (capture.second.is_some() || layers == 1) && (1..=3).contains(&layers) && rest.0.is_empty();
    whole.then_some(capture)
}

/// A table as it is read: which spaces it is between, its role says.
struct Read {
    kind: (Role, Entries),
    root: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Read {
    fn table<U: Space, L: Space>(self) -> Table<U, L> {
        let pages = self.pages.into_iter().map(|(frame, page)| (Frame::new(frame), page));
        Table::new(self.kind, Frame::new(self.root), pages.collect())
    }
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

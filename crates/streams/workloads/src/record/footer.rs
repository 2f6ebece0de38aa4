//! The end of a recording: its totals and where its blocks are.

use serde::{Deserialize, Serialize};
use strata_files::varint::{put, take};
use strata_files::{Fields, checksum, seal, unseal};
use strata_stream::Outcome;

/// First bytes of the footer.
pub const FOOTER_MAGIC: [u8; 4] = *b"END\n";

/// Length of the footer's header: magic, length of what follows, its CRC-32C, and the CRC-32C of
/// these twelve bytes.
pub const FOOTER_HEADER_LEN: usize = 16;

/// Last bytes of a recording.
const TRAILER_MAGIC: [u8; 4] = *b"FIN\n";

/// Length of the trailer: position of the footer, CRC-32C of this position, magic.
pub const TRAILER_LEN: usize = 16;

/// What is known of a recording as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Loads and stores.
    pub accesses: u64,
    /// Instructions retired, those without memory operand included.
    pub instructions: u64,
    /// Bytes of memory touched: distinct base pages of every process, as 4096 bytes each.
    pub footprint_bytes: u64,
    /// Processes: begun or forked.
    pub processes: u64,
    /// Threads begun.
    pub threads: u64,
    /// Address-space, process and thread events.
    pub events: u64,
    /// What was recorded: the command line, or a description in one word.
    pub command: Vec<String>,
    /// Exit status of the program: the code, or 128 + the signal's number.
    pub exit_status: Option<i32>,
    /// Why the recording ends before the program did, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// What a reader of results must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The number that the tables file captured with this recording has, too; never 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<u64>,
}

impl Summary {
    /// The part of it that the stream alone does not say.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            command: self.command.clone(),
            exit_status: self.exit_status,
            partial: self.partial.clone(),
            notes: self.notes.clone(),
            tables: self.tables,
        }
    }
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Position of its header in the file.
    pub offset: u64,
    /// Accesses before it.
    pub first_access: u64,
    /// Accesses in it.
    pub accesses: u32,
    /// Events in it.
    pub events: u32,
}

/// The footer's bytes, trailer included, when it stands at `offset`.
pub fn pack(offset: u64, first_block: u64, summary: &Summary, index: &[BlockEntry]) -> Vec<u8> {
    let mut payload = Vec::new();
    let json = serde_json::to_vec(summary).expect("a summary has no map keys that can fail");
    put(&mut payload, json.len() as u64);
    payload.extend_from_slice(&json);
    put(&mut payload, index.len() as u64);
    let ends = index.iter().skip(1).map(|entry| entry.offset).chain([offset]);
    let mut start = first_block;
    for (entry, end) in index.iter().zip(ends) {
        put(&mut payload, end - start);
        put(&mut payload, entry.accesses.into());
        put(&mut payload, entry.events.into());
        start = end;
    }
    let mut footer = Vec::with_capacity(payload.len() + FOOTER_HEADER_LEN + TRAILER_LEN);
    footer.extend_from_slice(&FOOTER_MAGIC);
    footer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    footer.extend_from_slice(&checksum(&payload).to_le_bytes());
    seal(&mut footer);
    footer.extend_from_slice(&payload);
    footer.extend_from_slice(&offset.to_le_bytes());
    footer.extend_from_slice(&checksum(&offset.to_le_bytes()).to_le_bytes());
    footer.extend_from_slice(&TRAILER_MAGIC);
    footer
}

/// The position of the footer that a trailer gives, `None` when it is damaged.
pub fn parse_trailer(bytes: &[u8; TRAILER_LEN]) -> Option<u64> {
    Fields(unseal(bytes.strip_suffix(&TRAILER_MAGIC)?)?).u64()
}

/// Length and checksum of the footer's payload, `None` when its header is damaged.
pub fn parse_header(bytes: &[u8; FOOTER_HEADER_LEN]) -> Option<(u32, u32)> {
    let mut fields = Fields(unseal(bytes)?.strip_prefix(&FOOTER_MAGIC)?);
    Some((fields.u32()?, fields.u32()?))
}

/// Summary and index in a payload, `None` when it is damaged.
pub fn parse_payload(
    mut bytes: &[u8],
    crc: u32,
    first_block: u64,
) -> Option<(Summary, Vec<BlockEntry>)> {
    if checksum(bytes) != crc {
        return None;
    }
    let input = &mut bytes;
    let length = usize::try_from(take(input)?).ok()?;
    let (json, rest) = input.split_at_checked(length)?;
    *input = rest;
    let summary = serde_json::from_slice(json).ok()?;
    let blocks = take(input)?;
    let (mut offset, mut first_access) = (first_block, 0u64);
    let mut index = Vec::new();
    for _ in 0..blocks {
        let length = take(input)?;
        let accesses = take(input)?.try_into().ok()?;
        let events = take(input)?.try_into().ok()?;
        index.push(BlockEntry { offset, first_access, accesses, events });
        offset = offset.checked_add(length)?;
        first_access = first_access.checked_add(accesses.into())?;
    }
    input.is_empty().then_some((summary, index))
}

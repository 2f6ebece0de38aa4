//! How a recording begins.

use strata_files::{Format, seal, unseal};

/// How a recording begins. The first byte is no text and the last a line feed, so a transfer that
/// mistakes the file for text is noticed at once.
pub const FORMAT: Format = Format { magic: *b"\x89STRATA\n", version: 1 };

/// Length of the file header: magic, version, CRC-32C of these.
pub(super) const HEADER_LEN: u64 = 16;

/// The file header.
pub(super) fn file_header() -> Vec<u8> {
    let mut header = FORMAT.begin().to_vec();
    seal(&mut header);
    header
}

/// Whether this is the header of a recording that can be read.
///
/// # Errors
/// Why not, to be put after the file's name.
pub(super) fn check_file_header(header: &[u8]) -> Result<(), String> {
    if header.len() < HEADER_LEN as usize {
        return Err("too short to be a recording".into());
    }
    let Ok((version, _)) = FORMAT.version_of(header) else {
        return Err("not a recording made by `strata record`".into());
    };
    if unseal(header).is_none() {
        return Err("recording damaged at byte 8 (access 0): its header does not match its \
                    checksum; record it again"
            .into());
    }
    FORMAT.check(version).map_err(|_| {
        format!(
            "recording has format version {version}, this program reads up to {}; use a newer \
             Strata",
            FORMAT.version
        )
    })
}

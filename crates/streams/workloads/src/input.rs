//! Trace files as streams of bytes, decompressed on the way.

use crate::Interruptible;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_stream::SourceError;

/// Memory a decompressor may use. `xz -9` needs 65 MiB; a file that asks for more is refused
/// rather than obeyed.
const DECOMPRESSOR_MEMORY: u64 = 256 << 20;

/// log2 of the window a zstd stream may ask for: `zstd --ultra` uses 27.
const ZSTD_WINDOW_LOG: u32 = 27;

/// Bytes read from the decompressor at a time.
const BUFFER: usize = 256 * 1024;

/// Bytes that come from a file, a pipe, or memory, with a window on what comes next.
pub struct Input {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    /// Decompressed bytes before `start`.
    offset: u64,
    ended: bool,
    /// Whether it is decompressed on the way.
    packed: bool,
    /// Why no more can be read. Kept, as a decompressor asked again after an error may claim a
    /// regular end.
    failure: Option<io::Error>,
    name: String,
}

impl Input {
    /// Opens a file, to be read until `stop` is set; gzip, xz and zstd are recognised by their first
    /// bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn open(path: &Path, stop: &Arc<AtomicBool>) -> Result<Self, SourceError> {
        let name = path.display().to_string();
        match Interruptible::open(path, stop.clone()) {
            Ok(file) => Self::new(file, name),
            Err(source) if source.kind() == io::ErrorKind::IsADirectory => {
                Err(SourceError::Invalid(format!("'{name}' is a directory; name a file in it")))
            }
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => Err(
                SourceError::Invalid(format!("'{name}' may not be read: {source}; run as who may")),
            ),
            Err(source) => Err(SourceError::Io { context: cannot_read(&name), source }),
        }
    }

    /// Reads from `raw`; `name` is for messages.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn new(raw: impl Read + Send + 'static, name: String) -> Result<Self, SourceError> {
        match decompressed(raw) {
            Ok((reader, packed)) => Ok(Self {
                reader,
                packed,
                buffer: Vec::new(),
                start: 0,
                offset: 0,
                ended: false,
                failure: None,
                name,
            }),
            Err(source) => Err(SourceError::Io { context: cannot_read(&name), source }),
        }
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is decompressed on the way.
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// Position in the decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What comes next: at least `bytes`, unless the input ends or breaks before.
    ///
    /// # Errors
    /// When no more can be read; what came before the break has then been seen.
    pub fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.start < bytes {
            if !self.ended && self.failure.is_none() {
                self.buffer.drain(..self.start);
                self.start = 0;
                self.read_up_to(bytes.max(BUFFER));
            }
            if let Some(failure) = &self.failure
                && self.buffer.len() - self.start < bytes
            {
                return Err(match failure.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(failure.kind(), failure.to_string()),
                });
            }
        }
        Ok(&self.buffer[self.start..])
    }

    /// What has been read and not consumed.
    pub fn window(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Passes over bytes of the window.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
        debug_assert!(self.start <= self.buffer.len());
    }

    /// Fills the buffer as far as the input allows.
    fn read_up_to(&mut self, length: usize) {
        let mut filled = self.buffer.len();
        self.buffer.resize(length.max(filled), 0);
        while filled < self.buffer.len() && !self.ended && self.failure.is_none() {
            match self.reader.read(&mut self.buffer[filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failure = Some(explained(error)),
            }
        }
        self.buffer.truncate(filled);
    }

    /// The message for input that broke off: an error of the system, or damaged compression.
    pub fn broken(&self, error: io::Error, accesses: u64) -> SourceError {
        match error.raw_os_error() {
            Some(_) => SourceError::Io { context: cannot_read(&self.name), source: error },
            None if error.kind() == io::ErrorKind::OutOfMemory => {
                SourceError::Invalid(format!("trace '{}' {error}", self.name))
            }
            None => self.damaged(
                format_args!("is damaged or cut short ({error})"),
                self.offset + self.window().len() as u64,
                accesses,
            ),
        }
    }

    /// The message for bad content.
    pub fn damaged(&self, what: impl std::fmt::Display, at: u64, accesses: u64) -> SourceError {
        SourceError::Invalid(format!(
            "trace '{}' {what} at byte {at} (access {accesses}); everything before was used, get \
             the file again for the rest",
            self.name
        ))
    }
}

fn cannot_read(name: &str) -> String {
    format!("cannot read trace '{name}'")
}

/// Tells a refused demand for memory from damage.
fn explained(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    if !matches!(inner, Some(liblzma::stream::Error::MemLimit)) {
        return error;
    }
    let limit = DECOMPRESSOR_MEMORY >> 20;
    let why = format!("needs more than {limit} MiB to be decompressed; compress it with xz -9");
    io::Error::new(io::ErrorKind::OutOfMemory, why)
}

/// Puts a decompressor around `raw` if its first bytes ask for one, and says whether it did.
fn decompressed(mut raw: impl Read + Send + 'static) -> io::Result<(Box<dyn Read + Send>, bool)> {
    let mut magic = Vec::new();
    raw.by_ref().take(6).read_to_end(&mut magic)?;
    let kind = magic.clone();
    let raw = BufReader::with_capacity(BUFFER, io::Cursor::new(magic).chain(raw));
    let decoder: Box<dyn Read + Send> = match kind.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(raw)),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let stream = Stream::new_stream_decoder(DECOMPRESSOR_MEMORY, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(raw, stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(raw)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => return Ok((Box::new(raw), false)),
    };
    Ok((decoder, true))
}

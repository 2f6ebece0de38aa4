//! What the plugin of a whole emulated machine tells whoever reads it, over a stream socket. QEMU's is crate
//! `strata-machine-plugin`; what Bochs has in its place is compiled with [`c_header`].
//!
//! The plugin connects. What it sends are frames: two little-endian 32-bit numbers, kind and
//! length of what follows in bytes. After [`Told::Frozen`] the machine stands still until the
//! reader sends one byte, [`GOODBYE`] or [`GO_ON`], or is gone: the kernel closes the socket of a
//! reader that dies, so the machine never waits for a dead one. `docs/tables-format.md` describes the bytes.

use std::io::{self, Read, Write};
use strata_stream::Access;

/// Version of the protocol, sent first.
pub const VERSION: u32 = 1;

/// Seconds that a machine waits for a reader that is there and does nothing: to answer one that stands
/// still, or to read what it is told. It goes on by itself then.
pub const PATIENCE_SECONDS: u64 = 600;

/// The file name of the plugin.
pub const PLUGIN_FILE: &str = "libstrata_machine_plugin.so";

/// Executing an instruction on the page at this address tells the plugin to begin watching: before
/// that nothing is instrumented. Programs map one return instruction here and call it.
pub const ARM_AT: u64 = 0x5fff_fffe_0000;

/// Stores to the page at this address are markers: the 8-byte word at `MARK_AT + 8 * code`.
pub const MARK_AT: u64 = 0x5fff_ffff_0000;

/// Bytes of the page of markers.
pub const MARK_BYTES: u64 = 4096;

/// Marker: record from here.
pub const START: u64 = 0;

/// Marker: stop recording; the machine freezes.
pub const STOP: u64 = 1;

/// Answer to a frozen machine: go on, the reader is satisfied.
pub const GOODBYE: u8 = 0;

/// Answer to a frozen machine: go on, and record again at the next [`START`].
pub const GO_ON: u8 = 1;

/// Why the machine froze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The program stored to the marker [`STOP`].
    Marker,
    /// As many accesses were recorded as were asked for.
    Limit,
}

/// One access with the place of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The access.
    pub access: Access,
    /// Where its first byte is in the machine's RAM, as the emulator counts: from the beginning of
    /// the RAM's file, without the hole below 4 GiB. `None` when it is not in RAM.
    pub ram: Option<u64>,
    /// The machine's virtual CPU.
    pub vcpu: u16,
}

const NOT_RAM: u64 = (1 << 52) - 1;

impl Placed {
    /// Its two words.
    #[inline]
    pub fn words(self) -> [u64; 2] {
        let place = self.ram.unwrap_or(NOT_RAM) & NOT_RAM;
        [self.access.bits(), place | u64::from(self.vcpu & 0xfff) << 52]
    }

    /// The access in two words.
    #[inline]
    pub fn from_words([access, place]: [u64; 2]) -> Self {
        let ram = Some(place & NOT_RAM).filter(|ram| *ram != NOT_RAM);
        Self { access: Access::from_bits(access), ram, vcpu: (place >> 52) as u16 }
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The plugin is there; the version it speaks.
    Hello(u32),
    /// The program asked to be watched: code is instrumented from here.
    Armed,
    /// Recording began.
    Started,
    /// Accesses in order, and the instructions that user code retired meanwhile.
    Accesses {
        /// Instructions.
        instructions: u64,
        /// The accesses.
        accesses: Vec<Placed>,
    },
    /// The machine stands still until the reader answers.
    Frozen(Frozen),
}

const HELLO: u32 = 1;
const ARMED: u32 = 2;
const STARTED: u32 = 3;
const ACCESSES: u32 = 4;
const FROZEN: u32 = 5;

const BY_MARKER: u8 = 0;
const BY_LIMIT: u8 = 1;

/// The numbers of this module for a plugin in C or C++: macros that begin with `STRATA_`.
pub fn c_header() -> String {
    let numbers = [
        ("VERSION", VERSION.into()),
        ("HELLO", HELLO.into()),
        ("ARMED", ARMED.into()),
        ("STARTED", STARTED.into()),
        ("ACCESSES", ACCESSES.into()),
        ("FROZEN", FROZEN.into()),
        ("BY_MARKER", BY_MARKER.into()),
        ("BY_LIMIT", BY_LIMIT.into()),
        ("GOODBYE", GOODBYE.into()),
        ("PATIENCE_SECONDS", PATIENCE_SECONDS),
        ("START", START),
        ("STOP", STOP),
        ("MARK_AT", MARK_AT),
        ("MARK_BYTES", MARK_BYTES),
        ("MAX_ACCESSES", MAX_ACCESSES as u64),
    ];
    numbers.map(|(name, number)| format!("#define STRATA_{name} {number:#x}ull\n")).concat()
}

/// The longest frame: what a plugin gathers before it sends.
pub const MAX_FRAME: usize = 8 + 16 * MAX_ACCESSES;

/// Accesses in a frame, at most.
pub const MAX_ACCESSES: usize = 4096;

impl Told {
    /// Writes a frame.
    ///
    /// # Errors
    /// When the sink fails.
    pub fn write(&self, sink: &mut impl Write) -> io::Result<()> {
        let (kind, content) = match self {
            Self::Hello(version) => (HELLO, version.to_le_bytes().to_vec()),
            Self::Armed => (ARMED, Vec::new()),
            Self::Started => (STARTED, Vec::new()),
            Self::Frozen(Frozen::Marker) => (FROZEN, vec![BY_MARKER]),
            Self::Frozen(Frozen::Limit) => (FROZEN, vec![BY_LIMIT]),
            Self::Accesses { instructions, accesses } => {
                let mut content = instructions.to_le_bytes().to_vec();
                for word in accesses.iter().flat_map(|placed| placed.words()) {
                    content.extend_from_slice(&word.to_le_bytes());
                }
                (ACCESSES, content)
            }
        };
        let mut frame = kind.to_le_bytes().to_vec();
        frame.extend_from_slice(&(content.len() as u32).to_le_bytes());
        frame.extend_from_slice(&content);
        sink.write_all(&frame)
    }

    /// Reads a frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// When the source fails, ends inside a frame or holds something else.
    pub fn read(source: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 8];
        match source.read(&mut head[..1])? {
            0 => return Ok(None),
            _ => source.read_exact(&mut head[1..])?,
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (kind, length) = (word(&head) as u32, (word(&head) >> 32) as usize);
        if length > MAX_FRAME {
            return Err(invalid());
        }
        let mut content = vec![0; length];
        source.read_exact(&mut content)?;
        Ok(Some(match (kind, &content[..]) {
            (HELLO, &[a, b, c, d]) => Self::Hello(u32::from_le_bytes([a, b, c, d])),
            (ARMED, []) => Self::Armed,
            (STARTED, []) => Self::Started,
            (FROZEN, &[BY_MARKER]) => Self::Frozen(Frozen::Marker),
            (FROZEN, &[BY_LIMIT]) => Self::Frozen(Frozen::Limit),
            (ACCESSES, content) if content.len() % 16 == 8 => Self::Accesses {
                instructions: word(&content[..8]),
                accesses: content[8..]
                    .chunks_exact(16)
                    .map(|two| Placed::from_words([word(&two[..8]), word(&two[8..])]))
                    .collect(),
            },
            _ => return Err(invalid()),
        }))
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not what the machine's plugin sends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_addr::Gva;

    fn placed() -> impl Strategy<Value = Placed> {
        (any::<u64>(), prop::option::of(0..NOT_RAM), 0u16..1 << 12).prop_map(|(addr, ram, vcpu)| {
            let access = Access::store(Gva::new(addr), 8);
            Placed { access, ram, vcpu }
        })
    }

    proptest! {
        #[test]
        fn frames_read_back(
            instructions: u64, accesses in prop::collection::vec(placed(), 0..100),
        ) {
            let told = [
                Told::Hello(VERSION),
                Told::Armed,
                Told::Started,
                Told::Accesses { instructions, accesses },
                Told::Frozen(Frozen::Marker),
                Told::Frozen(Frozen::Limit),
            ];
            let mut bytes = Vec::new();
            told.iter().for_each(|told| told.write(&mut bytes).unwrap());
            let mut rest = &bytes[..];
            for told in told {
                prop_assert_eq!(Told::read(&mut rest).unwrap(), Some(told));
            }
            prop_assert_eq!(Told::read(&mut rest).unwrap(), None);
        }

        #[test]
        fn anything_else_is_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut rest = &bytes[..];
            while let Ok(Some(_)) = Told::read(&mut rest) {}
        }
    }
}

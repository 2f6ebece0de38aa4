//! Where access streams come from, other than live programs.
//!
//! | module | what |
//! | --- | --- |
//! | [`record`] | recordings, Strata's own format: reader and writer |
//! | [`champsim`], [`lackey`] | foreign traces |
//! | [`generate`] | streams made by rule, for controlled experiments |
//!
//! [`open`] reads any trace file, [`generate::Generator::parse`] makes a generator; both are
//! [`Source`]s.

pub mod champsim;
#[doc(hidden)]
pub mod fuzz;
pub mod generate;
pub mod lackey;
pub mod record;

mod excerpt;
mod footprint;
mod format;
mod infer;
mod input;
mod interruptible;
mod measured;
mod sampled;
mod spool;
mod suggest;

pub use excerpt::{Before, Excerpt, Part};
pub use footprint::Footprint;
pub use format::Format;
pub use generate::Generator;
pub use input::Input;
pub use interruptible::Interruptible;
pub use measured::Measured;
pub use sampled::{
    Aim, Aimed, Auto, Chooser, Marker, Phases, Reach, Sampled, Touches, profile, tell_touched,
};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_stream::{Source, SourceError};

/// Opens a trace file of any known format, compressed or not; `-` is the standard input. Reading it
/// ends soon after `stop` is set, be it a pipe to which nobody writes.
///
/// The format is recognised by content, and by name where content leaves it open, unless `format`
/// says what it is. A recording that comes through a pipe, or compressed, is kept in a temporary
/// file without a name, since recordings are read from their end.
///
/// # Errors
/// When the file cannot be read, is empty, or is of no known format.
pub fn open(
    path: &Path,
    format: Option<Format>,
    stop: &Arc<AtomicBool>,
) -> Result<Box<dyn Source>, SourceError> {
    let invalid = |why: String| SourceError::Invalid(format!("'{}' {why}", path.display()));
    let pipe = path == Path::new("-") || path.metadata().is_ok_and(|found| !found.is_file());
    let mut input = Input::open(path, stop)?;
    // A file that breaks in its head may still have a recognisable one.
    let _ = input.peek(Format::HEAD);
    let head = input.window();
    let head = &head[..head.len().min(Format::HEAD)];
    if head.is_empty() {
        // A compressed file that breaks before its first byte has a better message.
        return Err(match input.peek(1) {
            Err(error) => input.broken(error, 0),
            Ok(_) => invalid("is empty: give a recording or a trace".into()),
        });
    }
    let found = match format {
        Some(format) => format,
        None => Format::detect(head, path).ok_or_else(|| {
            invalid(
                "is no trace of a known format; if it is one, name the format: recording, \
                 champsim, cloudsuite or lackey"
                    .into(),
            )
        })?,
    };
    // Not everything that a pipe or a device gives is worth keeping.
    let recorded = head.starts_with(&record::FORMAT.magic);
    Ok(match found {
        Format::Recording if pipe && !recorded => {
            return Err(invalid("is no recording: name one, or its format".into()));
        }
        Format::Recording if pipe || input.is_packed() => {
            let name = input.name().to_owned();
            Box::new(record::Reader::new(spool::spool(input)?, name)?)
        }
        Format::Recording => Box::new(record::Reader::open(path)?),
        Format::ChampSim => Box::new(champsim::Reader::new(input, champsim::Layout::ChampSim)),
        Format::CloudSuite => Box::new(champsim::Reader::new(input, champsim::Layout::CloudSuite)),
        Format::Lackey => Box::new(lackey::Reader::new(input)),
    })
}

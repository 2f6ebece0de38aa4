//! Text that `valgrind --tool=lackey --trace-mem=yes` writes.
//!
//! ```text
//! I  0401ab73,5        an instruction of 5 bytes
//!  L 1fff000658,8      loads 8 bytes
//!  S 1fff000650,8      stores
//!  M 0425abe0,4        loads, then stores the same place
//! ==5764== Exit code:       0
//! ```
//!
//! Lines of other forms are passed over: valgrind's own begin with `==` or `--`, and the traced
//! program's output may be mixed in when the trace was not sent to a file of its own.

use crate::infer::Inferred;
use crate::input::Input;
use strata_stream::{AccessKind, Batch, Fill, Source, SourceError, WorkloadInfo};

/// Bytes a line may have. A longer one is no line of a trace, and is passed over in pieces, so
/// that a file without line feeds cannot fill the memory.
const LINE: usize = 4096;

/// Lines looked at by one call of [`Source::fill`].
const LINES_PER_FILL: usize = 64 * 1024;

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Instruction,
    Load(u64, u32),
    Store(u64, u32),
    Modify(u64, u32),
}

/// The trace record in a line (without line feed), `None` when it is none.
fn parse(line: &[u8]) -> Option<Line> {
    // It may have passed through an editor of another system.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (kind, operands) = line.split_at_checked(3)?;
    let comma = operands.iter().rposition(|&byte| byte == b',')?;
    let addr = hexadecimal(&operands[..comma])?;
    let size = decimal(&operands[comma + 1..])?;
    match kind {
        b"I  " => Some(Line::Instruction),
        b" L " => Some(Line::Load(addr, size)),
        b" S " => Some(Line::Store(addr, size)),
        b" M " => Some(Line::Modify(addr, size)),
        _ => None,
    }
}

/// One to sixteen digits.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// One to six digits.
fn decimal(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || digits.len() > 6 {
        return None;
    }
    digits.iter().try_fold(0, |value, &digit| {
        digit.is_ascii_digit().then(|| value * 10 + u32::from(digit - b'0'))
    })
}

/// Whether a file that begins so is one of lackey's.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    let mut whole = head.split(|&byte| byte == b'\n').collect::<Vec<_>>();
    if whole.len() > 1 {
        // What follows the last line feed may have been cut.
        whole.pop();
    }
    let lines = whole.iter().filter(|line| !line.is_empty() && !is_remark(line));
    let (good, all) = lines
        .fold((0, 0), |(good, all), line| (good + usize::from(parse(line).is_some()), all + 1));
    let named =
        whole.iter().any(|line| is_remark(line) && line.ends_with(b"example Valgrind tool"));
    // A chatty program's output may come before the first record.
    good * 2 > all || (named && (good > 0 || all == 0))
}

/// Whether valgrind says something in this line.
fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"==") || line.starts_with(b"--")
}

/// A lackey trace that is read.
pub struct Reader {
    input: Input,
    inferred: Inferred,
    /// Lines passed over, and where the first was.
    strange: u64,
    first_strange: u64,
    exit_status: Option<i32>,
    any_record: bool,
    over: bool,
    damage: Option<String>,
}

impl Reader {
    /// Reads lines.
    pub fn new(input: Input) -> Self {
        Self {
            input,
            inferred: Inferred::default(),
            strange: 0,
            first_strange: 0,
            exit_status: None,
            any_record: false,
            over: false,
            damage: None,
        }
    }

    fn lines(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        self.inferred.start(batch);
        for _ in 0..LINES_PER_FILL {
            if batch.is_full() {
                break;
            }
            if self.input.window().len() < LINE
                && let Err(error) = self.input.peek(LINE)
            {
                // Whole lines that came before the break still count.
                if memchr::memchr(b'\n', self.input.window()).is_none() {
                    return Err(self.input.broken(error, self.inferred.accesses()));
                }
            }
            let window = self.input.window();
            let window = &window[..window.len().min(LINE)];
            match memchr::memchr(b'\n', window) {
                Some(end) => {
                    let record = parse(&window[..end]);
                    if record.is_none() {
                        self.other(end);
                    }
                    self.input.consume(end + 1);
                    if let Some(record) = record {
                        self.record(record, batch);
                    }
                }
                None if window.is_empty() => return Ok(Fill::End),
                None if window.len() < LINE => {
                    // Any part of a number is a number, so a last line cannot be trusted.
                    let at = self.input.offset();
                    let accesses = self.inferred.accesses();
                    return Err(self.input.damaged("ends within a line", at, accesses));
                }
                None => {
                    let length = window.len();
                    self.other(length);
                    self.input.consume(length);
                }
            }
        }
        Ok(Fill::More)
    }

    fn record(&mut self, line: Line, batch: &mut Batch) {
        self.any_record = true;
        match line {
            Line::Instruction => self.inferred.instruction(),
            Line::Load(addr, size) => self.inferred.access(batch, AccessKind::Load, addr, size),
            Line::Store(addr, size) => self.inferred.access(batch, AccessKind::Store, addr, size),
            Line::Modify(addr, size) => {
                self.inferred.access(batch, AccessKind::Load, addr, size);
                self.inferred.access(batch, AccessKind::Store, addr, size);
            }
        }
    }

    /// A line that is no record: the first `end` bytes of the window.
    fn other(&mut self, end: usize) {
        let line = &self.input.window()[..end];
        if is_remark(line) {
            if let Some(code) = exit_code(line) {
                self.exit_status = Some(code);
            }
        } else if !line.is_empty() {
            if self.strange == 0 {
                self.first_strange = self.input.offset();
            }
            self.strange += 1;
        }
    }
}

/// The code in `==PID== Exit code:       0`.
fn exit_code(line: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(line).ok()?;
    text.split_once("== Exit code:")?.1.trim().parse().ok()
}

impl Source for Reader {
    fn info(&self) -> WorkloadInfo {
        let mut notes = self.inferred.notes();
        if self.strange > 0 {
            notes.push(format!(
                "{} lines that are no trace records were passed over, the first at byte {}",
                self.strange, self.first_strange
            ));
        }
        notes.extend(self.damage.clone());
        WorkloadInfo {
            name: self.input.name().to_owned(),
            kind: "lackey",
            accesses: self.over.then(|| self.inferred.accesses()),
            notes,
            exit_status: self.exit_status,
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.over {
            return Ok(Fill::End);
        }
        let mut result = self.lines(batch);
        // The traced program may say much, but lackey says something too.
        let over = matches!(result, Ok(Fill::End) | Err(SourceError::Invalid(_)));
        if over && !self.any_record && self.strange > 0 {
            result = Err(SourceError::Invalid(format!(
                "trace '{}' has no line that lackey writes; leave --format out to have the format \
                 detected",
                self.input.name()
            )));
        }
        if !matches!(result, Ok(Fill::More)) {
            self.over = true;
            self.inferred.end(batch);
        }
        if let Err(error) = &result {
            self.damage = Some(error.to_string());
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_lackey_writes_them() {
        for (line, expected) in [
            (&b"I  0401ab73,5"[..], Some(Line::Instruction)),
            (b" L 1fff000658,8", Some(Line::Load(0x1f_ff00_0658, 8))),
            (b" S ffffffffffffffff,1", Some(Line::Store(u64::MAX, 1))),
            (b" M 0425abe0,4", Some(Line::Modify(0x425_abe0, 4))),
            (b" S 1fff000658,8\r", Some(Line::Store(0x1f_ff00_0658, 8))),
            (b" M 0425abe0", None),
            (b" M ,4", None),
            (b" M 0425abe0,", None),
            (b" M 1fffffffffffffffff,4", None),
            (b" X 0425abe0,4", None),
            (b"S 0425abe0,4", None),
            (b"hello, world", None),
            (b"", None),
        ] {
            assert_eq!(parse(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn lackey_is_told_from_other_text() {
        assert!(looks_like(b"I  0401ab73,5\n S 1fff000658,8\n S 1f"));
        assert!(looks_like(b"==1== Lackey, an example Valgrind tool\n==1== Copy"));
        assert!(looks_like(b"==1== Lackey, an example Valgrind tool\nhi\nho\nI  04,5\n"));
        assert!(!looks_like(b"==1== Memcheck, a memory error detector\n"));
        assert!(!looks_like(b"I am no trace,5\nnor this\n"));
        assert!(!looks_like(b""));
    }
}

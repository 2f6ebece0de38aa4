//! Traces made for ChampSim: one record an instruction, no sizes, no threads, no mappings.
//!
//! The layouts are the C structures `input_instr` and `cloudsuite_instr` of ChampSim's
//! `inc/trace_instruction.h`, little-endian, with the padding of x86-64:
//!
//! ```text
//!                    input_instr (64 bytes)     cloudsuite_instr (96 bytes)
//! ip                 u64      at 0              u64      at 0
//! is_branch          u8       at 8              u8       at 8
//! branch_taken       u8       at 9              u8       at 9
//! dest. registers    u8 [2]   at 10             u8 [4]   at 10
//! source registers   u8 [4]   at 12             u8 [4]   at 14
//! dest. memory       u64 [2]  at 16             u64 [4]  at 24
//! source memory      u64 [4]  at 32             u64 [4]  at 56
//! asid               none                       u8 [2]   at 88
//! ```
//!
//! A memory operand of zero means there is none. Sizes are unknown; every access counts as
//! [`ACCESS_BYTES`]. Loads come before stores, as an instruction reads before it writes. Address
//! space identifiers are not used: the traces in circulation hold one program.

use crate::infer::Inferred;
use crate::input::Input;
use strata_stream::{AccessKind, Batch, Fill, Source, SourceError, WorkloadInfo};

/// Bytes an access counts as: the width of most operands on x86-64.
pub const ACCESS_BYTES: u32 = 8;

/// Records looked at by one call of [`Source::fill`], so that a long stretch without accesses
/// does not keep the caller waiting.
const RECORDS_PER_FILL: usize = 64 * 1024;

/// How a record is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `input_instr`.
    ChampSim,
    /// `cloudsuite_instr`.
    CloudSuite,
}

impl Layout {
    /// Bytes in a record.
    const fn record(self) -> usize {
        match self {
            Self::ChampSim => 64,
            Self::CloudSuite => 96,
        }
    }

    /// Where the addresses written begin and end; those read follow and are four.
    const fn stores(self) -> std::ops::Range<usize> {
        match self {
            Self::ChampSim => 16..32,
            Self::CloudSuite => 24..56,
        }
    }

    /// In how many records at the start of a trace the flags are flags and the addresses
    /// canonical, and how many were looked at.
    pub(crate) fn plausible(self, head: &[u8]) -> (usize, usize) {
        let canonical = |addr: u64| matches!(addr >> 47, 0 | 0x1_ffff);
        let good = |record: &&[u8]| {
            let (branch, taken) = (record[8], record[9]);
            let ip = number(&record[..8]);
            let first = self.stores().start;
            branch <= 1
                && taken <= branch
                && ip != 0
                && canonical(ip)
                && record[first..first + 48].chunks_exact(8).map(number).all(canonical)
        };
        let records = head.chunks_exact(self.record());
        (records.clone().filter(good).count(), records.len())
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// A ChampSim or CloudSuite trace that is read.
pub struct Reader {
    input: Input,
    layout: Layout,
    inferred: Inferred,
    over: bool,
    damage: Option<String>,
}

impl Reader {
    /// Reads records of this layout.
    pub fn new(input: Input, layout: Layout) -> Self {
        Self { input, layout, inferred: Inferred::default(), over: false, damage: None }
    }

    fn record(&mut self, record: [u8; 96], batch: &mut Batch) {
        self.inferred.instruction();
        let stores = self.layout.stores();
        let loads = stores.end..stores.end + 32;
        for (range, kind) in [(loads, AccessKind::Load), (stores, AccessKind::Store)] {
            for operand in record[range].chunks_exact(8).map(number) {
                if operand != 0 {
                    self.inferred.access(batch, kind, operand, ACCESS_BYTES);
                }
            }
        }
    }

    fn records(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        self.inferred.start(batch);
        let length = self.layout.record();
        for _ in 0..RECORDS_PER_FILL {
            if batch.is_full() {
                break;
            }
            if self.input.window().len() < length
                && let Err(error) = self.input.peek(length)
            {
                return Err(self.input.broken(error, self.inferred.accesses()));
            }
            let window = self.input.window();
            let Some(bytes) = window.get(..length) else {
                if window.is_empty() {
                    return Ok(Fill::End);
                }
                let at = self.input.offset();
                return Err(self.input.damaged("is cut short", at, self.inferred.accesses()));
            };
            let mut record = [0; 96];
            record[..length].copy_from_slice(bytes);
            self.input.consume(length);
            self.record(record, batch);
        }
        Ok(Fill::More)
    }
}

impl Source for Reader {
    fn info(&self) -> WorkloadInfo {
        let mut notes = self.inferred.notes();
        notes.push(format!("the trace holds no sizes: accesses count as {ACCESS_BYTES} bytes"));
        notes.extend(self.damage.clone());
        WorkloadInfo {
            name: self.input.name().to_owned(),
            kind: match self.layout {
                Layout::ChampSim => "champsim",
                Layout::CloudSuite => "cloudsuite",
            },
            accesses: self.over.then(|| self.inferred.accesses()),
            notes,
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.over {
            return Ok(Fill::End);
        }
        let result = self.records(batch);
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

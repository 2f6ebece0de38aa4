//! Deduplication of a buffer, as the program dedup of PARSEC does it.
//!
//! ```text
//! input      half of the memory, read from its start to its end and again
//! table      a quarter: buckets of 8 bytes and as many entries of 64, one for each chunk known
//! Rabin      2 KiB: a table for the rolling hash
//! deflate    64 KiB for each thread: the heads of the compressor's chains
//! output     the rest, written from its start to its end and again
//! ```
//!
//! A thread takes the next chunk of the input: looks for its end with a rolling hash, hashes it (SHA-1),
//! and looks it up. One that is new gets an entry and is compressed to half of its size (PARSEC 3.0,
//! `encoder.c`: `FragmentRefine`, `Deduplicate`, `Compress`). PARSEC gives these steps to different
//! threads; here each thread does all of them for its chunk. Contents are not there: which chunks are
//! new is drawn. Where memory is small the tables are.

use super::Common;
use super::kernel::{Kernel, Layout, Step, load, store};
use super::random::{SplitMix64, scale};
use super::spec::Spec;
use strata_stream::Access;

const BUCKET: u64 = 8;
const ENTRY: u64 = 64;
const RABIN: u64 = 2048;
const DEFLATE: u64 = 64 << 10;

/// Bytes that one instruction loads of a chunk, and bytes of a chunk in one step.
const WORD: u64 = 8;
const PIECE: u64 = 64;

/// What is done with a chunk, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fragment,
    Hash,
    LookUp,
    Compress,
}

/// The chunk that a thread has.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    start: u64,
    bytes: u64,
    /// Number of its contents; the first chunk with them has it new.
    id: u64,
    is_new: bool,
    stage: Stage,
    /// Bytes done in this stage.
    done: u64,
}

/// The deduplication.
pub struct Dedup {
    chunk_bytes: u64,
    duplicates: f64,
    input: u64,
    input_bytes: u64,
    rabin: u64,
    rabin_words: u64,
    deflate: u64,
    deflate_bytes: u64,
    buckets: u64,
    entries: u64,
    entry_count: u64,
    output: u64,
    output_words: u64,
    /// Bytes of the input that chunks have been made of, in this reading.
    cut: u64,
    /// Words written to the output.
    written: u64,
    /// Different chunks so far.
    unique: u64,
    random: SplitMix64,
    threads: Vec<Option<Chunk>>,
}

impl Dedup {
    /// The deduplication that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: &Common) -> Result<Self, String> {
        let words = |bytes: u64| bytes / WORD * WORD;
        let size = words(common.size);
        let rabin_bytes = words((size / 16).min(RABIN));
        let deflate_bytes = words((size / 16 / common.threads).min(DEFLATE));
        if deflate_bytes == 0 {
            return Err(spec.wrong("size", "too small for its threads"));
        }
        let entry_count = size / 4 / (BUCKET + ENTRY);
        let input_bytes = words(size / 2);
        let mut layout = Layout::new();
        let input = layout.part(input_bytes);
        let buckets = layout.part(entry_count * BUCKET);
        let entries = layout.part(entry_count * ENTRY);
        let rabin = layout.part(rabin_bytes);
        let deflate = layout.part(deflate_bytes * common.threads);
        let output = layout.part(0);
        Ok(Self {
            chunk_bytes: spec.size("chunk", WORD, 1 << 30)?,
            duplicates: spec.real("duplicates", 0.0, 1.0)?,
            input,
            input_bytes,
            rabin,
            rabin_words: rabin_bytes / WORD,
            deflate,
            deflate_bytes,
            buckets,
            entries,
            entry_count,
            output,
            output_words: (super::BASE + size - output) / WORD,
            cut: 0,
            written: 0,
            unique: 0,
            random: SplitMix64::new(common.seed, 0),
            threads: vec![None; common.threads as usize],
        })
    }

    /// The next chunk of the input. Sizes are as if every place were equally likely to be an end, within
    /// an eighth of and eight times their mean.
    fn next_chunk(&mut self) -> Chunk {
        if self.cut == self.input_bytes {
            self.cut = 0;
        }
        let mean = self.chunk_bytes as f64;
        let drawn = -libm::log(1.0 - self.random.unit()) * mean;
        let bytes = (drawn.clamp(mean / 8.0, mean * 8.0) as u64).next_multiple_of(WORD);
        let bytes = bytes.min(self.input_bytes - self.cut);
        let start = self.input + self.cut;
        self.cut += bytes;
        let is_new = self.unique == 0 || self.random.unit() >= self.duplicates;
        let id = if is_new { self.unique } else { self.random.below(self.unique) };
        self.unique += u64::from(is_new);
        Chunk { start, bytes, id, is_new, stage: Stage::Fragment, done: 0 }
    }

    /// A number below `bound` that follows from contents.
    fn of_contents(id: u64, at: u64, bound: u64) -> u64 {
        scale(SplitMix64::new(id, at).bits(), bound)
    }

    fn look_up(&self, chunk: &Chunk, out: &mut Vec<Access>) {
        let bucket = self.buckets + BUCKET * Self::of_contents(chunk.id, 0, self.entry_count);
        // Once all entries are taken the oldest give way.
        let entry = |id: u64| self.entries + ENTRY * (id % self.entry_count);
        out.push(load(bucket, 8));
        // Another chunk in the same bucket, as often as the table is full.
        let known = self.unique.min(self.entry_count);
        if Self::of_contents(chunk.id, 1, self.entry_count) < known {
            let other = Self::of_contents(chunk.id, 2, known);
            out.extend([load(entry(other), 8), load(entry(other) + 56, 8)]);
        }
        let own = entry(chunk.id);
        if chunk.is_new {
            out.extend((0..ENTRY).step_by(8).map(|at| store(own + at, 8)));
            out.push(store(bucket, 8));
        } else {
            out.extend([load(own, 8), load(own + 8, 8), load(own + 16, 8), store(own + 48, 8)]);
        }
    }

    /// One word of a chunk in the present stage.
    fn word(&mut self, thread: usize, chunk: &Chunk, at: u64, out: &mut Vec<Access>) {
        out.push(load(chunk.start + at, WORD as u32));
        match chunk.stage {
            Stage::Fragment => {
                let word = Self::of_contents(chunk.id, at, self.rabin_words);
                out.push(load(self.rabin + WORD * word, 8));
            }
            Stage::Hash | Stage::LookUp => {}
            Stage::Compress => {
                let heads = self.deflate + thread as u64 * self.deflate_bytes;
                let head = heads + 2 * Self::of_contents(chunk.id, !at, self.deflate_bytes / 2);
                out.extend([load(head, 2), store(head, 2)]);
                // Two words become one.
                if at.is_multiple_of(2 * WORD) {
                    out.push(store(self.output + WORD * (self.written % self.output_words), 8));
                    self.written += 1;
                }
            }
        }
    }
}

impl Kernel for Dedup {
    fn step(&mut self, thread: usize, out: &mut Vec<Access>) -> Step {
        let mut chunk = match self.threads[thread] {
            Some(chunk) => chunk,
            None => self.next_chunk(),
        };
        let is_over = if chunk.stage == Stage::LookUp {
            self.look_up(&chunk, out);
            true
        } else {
            let end = chunk.bytes.min(chunk.done + PIECE);
            for at in (chunk.done..end).step_by(WORD as usize) {
                self.word(thread, &chunk, at, out);
            }
            chunk.done = end;
            end == chunk.bytes
        };
        let next = match chunk.stage {
            stage if !is_over => Some(stage),
            Stage::Fragment => Some(Stage::Hash),
            Stage::Hash => Some(Stage::LookUp),
            Stage::LookUp if chunk.is_new => Some(Stage::Compress),
            Stage::LookUp | Stage::Compress => None,
        };
        if is_over {
            chunk.done = 0;
        }
        self.threads[thread] = next.map(|stage| Chunk { stage, ..chunk });
        if next.is_none() { Step::Ended } else { Step::Within }
    }
}

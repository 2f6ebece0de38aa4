//! The text that chooses a generator: `random:size=1GiB,accesses=50M`.

use crate::suggest::suggest;
use serde::Serialize;

/// A parameter of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The value it has when it is not given; empty when there is none.
    pub default: &'static str,
    /// What it means, in one line.
    pub explanation: &'static str,
}

/// A kind of generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one line.
    pub explanation: &'static str,
    /// Its parameters.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, default: &'static str, explanation: &'static str) -> Key {
    Key { name, default, explanation }
}

const SIZE: Key = key("size", "1GiB", "memory used, in bytes");
const ACCESSES: Key = key("accesses", "50M", "loads and stores, those of touch not counted");
const PASSES: Key = key("passes", "", "whole passes to make, instead of a number of accesses");
const SEED: Key = key("seed", "1", "chooses the random numbers");
const STORES: Key = key("stores", "0.3", "fraction of accesses that store");
const LOADS_ONLY: Key = key("stores", "0", "fraction of accesses that store");
const BYTES: Key = key("bytes", "8", "bytes of an access: a power of two up to 128");
const THREADS: Key = key("threads", "1", "threads, taking turns of 512 accesses");
const IPA: Key = key("ipa", "3", "instructions per access, the access itself included");
const REQUEST: Key = key("request", "0", "accesses that serve one request; 0: no requests");
const OPERATIONS: Key = key("request", "0", "operations that serve one request; 0: no requests");
const TOUCH: Key = key("touch", "no", "yes: first store once to every base page, in order");

/// Every kind, with its parameters.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "sequential",
        explanation: "walks up through the memory and begins again at its start; \
                      size=475GB,stride=4KiB,passes=1 touches every base page once",
        keys: &[
            SIZE,
            ACCESSES,
            PASSES,
            key("stride", "8", "bytes from one access to the next"),
            STORES,
            SEED,
            BYTES,
            THREADS,
            IPA,
            TOUCH,
            REQUEST,
        ],
    },
    Kind {
        name: "strided",
        explanation: "walks in large steps, each pass one access further on, as down the columns \
                      of a matrix",
        keys: &[
            SIZE,
            ACCESSES,
            PASSES,
            key("stride", "4KiB", "bytes from one access to the next: a row of the matrix"),
            STORES,
            SEED,
            BYTES,
            THREADS,
            IPA,
            TOUCH,
            REQUEST,
        ],
    },
    Kind {
        name: "random",
        explanation: "accesses uniformly random places",
        keys: &[SIZE, ACCESSES, STORES, SEED, BYTES, THREADS, IPA, TOUCH, REQUEST],
    },
    Kind {
        name: "zipf",
        explanation: "accesses items whose popularity follows Zipf's law, as in a key-value store",
        keys: &[
            SIZE,
            ACCESSES,
            key("theta", "0.99", "exponent, 0 (uniform) to 8; 0.99 is YCSB's"),
            key("grain", "64", "bytes in an item"),
            key("scatter", "yes", "no: the most popular items stand first, side by side"),
            STORES,
            SEED,
            BYTES,
            THREADS,
            IPA,
            TOUCH,
            REQUEST,
        ],
    },
    Kind {
        name: "chase",
        explanation: "follows pointers through all nodes in one random cycle",
        keys: &[
            SIZE,
            ACCESSES,
            PASSES,
            key("node", "64", "bytes in a node"),
            LOADS_ONLY,
            SEED,
            BYTES,
            THREADS,
            IPA,
            TOUCH,
            REQUEST,
        ],
    },
    Kind {
        name: "gups",
        explanation: "loads and stores back random words, as HPCC RandomAccess",
        keys: &[SIZE, ACCESSES, SEED, BYTES, THREADS, IPA, TOUCH, REQUEST],
    },
    Kind {
        name: "heap",
        explanation: "a heap that grows to its size: half of the accesses fill what is new, half \
                      go to random places so far",
        keys: &[
            SIZE,
            ACCESSES,
            key("step", "128KiB", "bytes it grows at a time"),
            key("grow", "brk", "brk, or mremap: one array that doubles and moves"),
            STORES,
            SEED,
            BYTES,
            THREADS,
            IPA,
            REQUEST,
        ],
    },
    Kind {
        name: "churn",
        explanation: "keeps objects of random size alive, freeing one at random to make a new \
                      one; each is written once and then worked on among the others",
        keys: &[
            SIZE,
            ACCESSES,
            key("min", "16KiB", "bytes of the smallest object"),
            key("max", "8MiB", "bytes of the largest; sizes are log-uniform between"),
            key("work", "8", "accesses to random live objects for each new base page"),
            key("release", "unmap", "how memory is given back: unmap or dontneed"),
            STORES,
            SEED,
            BYTES,
            THREADS,
            IPA,
        ],
    },
    Kind {
        name: "btree",
        explanation: "looks up and changes items of a key-value store, a tree of nodes of four \
                      cache lines, as Masstree; an operation is one item",
        keys: &[
            SIZE,
            ACCESSES,
            key("gets", "0.5", "fraction of operations that only load"),
            key("value", "64", "bytes of an item's value, a multiple of 16"),
            key("theta", "0", "exponent of Zipf's law for the items, 0 (uniform) to 8"),
            SEED,
            THREADS,
            IPA,
            TOUCH,
            OPERATIONS,
        ],
    },
    Kind {
        name: "canneal",
        explanation: "simulated annealing of a netlist, as PARSEC's canneal: swaps random elements \
                      where that shortens wires; an operation is one swap looked at",
        keys: &[
            SIZE,
            ACCESSES,
            key("temperature", "2000", "of the annealing, in grid steps, divided by 1.5 each time"),
            key("swaps", "15k", "swaps looked at by all threads at each temperature"),
            SEED,
            THREADS,
            IPA,
            TOUCH,
            OPERATIONS,
        ],
    },
    Kind {
        name: "streamcluster",
        explanation: "k-median of points, as PARSEC's streamcluster: all points are compared with \
                      a candidate for a centre; an operation is one candidate",
        keys: &[
            SIZE,
            ACCESSES,
            key("dimensions", "128", "numbers of 4 bytes in a point, a multiple of 4"),
            key(
                "centres",
                "20",
                "centres there are; 1/centres of the points would change to another",
            ),
            key("open", "0.1", "fraction of candidates that become centres"),
            SEED,
            THREADS,
            IPA,
            TOUCH,
            OPERATIONS,
        ],
    },
    Kind {
        name: "dedup",
        explanation: "cuts a buffer into chunks, hashes them and compresses what is new, as \
                      PARSEC's dedup; an operation is one chunk",
        keys: &[
            SIZE,
            ACCESSES,
            key("chunk", "4KiB", "bytes of a chunk on average; sizes are exponential"),
            key("duplicates", "0.3", "fraction of chunks that were there before"),
            SEED,
            THREADS,
            IPA,
            TOUCH,
            OPERATIONS,
        ],
    },
];

/// A kind with its parameters, all known by name, not yet by value.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What was asked for.
    pub text: String,
    /// The kind.
    pub kind: &'static Kind,
    given: Vec<(&'static str, String)>,
}

impl Spec {
    /// Reads `kind` or `kind:key=value,key=value`.
    ///
    /// # Errors
    /// One line, for an unknown kind or key, a key without value, or one given twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, list) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            format!("unknown workload '{name}'{}", suggest(name, &names))
        })?;
        let mut given: Vec<(&'static str, String)> = Vec::new();
        for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (wanted, value) = part.split_once('=').ok_or_else(|| {
                format!("'{part}' in workload '{text}' has no value; write key=value")
            })?;
            let (wanted, value) = (wanted.trim(), value.trim());
            let key = kind.keys.iter().find(|key| key.name == wanted).ok_or_else(|| {
                let names: Vec<_> = kind.keys.iter().map(|key| key.name).collect();
                format!("workload '{name}' has no key '{wanted}'{}", suggest(wanted, &names))
            })?;
            if given.iter().any(|(other, _)| *other == key.name) {
                return Err(format!("key '{wanted}' is given twice in workload '{text}'"));
            }
            given.push((key.name, value.to_owned()));
        }
        Ok(Self { text: text.to_owned(), kind, given })
    }

    /// Whether the user gave this key.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.iter().any(|(name, _)| *name == key)
    }

    /// The value of a key, or its default.
    ///
    /// # Panics
    /// When the kind has no such key.
    pub fn text(&self, key: &str) -> &str {
        let given = self.given.iter().find(|(name, _)| *name == key);
        given.map_or_else(
            || self.kind.keys.iter().find(|known| known.name == key).expect("a known key").default,
            |(_, value)| value,
        )
    }

    /// A size in bytes, at least `least` and at most `most`.
    ///
    /// # Errors
    /// One line, naming the key.
    pub fn size(&self, key: &str, least: u64, most: u64) -> Result<u64, String> {
        self.number(key, strata_text::parse_size(self.text(key)), least, most)
    }

    /// A count, at least `least` and at most `most`.
    ///
    /// # Errors
    /// One line, naming the key.
    pub fn count(&self, key: &str, least: u64, most: u64) -> Result<u64, String> {
        self.number(key, strata_text::parse_count(self.text(key)), least, most)
    }

    fn number(
        &self,
        key: &str,
        value: Result<u64, String>,
        least: u64,
        most: u64,
    ) -> Result<u64, String> {
        match value {
            Ok(value) if (least..=most).contains(&value) => Ok(value),
            Ok(value) => Err(self.wrong(key, &format!("{value} is not within {least} to {most}"))),
            Err(why) => Err(self.wrong(key, &why)),
        }
    }

    /// A real number from `least` to `most`.
    ///
    /// # Errors
    /// One line, naming the key.
    pub fn real(&self, key: &str, least: f64, most: f64) -> Result<f64, String> {
        let text = self.text(key);
        match text.parse() {
            Ok(value) if (least..=most).contains(&value) => Ok(value),
            _ => Err(self.wrong(key, &format!("'{text}' is no number from {least} to {most}"))),
        }
    }

    /// One of several words; gives its position.
    ///
    /// # Errors
    /// One line, naming the key and the nearest word.
    pub fn choice(&self, key: &str, words: &[&str]) -> Result<usize, String> {
        let text = self.text(key);
        let position = words.iter().position(|word| *word == text);
        position
            .ok_or_else(|| self.wrong(key, &format!("unknown '{text}'{}", suggest(text, words))))
    }

    /// Yes or no.
    ///
    /// # Errors
    /// One line, naming the key.
    pub fn flag(&self, key: &str) -> Result<bool, String> {
        Ok(self.choice(key, &["no", "yes"])? == 1)
    }

    /// The message for a bad value.
    pub fn wrong(&self, key: &str, why: &str) -> String {
        format!("key '{key}' of workload '{}': {why}", self.kind.name)
    }
}

//! `--sample`: which parts of a stream are run in detail.

use crate::failure::unknown;
use std::fmt;
use std::str::FromStr;
use strata_stream::Sampling;
use strata_text::number::count;

/// What `auto` traces whole before anything is left out, in instructions: less is quicker traced whole.
const WHOLE: u64 = 20_000_000;

/// The first intervals of `auto`, in instructions. Each has a window of [`WINDOW`] after [`WARM`].
const INTERVAL: u64 = 10_000_000;

/// What counts of an interval under `auto`, in instructions.
const WINDOW: u64 = 100_000;

/// What warms up a window under `auto`, in instructions.
const WARM: u64 = 300_000;

/// Intervals of one length under `auto`; then they become twice as long.
const DOUBLING: u32 = 100;

/// How the note of a sampled recording begins.
pub const NOTE: &str = "sampled: ";

/// What is said of a stream of which nothing was left out.
pub const NOT_SAMPLED: &str =
    "too short to be sampled, so all of it was run: nothing here is estimated from windows";

/// The keys of `--sample`.
const KEYS: [&str; 4] = ["interval", "window", "warm", "whole"];

/// How a stream is to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// As the program needs it.
    Auto,
    /// With these lengths, in instructions.
    Given {
        /// From one window to the next, on average.
        interval: u64,
        /// What counts.
        window: u64,
        /// What comes before it.
        warm: u64,
        /// What is traced whole at the beginning.
        whole: u64,
    },
}

impl Sample {
    /// The parts of the stream, at places that `seed` decides.
    pub fn sampling(self, seed: u64) -> Sampling {
        match self {
            Self::Auto => Sampling {
                interval: INTERVAL,
                window: WINDOW,
                warm: WARM,
                whole: WHOLE,
                doubling: DOUBLING,
                seed,
            },
            Self::Given { interval, window, warm, whole } => {
                Sampling { interval, window, warm, whole, doubling: 0, seed }
            }
        }
    }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let mut values = [None; KEYS.len()];
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!(
                    "'{part}' is no length; give auto, or interval=N,window=N,warm=N"
                ));
            };
            let Some(index) = KEYS.iter().position(|known| *known == key) else {
                return Err(unknown(
                    "key",
                    key,
                    KEYS,
                    "there are interval, window, warm and whole",
                ));
            };
            if values[index].is_some() {
                return Err(format!("{key} is given twice; give it once"));
            }
            values[index] = Some(strata_text::parse_count(value)?);
        }
        let [interval, window, warm, whole] = values;
        let (Some(interval), Some(window)) = (interval, window) else {
            return Err(
                "an interval and a window are needed, as in interval=10M,window=100k".into()
            );
        };
        let warm = warm.unwrap_or(0);
        if window == 0 {
            return Err("a window of no instructions counts nothing; make it longer".into());
        }
        if warm.saturating_add(window) > interval {
            return Err(format!(
                "a window of {} after {} to warm up is longer than the interval of {}; make the \
                 interval longer",
                count(window),
                count(warm),
                count(interval)
            ));
        }
        Ok(Self::Given { interval, window, warm, whole: whole.unwrap_or(0) })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Given { interval, window, warm, whole } => {
                write!(f, "interval={interval},window={window},warm={warm}")?;
                if *whole > 0 {
                    write!(f, ",whole={whole}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_they_are_printed() {
        for text in ["auto", "interval=1000,window=10,warm=0", "interval=9,window=4,warm=5,whole=7"]
        {
            assert_eq!(text.parse::<Sample>().unwrap().to_string(), text);
        }
        let short: Sample = "interval=10M,window=100k".parse().unwrap();
        assert_eq!(short.to_string(), "interval=10000000,window=100000,warm=0");
    }

    #[test]
    fn what_makes_no_sense_is_told_with_a_remedy() {
        let cases = [
            ("interval=1k,window=900,warm=101", "make the interval longer"),
            ("interval=1k", "an interval and a window are needed"),
            ("interval=1k,window=0", "make it longer"),
            ("interval=1k,windw=1", "did you mean 'window'?"),
            ("interval=1k,window=1,window=2", "give it once"),
            ("often", "give auto, or"),
        ];
        for (text, expected) in cases {
            let message = text.parse::<Sample>().unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}

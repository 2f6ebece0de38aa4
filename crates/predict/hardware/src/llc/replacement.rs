//! Which line of a set makes room: the policies that can be asked for, by name.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which line of a set makes room for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Replacement {
    /// The least recently used: `lru`.
    #[default]
    Lru,
    /// The one that a tree of bits leads to, each of which points away from the half used last. A
    /// number of ways that is no power of two has the tree of the next one, with leaves missing:
    /// `tree-plru`.
    TreePlru,
    /// A bit for each way is cleared when it is used, and when none is set those of all others are; the
    /// first way with a bit set makes room: `mru`, also called bit-PLRU. Nehalem's last
    /// level (nanoBench, ISPASS 2020, and its simulator).
    Mru,
    /// Ages of two bits, in nanoBench's notation, such as `QLRU_H11_M1_R0_U0`.
    Qlru(Qlru),
}

/// Quad-age LRU: each line has an age from 0 to 3, and one of age 3 makes room. Four rules say how ages
/// change, as the names of Abel and Reineke do (nanoBench, ISPASS 2020, section VI). A name has more
/// variants than any processor: not all have been seen in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qlru {
    /// The age after a hit of a line that had age 0, 1, 2, 3: `Hxy`.
    pub hit: [u8; 4],
    /// The age of a line that is put in: `Mx`, or `MRpx`.
    pub miss: QlruMiss,
    /// Which way is filled: `R`.
    pub place: QlruPlace,
    /// How ages rise when none is 3: `U`.
    pub update: QlruUpdate,
    /// Ages rise before a line is put in, and not after each access: `UMO`.
    pub on_miss_only: bool,
}

/// The age of a line that is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QlruMiss {
    /// Always this one.
    Age(u8),
    /// This `age` once in `once_in` times, drawn, and else 3.
    Drawn {
        /// Once in so many times.
        once_in: u8,
        /// The age.
        age: u8,
    },
}

/// Which way is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QlruPlace {
    /// `R0`: the first that is empty, else the first of age 3.
    First,
    /// `R1`: the same, and where none has age 3, the first.
    FirstOrWay0,
    /// `R2`: the last that is empty, else the first of age 3.
    EmptyFromTheEnd,
}

/// How ages rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QlruUpdate {
    /// `U0`: all by as much as the oldest lacks of 3.
    All,
    /// `U1`: all but the line that was used, by as much as the oldest of these lacks.
    Others,
    /// `U2`: all by 1, where none is 3.
    AllByOne,
    /// `U3`: all but the line that was used by 1, where none is 3.
    OthersByOne,
}

/// No policy has this name; one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no replacement policy: there are lru, tree-plru, mru and the QLRU variants in nanoBench's \
     notation, such as QLRU_H11_M1_R0_U0"
)]
pub struct UnknownReplacement(String);

/// Names of the rules for hits, and the ages after one.
const HITS: [(&str, [u8; 4]); 5] = [
    ("H00", [0, 0, 0, 0]),
    ("H10", [0, 0, 0, 1]),
    ("H11", [0, 0, 1, 1]),
    ("H20", [0, 0, 0, 2]),
    ("H21", [0, 0, 1, 2]),
];

const PLACES: [(&str, QlruPlace); 3] =
    [("R0", QlruPlace::First), ("R1", QlruPlace::FirstOrWay0), ("R2", QlruPlace::EmptyFromTheEnd)];

const UPDATES: [(&str, QlruUpdate); 4] = [
    ("U0", QlruUpdate::All),
    ("U1", QlruUpdate::Others),
    ("U2", QlruUpdate::AllByOne),
    ("U3", QlruUpdate::OthersByOne),
];

fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Option<T> {
    all.iter().find(|(other, _)| *other == name).map(|(_, rule)| *rule)
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], rule: &T) -> &'static str {
    all.iter().find(|(_, other)| other == rule).map_or("?", |(name, _)| name)
}

impl Qlru {
    /// From its name in upper case. Under `R0` and `R2` one line must always have age 3, which `U2` and
    /// `U3` do not see to.
    fn named(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("QLRU_")?.split('_');
        let hit = named(&HITS, parts.next()?)?;
        let miss = QlruMiss::named(parts.next()?)?;
        let place = named(&PLACES, parts.next()?)?;
        let update = named(&UPDATES, parts.next()?)?;
        let on_miss_only = match parts.next() {
            None => false,
            Some("UMO") => true,
            Some(_) => return None,
        };
        let steps = matches!(update, QlruUpdate::AllByOne | QlruUpdate::OthersByOne);
        let is_whole = parts.next().is_none() && !(steps && place != QlruPlace::FirstOrWay0);
        is_whole.then_some(Self { hit, miss, place, update, on_miss_only })
    }
}

impl QlruMiss {
    fn named(name: &str) -> Option<Self> {
        let (before, age) = name.split_at_checked(name.len().checked_sub(1)?)?;
        let age = age.parse().ok().filter(|age| *age <= 3)?;
        if before == "M" {
            return Some(Self::Age(age));
        }
        let once_in: u8 = before.strip_prefix("MR")?.parse().ok()?;
        (once_in >= 2 && age < 3).then_some(Self::Drawn { once_in, age })
    }
}

impl fmt::Display for Qlru {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QLRU_{}_", name_of(&HITS, &self.hit))?;
        match self.miss {
            QlruMiss::Age(age) => write!(f, "M{age}")?,
            QlruMiss::Drawn { once_in, age } => write!(f, "MR{once_in}{age}")?,
        }
        write!(f, "_{}_{}", name_of(&PLACES, &self.place), name_of(&UPDATES, &self.update))?;
        if self.on_miss_only { f.write_str("_UMO") } else { Ok(()) }
    }
}

impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lru => f.write_str("lru"),
            Self::TreePlru => f.write_str("tree-plru"),
            Self::Mru => f.write_str("mru"),
            Self::Qlru(qlru) => qlru.fmt(f),
        }
    }
}

impl FromStr for Replacement {
    type Err = UnknownReplacement;

    fn from_str(text: &str) -> Result<Self, UnknownReplacement> {
        match text {
            "lru" => Ok(Self::Lru),
            "tree-plru" => Ok(Self::TreePlru),
            "mru" => Ok(Self::Mru),
            _ => {
                let qlru = Qlru::named(&text.to_ascii_uppercase());
                qlru.map(Self::Qlru).ok_or_else(|| UnknownReplacement(text.to_owned()))
            }
        }
    }
}

impl From<Replacement> for String {
    fn from(replacement: Replacement) -> Self {
        replacement.to_string()
    }
}

impl TryFrom<String> for Replacement {
    type Error = UnknownReplacement;

    fn try_from(text: String) -> Result<Self, UnknownReplacement> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_nanobenchs_and_say_all() {
        for name in ["lru", "tree-plru", "mru", "QLRU_H11_M1_R0_U0", "QLRU_H00_M1_R2_U1"]
            .into_iter()
            .chain(["QLRU_H11_M1_R1_U2", "QLRU_H11_MR161_R1_U2", "QLRU_H21_M2_R0_U0_UMO"])
        {
            let replacement: Replacement = name.parse().unwrap();
            assert_eq!(replacement.to_string(), name);
            // Model files have the same names.
            let written = toml::Value::try_from(replacement).unwrap();
            assert_eq!(written, toml::Value::from(name));
            assert_eq!(written.try_into(), Ok(replacement));
        }
        let drawn: Replacement = "qlru_h11_mr161_r0_u0".parse().unwrap();
        let Replacement::Qlru(Qlru { hit, miss, .. }) = drawn else { panic!("{drawn}") };
        assert_eq!(hit, [0, 0, 1, 1]);
        assert_eq!(miss, QlruMiss::Drawn { once_in: 16, age: 1 });
        for wrong in
            ["", "LRU", "QLRU_", "QLRU_H12_M1_R0_U0", "QLRU_H11_M4_R0_U0", "QLRU_H11_M1_R0"]
                .into_iter()
                .chain(["QLRU_H11_M1_R0_U2", "QLRU_H11_M1_R0_U0_UMO_", "QLRU_H11_MR11_R0_U0"])
        {
            let message = wrong.parse::<Replacement>().unwrap_err().to_string();
            assert!(message.contains("such as QLRU_H11_M1_R0_U0"), "{message}");
            let read = toml::Value::from(wrong).try_into::<Replacement>().unwrap_err();
            assert!(read.to_string().contains(&message), "{read}");
        }
    }
}

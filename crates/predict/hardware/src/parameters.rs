//! Every constant of a CPU model by its dotted name: to list, to explain, to change.

use crate::{CpuModel, ModelError};
use strata_text::{closest, parse_size};
use toml::Value;

/// One constant of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Dotted name, as [`CpuModel::set`] takes it.
    pub name: String,
    /// Value, printed as in TOML.
    pub value: String,
    /// Unit; empty for plain numbers and switches.
    pub unit: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Where the value comes from.
    pub source: String,
    /// Whether a source confirms the value.
    pub confirmed: bool,
}

/// Ending of a name, unit, explanation. The first ending that matches counts.
const EXPLANATIONS: [(&str, &str, &str); 33] = [
    ("core.cores", "cores", "cores that share the last-level cache"),
    ("core.frequency_mhz", "MHz", "core clock"),
    ("core.base_cpi", "cycles/instruction", "cycles per instruction when nothing stalls"),
    ("core.data_overlap", "0..1", "share of data access latency hidden by other work"),
    ("core.walk_overlap", "0..1", "share of page walk latency hidden by other work"),
    (
        "tlb.l2_hit_cycles",
        "cycles",
        "lookup in the second-level TLB, lost by every translation the first level lacks",
    ),
    ("tlb.smash_giant", "", "second-level TLB holds 1 GiB translations in pieces of 2 MiB"),
    ("nested_pml5_entries", "entries", "nested walk cache, entries read at level 5"),
    ("nested_pml4_entries", "entries", "nested walk cache, entries read at level 4"),
    ("nested_pdpt_entries", "entries", "nested walk cache, entries read at level 3"),
    ("nested_pd_entries", "entries", "nested walk cache, entries read at level 2"),
    ("pml5_entries", "entries", "guest walk cache, entries read at level 5"),
    ("pml4_entries", "entries", "guest walk cache, entries read at level 4"),
    ("pdpt_entries", "entries", "guest walk cache, entries read at level 3"),
    ("pd_entries", "entries", "guest walk cache, entries read at level 2"),
    ("ntlb_entries", "entries", "nested TLB: guest physical page to host page"),
    ("pwc_cycles", "cycles", "hit in a walk cache"),
    ("ntlb_cycles", "cycles", "hit in the nested TLB"),
    ("walk.combined", "", "guest walk caches hold host physical addresses of tables"),
    ("walk.through_l1d", "", "the walker reads through the first-level data cache"),
    ("walk.second_stage_flags", "", "second stage has accessed and dirty flags"),
    ("memory_cycles", "cycles", "reference that no cache has"),
    ("l1d.cycles", "cycles", "hit in the first-level data cache"),
    ("l2.cycles", "cycles", "hit in the second-level cache"),
    ("llc.cycles", "cycles", "hit in the last-level cache"),
    (".bytes", "bytes", "size of the cache; 0 for none"),
    (".ways", "ways", "associativity"),
    (
        "virtualization.instructions",
        "",
        "instructions of a hypervisor: `vmx`, Intel's, or `svm`, AMD's",
    ),
    (
        "vmcs_shadowing",
        "",
        "VMREAD and VMWRITE of a hypervisor in a VM need no exit for many fields",
    ),
    ("virtualization.vls", "", "VMLOAD and VMSAVE of a hypervisor in a VM need no exit"),
    ("virtualization.vgif", "", "STGI and CLGI of a hypervisor in a VM need no exit"),
    ("tlb.l1.", "entries", "first-level data TLB array for the page sizes in its name"),
    ("tlb.l2.", "entries", "second-level TLB array for the page sizes in its name"),
];

fn explain(name: &str) -> (&'static str, &'static str) {
    let matches = |key: &str| match key.ends_with('.') {
        true => name.starts_with(key),
        false => name.ends_with(key),
    };
    let found = EXPLANATIONS.iter().find(|(key, ..)| matches(key));
    found.map_or(("", ""), |(_, unit, about)| (unit, about))
}

/// Tables of a model that hold constants; the rest describes the model.
const TABLES: [&str; 5] = ["core", "tlb", "walk", "cache", "virtualization"];

fn collect(prefix: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                collect(&format!("{prefix}.{key}"), value, into);
            }
        }
        leaf => into.push((prefix.to_owned(), leaf.clone())),
    }
}

impl CpuModel {
    fn as_value(&self) -> Value {
        Value::try_from(self).expect("a model consists of tables, numbers and text")
    }

    fn leaves(&self) -> Vec<(String, Value)> {
        let value = self.as_value();
        let mut leaves = Vec::new();
        for table in TABLES {
            collect(table, &value[table], &mut leaves);
        }
        leaves
    }

    /// Every constant of the model.
    pub fn constants(&self) -> impl Iterator<Item = Constant> + '_ {
        self.leaves().into_iter().map(|(name, value)| {
            let (unit, about) = explain(&name);
            let source = self
                .sources
                .iter()
                .filter(|(prefix, _)| name.starts_with(prefix.as_str()))
                .max_by_key(|(prefix, _)| prefix.len());
            Constant {
                value: print(&value),
                unit,
                about,
                source: source.map_or_else(String::new, |(_, source)| source.clone()),
                confirmed: !self.unconfirmed.iter().any(|prefix| name.starts_with(prefix.as_str())),
                name,
            }
        })
    }

    /// Changes the constant of this dotted name. Sizes may end in `KiB`, `MiB` or `GiB`.
    ///
    /// # Errors
    /// As [`CpuModel::set_all`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ModelError> {
        self.set_all([(name, value)])
    }

    /// Changes constants by their dotted names, in order. The model is judged when all have their
    /// values: some, such as the entries and ways of a TLB array, are possible only together.
    ///
    /// # Errors
    /// [`ModelError`] when there is no such constant, a value is not of its kind, or the model
    /// would be impossible; the model is unchanged then.
    pub fn set_all<'a>(
        &mut self,
        assignments: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), ModelError> {
        let names = self.leaves();
        let names = || names.iter().map(|(name, _)| name.as_str());
        let mut model = self.as_value();
        for (name, value) in assignments {
            if !names().any(|known| known == name) {
                return Err(ModelError::UnknownConstant {
                    name: name.to_owned(),
                    nearest: closest(name, names()).unwrap_or_default().to_owned(),
                });
            }
            assign(&mut model, name, value)?;
        }
        let model: Self = model.try_into().expect("every value was read back when it was set");
        model.check()?;
        *self = model;
        Ok(())
    }
}

/// As [`parse_as`] reads it.
fn print(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Puts a value in the place of another of its kind.
fn assign(model: &mut Value, name: &str, value: &str) -> Result<(), ModelError> {
    let leaf = name.split('.').try_fold(&mut *model, |at, key| at.get_mut(key));
    let leaf = leaf.expect("a known name leads to a leaf");
    *leaf = parse_as(leaf, value).ok_or_else(|| ModelError::WrongKind {
        name: name.to_owned(),
        value: value.to_owned(),
        kind: match leaf {
            Value::Boolean(_) => "true or false",
            Value::Float(_) => "a number",
            _ => "a whole number",
        },
    })?;
    // Whole numbers have ranges of their own, which the types know.
    let read: Result<CpuModel, toml::de::Error> = model.clone().try_into();
    read.map(drop).map_err(|error| ModelError::Impossible {
        name: name.to_owned(),
        cause: error.message().to_owned(),
    })
}

fn parse_as(old: &Value, text: &str) -> Option<Value> {
    match old {
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Float(_) => text.parse().ok().map(Value::Float),
        Value::String(_) => Some(Value::String(text.to_owned())),
        _ => whole(text).map(Value::Integer),
    }
}

/// A whole number, which may be a size with a unit.
fn whole(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| i64::try_from(parse_size(text).ok()?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> CpuModel {
        CpuModel::preset(CpuModel::DEFAULT).unwrap()
    }

    #[test]
    fn every_constant_of_every_preset_is_explained_and_can_be_set() {
        for preset in CpuModel::presets() {
            let mut model = CpuModel::preset(preset.name).unwrap();
            let before = model.clone();
            for constant in before.constants() {
                assert!(!constant.about.is_empty(), "{} is not explained", constant.name);
                assert!(!constant.source.is_empty(), "{} has no source", constant.name);
                model.set(&constant.name, &constant.value).unwrap();
            }
            assert_eq!(model, before);
        }
    }

    #[test]
    fn a_constant_that_is_set_reads_back() {
        let mut model = model();
        model.set("cache.llc.bytes", "40MiB").unwrap();
        model.set("core.base_cpi", "1").unwrap();
        model.set("walk.combined", "false").unwrap();
        assert_eq!(model.cache.llc.bytes, 40 << 20);
        assert_eq!(model.core.base_cpi, 1.0);
        assert!(!model.walk.combined);
    }

    #[test]
    fn values_that_are_possible_only_together_are_set_in_any_order() {
        let (entries, ways) = (("tlb.l2.4k-2m.entries", "2048"), ("tlb.l2.4k-2m.ways", "8"));
        let mut forwards = model();
        forwards.set_all([entries, ways]).unwrap();
        let mut backwards = model();
        backwards.set_all([ways, entries]).unwrap();
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.tlb.l2.0["4k-2m"], crate::TlbArray { entries: 2048, ways: 8 });
        // A later value replaces one that would not have been possible.
        forwards.set_all([("core.base_cpi", "-1"), ("core.base_cpi", "2")]).unwrap();
        assert_eq!(forwards.core.base_cpi, 2.0);
    }

    #[test]
    fn what_is_impossible_together_is_named_together() {
        let mut model = model();
        let before = model.clone();
        let mut message = |all: [(&str, &str); 2]| model.set_all(all).unwrap_err().to_string();
        assert_eq!(
            message([("tlb.l2.4k-2m.entries", "2048"), ("tlb.l2.4k-2m.ways", "12")]),
            "tlb.l2.4k-2m.entries and tlb.l2.4k-2m.ways: 2048 entries in 12 ways: entries / ways \
             must be a power of two"
        );
        let cache = message([("cache.llc.bytes", "1000"), ("core.base_cpi", "1")]);
        assert!(cache.starts_with("cache.llc.bytes and cache.llc.ways: 1000 bytes in"), "{cache}");
        assert_eq!(model, before);
    }

    #[test]
    fn mistakes_name_cause_and_remedy_and_change_nothing() {
        let mut model = model();
        let before = model.clone();
        let mut message = |name, value| model.set(name, value).unwrap_err().to_string();
        assert_eq!(
            message("cache.llc.way", "4"),
            "no constant is named cache.llc.way; did you mean cache.llc.ways?"
        );
        assert_eq!(
            message("walk.pd_entries", "many"),
            "walk.pd_entries takes a whole number, not many"
        );
        assert_eq!(message("walk.combined", "1"), "walk.combined takes true or false, not 1");
        assert!(message("core.data_overlap", "1.5").contains("must be from 0 to 1"));
        assert!(message("tlb.l2.4k-2m.entries", "1000").contains("power of two"));
        assert!(message("walk.pd_entries", "-1").contains("walk.pd_entries"));
        assert_eq!(model, before);
    }
}

//! Every constant of a CPU model by its dotted name: to list, to explain, to change.

use crate::CpuModel;
use strata_params::{Parameter, ParameterError, Parameters, Value as _};
use toml::Value;

/// Ending of a name, unit, explanation. The first ending that matches counts.
const EXPLANATIONS: [(&str, &str, &str); 39] = [
    ("core.cores", "cores", "cores that share the last-level cache"),
    ("core.frequency_mhz", "MHz", "core clock"),
    ("core.base_cpi", "cycles/instruction", "cycles per instruction when nothing stalls"),
    ("core.data_overlap", "share", "share of data access latency hidden by other work"),
    ("core.walk_overlap", "share", "share of page walk latency hidden by other work"),
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
    ("l4.cycles", "cycles", "hit in the cache at the memory"),
    (
        "llc_design.slices",
        "slices",
        "slices of the last-level cache; `--llc cpu` models them, if there is a hash",
    ),
    (
        "llc_design.hash",
        "",
        "how lines are spread over slices: `none`, `intel`, `skylake`, or `even`, a stand-in; with `--llc cpu`",
    ),
    (
        "llc_design.replacement",
        "",
        "line of the last-level cache that makes room: `lru`, `tree-plru`, `mru` or quad-age LRU in nanoBench's \
         notation, such as `QLRU_H11_M1_R0_U0`; with `--llc cpu`",
    ),
    (
        "llc_design.inclusive",
        "",
        "what drops out of the last-level cache leaves the private ones; with `--llc cpu`",
    ),
    (
        "llc_design.fill",
        "",
        "which lines are put into the last-level cache: `misses`, those that miss it, or `victims`, those that \
         the second level drops, and one that is read leaves it; with `--llc cpu`",
    ),
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

    /// Changes constants by their dotted names, in order. The model is judged when all have their
    /// values: some, such as the entries and ways of a TLB array, are possible only together.
    ///
    /// # Errors
    /// As [`Parameters::set`]; the model is unchanged then.
    pub fn set_all<'a>(
        &mut self,
        assignments: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), ParameterError> {
        let names = self.leaves();
        let mut model = self.as_value();
        for (name, value) in assignments {
            if !names.iter().any(|(known, _)| known == name) {
                return Err(ParameterError::Unknown(name.to_owned()));
            }
            assign(&mut model, name, value)?;
        }
        let model: Self = model.try_into().expect("every value was read back when it was set");
        model.check()?;
        *self = model;
        Ok(())
    }
}

impl Parameters for CpuModel {
    fn parameters(&self) -> Vec<Parameter> {
        let starts = |prefix: &str, name: &str| name.starts_with(prefix);
        let parameter = |(name, value): (String, Value)| {
            let (unit, about) = explain(&name);
            let sources = self.sources.iter().filter(|(prefix, _)| starts(prefix, &name));
            let source = sources.max_by_key(|(prefix, _)| prefix.len());
            let source = source.map_or("", |(_, source)| source);
            Parameter {
                value: print(&value),
                unit,
                doc: format!("{about}; {source}").into(),
                confirmed: !self.unconfirmed.iter().any(|prefix| starts(prefix, &name)),
                name: name.into(),
            }
        };
        self.leaves().into_iter().map(parameter).collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        self.set_all([(name, value)])
    }
}

/// As [`parse_as`] reads it.
fn print(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Puts a value in the place of another of its kind.
fn assign(model: &mut Value, name: &str, value: &str) -> Result<(), ParameterError> {
    let leaf = name.split('.').try_fold(&mut *model, |at, key| at.get_mut(key));
    let leaf = leaf.expect("a known name leads to a leaf");
    *leaf = parse_as(leaf, name, value)?;
    // Whole numbers have ranges of their own, and text its choices, which the types know.
    let read: Result<CpuModel, toml::de::Error> = model.clone().try_into();
    read.map(drop).map_err(|error| ParameterError::Impossible {
        name: name.to_owned(),
        cause: error.message().to_owned(),
    })
}

fn parse_as(old: &Value, name: &str, text: &str) -> Result<Value, ParameterError> {
    let unit = explain(name).0;
    Ok(match old {
        Value::Boolean(_) => Value::Boolean(bool::parse(name, text, unit)?),
        Value::Float(_) => Value::Float(f64::parse(name, text, unit)?),
        Value::String(_) => Value::String(text.to_owned()),
        _ => Value::Integer(i64::parse(name, text, unit)?),
    })
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
            for constant in before.parameters() {
                let (about, source) = constant.doc.split_once("; ").unwrap();
                assert!(!about.is_empty(), "{} is not explained", constant.name);
                assert!(!source.is_empty(), "{} has no source", constant.name);
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
        forwards.set_all([("core.base_cpi", "2000"), ("core.base_cpi", "2")]).unwrap();
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
        assert_eq!(message("cache.llc.way", "4"), "no parameter is called 'cache.llc.way'");
        assert_eq!(
            message("walk.pd_entries", "many"),
            "walk.pd_entries=many: expected a whole number"
        );
        assert_eq!(message("walk.combined", "1"), "walk.combined=1: expected true or false");
        assert!(message("core.data_overlap", "1.5").contains("a share from 0 to 1"));
        assert!(message("core.base_cpi", "1001").contains("must be from 0 to 1000"));
        assert!(message("tlb.l2.4k-2m.entries", "1000").contains("power of two"));
        assert!(message("walk.pd_entries", "-1").contains("walk.pd_entries"));
        assert_eq!(model, before);
    }
}

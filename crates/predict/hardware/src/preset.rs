//! The CPUs that come with the program.

use crate::{CpuModel, ModelError};
use strata_text::closest;

const FILES: [(&str, &str); 7] = [
    ("broadwell-e5-2620v4", include_str!("../presets/broadwell-e5-2620v4.toml")),
    ("haswell-ep", include_str!("../presets/haswell-ep.toml")),
    ("skylake-gold-6138", include_str!("../presets/skylake-gold-6138.toml")),
    ("zen2", include_str!("../presets/zen2.toml")),
    ("zen3", include_str!("../presets/zen3.toml")),
    ("i7-920", include_str!("../presets/i7-920.toml")),
    ("phenom-9550", include_str!("../presets/phenom-9550.toml")),
];

/// A preset, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name.
    pub name: &'static str,
    /// One line: which CPU, and which paper measured on it.
    pub about: String,
    /// Prefixes of the names of constants that no source confirms.
    pub unconfirmed: Vec<String>,
    /// The data file, a starting point for a model of one's own.
    pub toml: &'static str,
}

impl CpuModel {
    /// The preset used when none is named.
    pub const DEFAULT: &'static str = FILES[0].0;

    /// The preset of this name.
    ///
    /// # Errors
    /// [`ModelError::UnknownPreset`], with the most similar name.
    pub fn preset(name: &str) -> Result<Self, ModelError> {
        match FILES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::from_toml(text),
            None => Err(ModelError::UnknownPreset {
                name: name.to_owned(),
                nearest: closest(name, FILES.map(|(known, _)| known))
                    .unwrap_or_default()
                    .to_owned(),
            }),
        }
    }

    /// Every preset, the default first.
    pub fn presets() -> Vec<Preset> {
        let preset = |(name, toml): (&'static str, &'static str)| {
            let model = Self::from_toml(toml).expect("presets are valid, as a test shows");
            Preset { name, about: model.about, unconfirmed: model.unconfirmed, toml }
        };
        FILES.into_iter().map(preset).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_params::Parameters;

    #[test]
    fn presets_are_valid_and_named_like_their_files() {
        for (name, text) in FILES {
            let model = CpuModel::from_toml(text).unwrap();
            assert_eq!(model.name, name);
            assert!(!model.about.contains('\n'));
            let names: Vec<_> =
                model.parameters().into_iter().map(|constant| constant.name).collect();
            for prefix in model.unconfirmed.iter().chain(model.sources.keys()) {
                let known = names.iter().any(|name| name.starts_with(prefix.as_str()));
                assert!(known, "{name}: {prefix} is the start of no constant");
            }
        }
        assert_eq!(CpuModel::presets().len(), FILES.len());
    }

    #[test]
    fn an_unknown_preset_is_answered_with_the_nearest() {
        let error = CpuModel::preset("zen4").unwrap_err().to_string();
        assert!(error.starts_with("no CPU preset is named zen4; did you mean zen"), "{error}");
        let error = CpuModel::preset("skylake").unwrap_err().to_string();
        assert!(error.ends_with("did you mean skylake-gold-6138?"), "{error}");
    }

    #[test]
    fn a_mistake_in_a_file_is_found_by_line() {
        let text = FILES[0].1.replace("frequency_mhz", "frequency_mzh");
        let error = CpuModel::from_toml(&text).unwrap_err().to_string();
        assert!(error.starts_with("CPU model, line "), "{error}");
        assert!(error.contains("frequency_mzh"), "{error}");
    }
}

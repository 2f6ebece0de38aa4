//! Which CPU is modelled.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::text_file;
use std::path::Path;
use strata_hardware::CpuModel;

/// Whether `--cpu` means a file, not a preset.
pub fn names_a_file(cpu: &str) -> bool {
    cpu.ends_with(".toml") || cpu.contains('/')
}

/// A preset by name, or a model from a file.
///
/// # Errors
/// When there is none.
pub fn cpu(name: &str) -> Result<CpuModel, Failure> {
    if !names_a_file(name) {
        return CpuModel::preset(name).map_err(|error| {
            Failure::usage(format!("{error} 'strata list cpus' shows all; a file ends in .toml"))
        });
    }
    let text = text_file::read(Path::new(name), "CPU model")?;
    CpuModel::from_toml(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// Whether the last-level cache is made as that of the CPU.
pub fn models_llc(args: &RunArgs) -> bool {
    args.llc.as_deref() == Some("cpu")
}

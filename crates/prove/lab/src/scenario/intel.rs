//! What an emulated Intel machine cannot do, found out before anything boots.

use super::flaw::IntelFlaw;
use super::layer::Layer;
use super::memory::Memory;
use crate::make::Make;

/// The most memory that L0 can have. Above, the firmware tells the kernel of none.
const MOST_MEMORY: Memory = Memory::mib(64 << 10);
/// The least: kernel and initial file system are put into the first of it.
const LEAST_MEMORY: Memory = Memory::mib(512);

/// Refuses layers, L0 first, that are to run on an Intel machine and cannot.
pub(super) fn check(layers: &[Layer]) -> Result<(), IntelFlaw> {
    let of_l0 = &layers[0];
    let make = of_l0.make();
    if make != Make::Intel {
        return Ok(());
    }
    if of_l0.cpus != 1 {
        return Err(IntelFlaw::Processors(of_l0.cpus));
    }
    if let Some((number, layer)) = layers.iter().enumerate().find(|(_, layer)| layer.cpus != 1) {
        return Err(IntelFlaw::ProcessorsAbove { layer: number, cpus: layer.cpus });
    }
    if !of_l0.vmm.arguments.is_empty() {
        return Err(IntelFlaw::Vmm(of_l0.vmm.arguments.clone()));
    }
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&of_l0.memory) {
        let memory = of_l0.memory;
        return Err(IntelFlaw::Memory { memory, least: LEAST_MEMORY, most: MOST_MEMORY });
    }
    for (number, layer) in layers.iter().enumerate() {
        let (own, other) = (make.module(), make.other_module());
        if let Some(values) = layer.modules.get(other)
            && !layer.modules.contains_key(own)
        {
            return Err(IntelFlaw::OtherModule { layer: number, values: values.clone() });
        }
        let dotted = format!("{other}.");
        if let Some(word) =
            layer.parameters.split_whitespace().find(|word| word.starts_with(&dotted))
        {
            return Err(IntelFlaw::OtherParameter { layer: number, word: word.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn says(l0: &str, l1: &str) -> String {
        let text = format!(
            "about = 'x'\n[[layer]]\nkernel = 'lab'\n{l0}\n\
             [[layer]]\nkernel = 'debian'\nmemory = '300M'\n{l1}\n"
        );
        match Scenario::parse(&text, "x") {
            Ok(mut scenario) => scenario
                .set_make(Make::Intel, "x")
                .err()
                .map_or(String::new(), |error| error.to_string()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_the_machine_cannot_do_is_said_with_what_to_do_about_it() {
        assert_eq!(says("memory = '1G'", ""), "");
        assert_eq!(says("memory = '1G'\nmachine = 'intel'", ""), "");
        assert!(says("memory = '1G'\nmachine = 'ppc'", "").contains("amd or intel, not ppc"));
        let two = says("memory = '1G'\ncpus = 2", "");
        assert!(two.contains("L0 has 2 processors") && two.contains("cpus = 1"), "{two}");
        assert!(says("memory = '1G'", "cpus = 3").contains("L1 has 3 processors"));
        assert!(says("memory = '400M'", "").contains("512"));
        assert!(says("memory = '1G'\nvmm = ['-s']", "").contains("arguments of QEMU"));
        let npt = says("memory = '1G'\nmodules = { kvm_amd = 'npt=0' }", "");
        assert!(npt.contains("L0 sets kvm_amd") && npt.contains("kvm_intel = \"...\""), "{npt}");
        let both = "modules = { kvm_amd = 'npt=0', kvm_intel = 'ept=0' }";
        assert_eq!(says(&format!("memory = '1G'\n{both}"), both), "");
        assert!(says("memory = '1G'", "parameters = 'kvm_amd.npt=0'").contains("L1 has the para"));
    }

    #[test]
    fn a_file_says_itself_that_its_machine_is_an_intel() {
        let text =
            "about = 'x'\n[[layer]]\nkernel = 'lab'\nmemory = '1G'\nmachine = 'intel'\ncpus = 2";
        assert!(Scenario::parse(text, "x").unwrap_err().to_string().contains("has one"));
        let scenario = Scenario::parse(&text.replace("cpus = 2", ""), "x").unwrap();
        assert_eq!(scenario.make(), Make::Intel);
    }
}

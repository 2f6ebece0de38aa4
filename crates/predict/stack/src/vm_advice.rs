//! What a hypervisor's program tells its kernel of the memory of a VM that it starts.

use crate::vma::HugeAdvice;
use strata_params::{ParameterError, Value};

/// `madvise` on a VM's memory when the VM starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmAdvice {
    /// `MADV_HUGEPAGE`, as QEMU: so a fault that finds no free huge page compacts, though the system says
    /// `defrag=madvise` (QEMU, `system/physmem.c`, `ram_block_add`).
    #[default]
    HugePage,
    /// Nothing, as a program that knows nothing of huge pages.
    None,
}

impl VmAdvice {
    const ALL: [Self; 2] = [Self::HugePage, Self::None];

    const fn name(self) -> &'static str {
        match self {
            Self::HugePage => "hugepage",
            Self::None => "none",
        }
    }
}

impl From<VmAdvice> for HugeAdvice {
    fn from(advice: VmAdvice) -> Self {
        match advice {
            VmAdvice::HugePage => Self::Wanted,
            VmAdvice::None => Self::Default,
        }
    }
}

impl Value for VmAdvice {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "hugepage or none",
        })
    }

    fn print(&self) -> String {
        self.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_found_by_its_name_and_printed_with_it() {
        for (advice, name) in [(VmAdvice::HugePage, "hugepage"), (VmAdvice::None, "none")] {
            assert_eq!(VmAdvice::parse("vm.advice", name, "").unwrap(), advice);
            assert_eq!(advice.print(), name);
        }
        let error = VmAdvice::parse("vm.advice", "", "").unwrap_err();
        assert!(error.to_string().contains("hugepage or none"), "{error}");
    }
}

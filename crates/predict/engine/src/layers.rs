//! The layers of a machine: how many there are, and one thing for each.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Most layers of a stack. The stack itself takes more; a name is needed for each here.
const MOST: usize = 8;

/// Which translation stack a program runs on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(into = "&'static str", try_from = "String")]
pub enum StackKind {
    /// One layer: a kernel on hardware.
    Native,
    /// Two layers: a guest on L0.
    Vm,
    /// Three layers: L2 on L1 on L0.
    #[default]
    Nested,
    /// So many layers, 4 to 8: VMs in nested VMs.
    Deeper(u8),
}

impl StackKind {
    /// The kinds of processors and clouds of today, from the fewest layers to the most.
    pub const ALL: [Self; 3] = [Self::Native, Self::Vm, Self::Nested];

    /// All that can be modelled, from the fewest layers to the most.
    pub const EVERY: [Self; MOST] = [
        Self::Native,
        Self::Vm,
        Self::Nested,
        Self::Deeper(4),
        Self::Deeper(5),
        Self::Deeper(6),
        Self::Deeper(7),
        Self::Deeper(8),
    ];

    /// The stack of so many layers, 1 to 8.
    pub fn of_layers(layers: usize) -> Option<Self> {
        Self::EVERY.into_iter().find(|kind| kind.layers() == layers)
    }

    /// The stack of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|kind| kind.name() == name)
    }

    /// The name on the command line and in reports: above three layers with their number.
    pub const fn name(self) -> &'static str {
        match self.layers() {
            1 => "native",
            2 => "vm",
            3 => "nested",
            4 => "nested-4",
            5 => "nested-5",
            6 => "nested-6",
            7 => "nested-7",
            _ => "nested-8",
        }
    }

    /// Layers that translate.
    pub const fn layers(self) -> usize {
        match self {
            Self::Native => 1,
            Self::Vm => 2,
            Self::Nested => 3,
            Self::Deeper(layers) => layers as usize,
        }
    }

    /// Whether there is a guest hypervisor.
    pub const fn is_nested(self) -> bool {
        self.layers() > 2
    }
}

impl fmt::Display for StackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<StackKind> for &'static str {
    fn from(kind: StackKind) -> Self {
        kind.name()
    }
}

impl TryFrom<String> for StackKind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::named(&name).ok_or_else(|| format!("there is no stack '{name}'"))
    }
}

/// What a kernel is called in reports, by how many are below it: the host, and guest hypervisors, L1 on
/// the host, L2 in that. The kernel that runs programs is `guest`, however many are below it.
const HYPERVISORS: [&str; MOST - 1] = ["host", "l1", "l2", "l3", "l4", "l5", "l6"];

/// The name in reports of a kernel with so many below it, if it is a hypervisor.
pub(crate) fn hypervisor_name(below: usize) -> &'static str {
    HYPERVISORS.get(below).expect("a stack has no more layers")
}

/// One thing per layer, which all have a name. Layers a stack has not got are `None`. In JSON those are
/// `null` (`l1` in a VM, `l1` and `host` natively, where `guest` is the only kernel), but for those that
/// only stacks of more than three layers have, which are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerLayer<T> {
    /// The kernel the program runs on: L2 when nested.
    pub guest: T,
    /// The guest hypervisor in the one on the host, and those in that, the uppermost first.
    #[serde(flatten)]
    pub deeper: DeeperLayers<T>,
    /// The guest hypervisor on the host, L1.
    pub l1: Option<T>,
    /// The host hypervisor, L0.
    pub host: Option<T>,
}

/// One thing for each guest hypervisor above L1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeeperLayers<T> {
    /// L6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l6: Option<T>,
    /// L5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l5: Option<T>,
    /// L4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l4: Option<T>,
    /// L3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3: Option<T>,
    /// L2, where it is no guest but runs VMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<T>,
}

impl<T> Default for DeeperLayers<T> {
    fn default() -> Self {
        Self { l6: None, l5: None, l4: None, l3: None, l2: None }
    }
}

impl<T> PerLayer<T> {
    /// Of three layers at most.
    pub fn new(guest: T, l1: Option<T>, host: Option<T>) -> Self {
        Self { guest, deeper: DeeperLayers::default(), l1, host }
    }

    /// What `of` has for the guest, and for the layers of other names.
    pub fn of_names(guest: T, of: impl Fn(&str) -> Option<T>) -> Self {
        let deeper =
            DeeperLayers { l6: of("l6"), l5: of("l5"), l4: of("l4"), l3: of("l3"), l2: of("l2") };
        Self { guest, deeper, l1: of("l1"), host: of("host") }
    }
}

impl<T: Copy> PerLayer<T> {
    /// The layers there are, with their names, from the guest down.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, T)> {
        let DeeperLayers { l6, l5, l4, l3, l2 } = self.deeper;
        let layers = [
            ("guest", Some(self.guest)),
            ("l6", l6),
            ("l5", l5),
            ("l4", l4),
            ("l3", l3),
            ("l2", l2),
            ("l1", self.l1),
            ("host", self.host),
        ];
        layers.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_named_by_its_layers_and_found_by_its_name() {
        for (index, kind) in StackKind::EVERY.into_iter().enumerate() {
            assert_eq!(kind.layers(), index + 1);
            assert_eq!(StackKind::of_layers(index + 1), Some(kind));
            assert_eq!(StackKind::named(kind.name()), Some(kind));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<StackKind>(&json).unwrap(), kind);
        }
        assert_eq!((StackKind::of_layers(0), StackKind::of_layers(9)), (None, None));
        assert!(serde_json::from_str::<StackKind>("\"nested-9\"").is_err());
    }

    #[test]
    fn layers_that_few_stacks_have_are_told_only_there() {
        let vm = PerLayer::new(1, None, Some(3));
        assert_eq!(serde_json::to_string(&vm).unwrap(), r#"{"guest":1,"l1":null,"host":3}"#);
        let all: Vec<_> = HYPERVISORS[1..].iter().rev().chain([&"host"]).copied().collect();
        let of = |name: &str| all.iter().position(|other| *other == name);
        let deep = PerLayer::of_names(7, of);
        let expected = [("guest", 7), ("l6", 0), ("l5", 1), ("l4", 2), ("l3", 3), ("l2", 4)];
        let present: Vec<_> = deep.present().collect();
        assert_eq!(present[..6], expected);
        assert_eq!(present[6..], [("l1", 5), ("host", 6)]);
        for layers in [vm, PerLayer::of_names(1, |name| (name == "l2").then_some(5))] {
            let json = serde_json::to_string(&layers).unwrap();
            assert_eq!(serde_json::from_str::<PerLayer<i32>>(&json).unwrap(), layers);
        }
    }
}

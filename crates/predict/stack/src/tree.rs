//! The tree of kernels on one host: who runs in whom.
//!
//! ```text
//! guest   L2   guest        programs: GVA -> GPA
//!   |     |
//!   L1    L1                VM processes: HVA -> GHPA     second stages: GPA  -> GHPA
//!     \   /
//!      L0                   VM processes: HVA -> HPA      second stages: GHPA -> HPA
//!                           shadow tables of nested guests: GPA -> HPA
//! ```
//!
//! A node is a kernel with its memory; an edge is a VM: a process of the kernel below, whose memory
//! is the memory of the kernel above.

use crate::balloon_pages::Balloon;
use crate::frames::{Frames, KernelCounters};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::owner::SpaceId;
use crate::shadowed::Shadowed;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, Range};
use strata_paging::{Ept, Radix};

/// A second-stage table of a hypervisor, or the shadow table.
pub type SecondStageTable = Radix<Ept, Upper, Lower>;

/// A kernel of the tree. The host is number 0; a kernel in a VM has a higher number than the kernel
/// below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);

impl NodeId {
    /// The kernel that everything else runs on: L0.
    pub const HOST: Self = Self(0);

    pub(crate) fn new(index: usize) -> Self {
        Self(u16::try_from(index).expect("fewer kernels than 65536"))
    }

    /// Every number there can be, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u16::MAX).map(Self)
    }

    /// The number, for tables by kernel.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a kernel is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The kernel.
    pub node: NodeId,
    /// Kernels below it: 0 is the host (L0), 1 a guest of it (L1), 2 a guest of that (L2).
    pub level: u8,
    /// VMs that run in it when it starts.
    pub vms: u16,
    /// The VM of the host that it is, or is in; the host itself for the host.
    pub vm: NodeId,
}

impl Position {
    /// Of a kernel in a VM of the one `below`, if there is one.
    pub(crate) fn above(below: Option<Self>, node: NodeId, vms: u16) -> Self {
        let vm = below.filter(|below| below.level > 0).map_or(node, |below| below.vm);
        Self { node, level: below.map_or(0, |below| below.level + 1), vms, vm }
    }

    /// Whether it runs programs, and no VMs.
    #[inline]
    pub const fn is_guest(self) -> bool {
        self.vms == 0
    }
}

/// A VM: what connects a kernel to the one below.
pub(crate) struct Vm {
    /// The hypervisor's kernel.
    pub(crate) below: NodeId,
    /// The VM process there.
    pub(crate) process: SpaceId,
    /// Where the VM's memory starts in the VM process, in base pages.
    pub(crate) slot: u64,
    /// The hypervisor's second stage: the VM's memory to the hypervisor's.
    pub(crate) second: SecondStageTable,
    /// For programs in a nested VM: the VM's memory to real memory, in the host's memory.
    pub(crate) shadow: Option<SecondStageTable>,
    /// Leaf tables of the second stage that the host lets the hypervisor write, by the region of the VM's
    /// memory that they are for.
    pub(crate) unsync: BTreeSet<u64>,
    /// The one of these that stays so when it is read anew, if one does.
    pub(crate) kept_unsync: Option<u64>,
    /// Those that come while its hypervisor, if that runs in a VM, handles its exits.
    pub(crate) interrupts: Interrupts,
}

/// Interrupts of which only the share of exits is known that they come with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interrupts {
    /// Part of the next one.
    due: f64,
}

impl Interrupts {
    /// Whether any come with so many exits more, of which they come with this share.
    pub(crate) fn come(&mut self, share: f64, exits: u64) -> bool {
        self.due += share * exits as f64;
        let come = self.due >= 1.0;
        self.due = self.due.fract();
        come
    }
}

impl Vm {
    /// The table that hardware walks for programs in this VM.
    #[inline]
    pub(crate) fn hardware_table(&self) -> &SecondStageTable {
        self.shadow.as_ref().unwrap_or(&self.second)
    }

    /// The table that hardware walks for programs in this VM.
    #[inline]
    pub(crate) fn hardware_table_mut(&mut self) -> &mut SecondStageTable {
        self.shadow.as_mut().unwrap_or(&mut self.second)
    }
}

/// The addresses of so many base pages from `first`.
pub(crate) fn page_range<S>(first: Frame<S>, pages: u64) -> Range<S> {
    Range::new(first.addr(), (first + pages).addr())
}

/// One kernel with what belongs to it.
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) kernel: Kernel,
    /// The VM it runs in; none for the host.
    pub(crate) vm: Option<Vm>,
    /// The kernels in its VMs, by the VM's process.
    pub(crate) above: Vec<Option<NodeId>>,
    /// The programs it runs.
    pub(crate) guest: Guest,
    /// What the host has of its memory; a guest's.
    pub(crate) balloon: Balloon,
    /// When khugepaged wakes up next, in seconds.
    pub(crate) khugepaged_next: f64,
    /// What the hypervisor below keeps for its processes, by their spaces, with shadow paging.
    pub(crate) shadows: Vec<Option<Shadowed>>,
    /// Huge pages of its memory of whose pages, by its direct map, leaf tables are unsync in L0's shadow of a shadow.
    pub(crate) unsync_direct: FxHashSet<u64>,
    /// Counters up to which work has been charged.
    pub(crate) charged: KernelCounters,
    /// Its VM has ended; its number is not used again.
    pub(crate) ended: bool,
}

impl Node {
    /// The VM of a kernel that is not the host's.
    #[inline]
    pub(crate) fn vm(&self) -> &Vm {
        self.vm.as_ref().expect("every kernel but the host's is in a VM")
    }
}

/// All kernels, by number.
#[derive(Default)]
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    /// Adds a kernel: the host's first, then such that run in a VM of one that is there.
    pub(crate) fn add(&mut self, kernel: Kernel, vm: Option<Vm>, vms: u16) -> NodeId {
        let node = NodeId::new(self.0.len());
        debug_assert_eq!(node == NodeId::HOST, vm.is_none());
        let position = Position::above(vm.as_ref().map(|vm| self[vm.below].position), node, vms);
        if let Some(vm) = &vm {
            let above = &mut self[vm.below].above;
            let process = vm.process.0 as usize;
            above.resize(above.len().max(process + 1), None);
            above[process] = Some(node);
        }
        self.0.push(Node {
            position,
            kernel,
            vm,
            above: Vec::new(),
            guest: Guest::default(),
            balloon: Balloon::default(),
            khugepaged_next: 0.0,
            shadows: Vec::new(),
            unsync_direct: FxHashSet::default(),
            charged: KernelCounters::default(),
            ended: false,
        });
        node
    }

    /// Every kernel that has not ended, the host first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Node> {
        self.0.iter().filter(|node| !node.ended)
    }

    /// Every kernel that has not ended, the host first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.0.iter_mut().filter(|node| !node.ended)
    }

    /// A VM, and its hypervisor's kernel.
    #[inline]
    pub(crate) fn vm_and_below(&mut self, node: NodeId) -> (&mut Vm, &mut Kernel) {
        let (lower, upper) = self.0.split_at_mut(node.index());
        let vm = upper[0].vm.as_mut().expect("every kernel but the host's is in a VM");
        let below = &mut lower[vm.below.index()].kernel;
        (vm, below)
    }

    /// The kernels below one, by number, and the node itself.
    #[inline]
    pub(crate) fn split(&mut self, node: NodeId) -> (&mut [Node], &mut Node) {
        let (lower, upper) = self.0.split_at_mut(node.index());
        (lower, &mut upper[0])
    }

    /// A nested VM's shadow table, and the host's frames that it is made of.
    #[inline]
    pub(crate) fn shadow_and_frames(
        &mut self,
        node: NodeId,
    ) -> Option<(&mut SecondStageTable, &mut Frames)> {
        let (lower, upper) = self.0.split_at_mut(node.index());
        let shadow = upper[0].vm.as_mut()?.shadow.as_mut()?;
        Some((shadow, &mut lower[NodeId::HOST.index()].kernel.frames))
    }
}

impl Index<NodeId> for Nodes {
    type Output = Node;

    #[inline]
    fn index(&self, node: NodeId) -> &Node {
        &self.0[node.index()]
    }
}

impl IndexMut<NodeId> for Nodes {
    #[inline]
    fn index_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.0[node.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exits of one VM do not bring the interrupts of another: each has those of its own share.
    #[test]
    fn interrupts_come_with_their_share_of_the_exits() {
        let (mut often, mut rarely) = (Interrupts::default(), Interrupts::default());
        let mut came = [0; 2];
        for _ in 0..100 {
            came[0] += u32::from(often.come(0.5, 1));
            came[1] += u32::from(rarely.come(0.125, 1));
        }
        assert_eq!(came, [50, 12]);
        let mut never = Interrupts::default();
        assert!((0..100).all(|_| !never.come(0.0, 1 << 40)));
        // Of many at once what is over a whole one is kept.
        let mut many = Interrupts::default();
        assert_eq!([3, 1, 1, 1].map(|exits| many.come(0.75, exits)), [true, true, false, true]);
    }
}

//! The stack and one kernel of it, as hooks in Python see them.

use super::lent::Lent;
use super::python::PythonPolicy;
use super::values::Position;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize};
use strata_colours::Colour;
use strata_paging::Region;
use strata_stack::{Collapsed, Kernel, NodeId, SpaceId, Stack};

/// Numbers of pages that no table has are taken for a mistake.
const PAGES: u64 = 1 << 45;

fn page_of(page: u64) -> PyResult<Frame<Upper>> {
    if page < PAGES {
        return Ok(Frame::new(page));
    }
    Err(PyValueError::new_err(format!("there is no page {page}: pages are numbers of 4 KiB")))
}

fn frame_of(kernel: &Kernel, frame: u64) -> PyResult<Frame<Lower>> {
    if frame < kernel.memory().frames() {
        return Ok(Frame::new(frame));
    }
    let frames = kernel.memory().frames();
    Err(PyValueError::new_err(format!("there is no frame {frame}: this kernel has {frames}")))
}

fn check_space(kernel: &Kernel, space: u16) -> PyResult<SpaceId> {
    let space = SpaceId(space);
    kernel.space(space).map(|_| space).ok_or_else(|| {
        PyValueError::new_err(format!("this kernel has no address space {}", space.0))
    })
}

/// How a region is mapped, and how many of its base pages are there.
type RegionState = (&'static str, u16);

fn region(kernel: &Kernel, space: u16, page: u64) -> PyResult<RegionState> {
    let page = page_of(page)?.floor(PageSize::Huge);
    let Some(place) = kernel.space(SpaceId(space)) else { return Ok(("absent", 0)) };
    Ok(match place.table().region(page) {
        Region::Absent => ("absent", 0),
        Region::Huge(_) => ("huge", 512),
        Region::Base { present, .. } => ("base", present),
    })
}

fn frame(kernel: &Kernel, space: u16, page: u64) -> PyResult<Option<u64>> {
    let page = page_of(page)?;
    let mapping = kernel.space(SpaceId(space)).and_then(|place| place.table().mapping(page.addr()));
    Ok(mapping.map(|mapping| (mapping.frame + page.index_in(mapping.size)).get()))
}

fn order(size: &str) -> PyResult<u32> {
    match size {
        "4k" => Ok(0),
        "2m" => Ok(PageSize::Huge.order()),
        _ => Err(PyValueError::new_err(format!("there is no size '{size}'; give '4k' or '2m'"))),
    }
}

/// A kernel that a hook may look at and release memory of.
#[pyclass(module = "strata", frozen)]
pub struct KernelView {
    pub(super) kernel: Lent<Kernel>,
}

#[pymethods]
impl KernelView {
    /// Base frames of memory.
    #[getter]
    fn frames(&self) -> PyResult<u64> {
        self.kernel.look(|kernel| kernel.memory().frames())
    }

    /// Free base frames.
    #[getter]
    fn free_frames(&self) -> PyResult<u64> {
        self.kernel.look(|kernel| kernel.memory().free_frames())
    }

    /// Free regions of 2 MiB.
    #[getter]
    fn free_regions(&self) -> PyResult<u64> {
        self.kernel.look(|kernel| kernel.memory().free_regions())
    }

    /// Whether a frame, or the region that it begins, is free.
    #[pyo3(signature = (frame, size="4k"))]
    fn is_free(&self, frame: u64, size: &str) -> PyResult<bool> {
        let order = order(size)?;
        self.kernel.look(|kernel| Ok(kernel.memory().is_free(frame_of(kernel, frame)?, order)))?
    }

    /// How the region of a page is mapped, "absent", "base" or "huge", and how many of its pages are.
    fn region(&self, space: u16, page: u64) -> PyResult<RegionState> {
        self.kernel.look(|kernel| region(kernel, space, page))?
    }

    /// The frame that a page is mapped to.
    fn frame(&self, space: u16, page: u64) -> PyResult<Option<u64>> {
        self.kernel.look(|kernel| frame(kernel, space, page))?
    }

    /// Gives back all regions that were booked; how many there were.
    fn release_all_regions(&self) -> PyResult<u64> {
        self.kernel.change(|kernel| kernel.memory_mut().release_all_regions())
    }
}

/// The kernels of a host, and what a policy may do to them.
#[pyclass(module = "strata", frozen)]
pub struct StackView {
    pub(super) stack: Lent<Stack>,
    pub(super) policy: PythonPolicy,
}

/// The kernel of this number.
pub(super) fn node(stack: &Stack, number: usize) -> PyResult<NodeId> {
    stack.nodes().nth(number).ok_or_else(|| {
        let most = stack.nodes().count() - 1;
        PyValueError::new_err(format!(
            "there is no kernel {number}: they are numbered from 0 to {most}"
        ))
    })
}

/// The kernel of this number, which is in a VM.
fn vm(stack: &Stack, number: usize) -> PyResult<NodeId> {
    match node(stack, number)? {
        NodeId::HOST => Err(PyValueError::new_err("kernel 0 is the host, and no VM")),
        vm => Ok(vm),
    }
}

impl StackView {
    fn kernel<T>(&self, number: usize, of: impl FnOnce(&Kernel) -> PyResult<T>) -> PyResult<T> {
        self.stack.look(|stack| of(stack.kernel(node(stack, number)?)))?
    }
}

#[pymethods]
impl StackView {
    /// The kernels, the host first.
    fn nodes(&self) -> PyResult<Vec<usize>> {
        self.stack.look(|stack| stack.nodes().map(NodeId::index).collect())
    }

    /// The kernels that run programs.
    fn guests(&self) -> PyResult<Vec<usize>> {
        self.stack.look(|stack| stack.guests().map(NodeId::index).collect())
    }

    /// Where a kernel is in the tree.
    fn position(&self, node: usize) -> PyResult<Position> {
        self.stack.look(|stack| Ok(stack.position(self::node(stack, node)?).into()))?
    }

    /// The kernel below; none below the host.
    fn below(&self, node: usize) -> PyResult<Option<usize>> {
        self.stack.look(|stack| Ok(stack.below(self::node(stack, node)?).map(NodeId::index)))?
    }

    /// The VM that is a process of a kernel, if it is one.
    fn above(&self, node: usize, space: u16) -> PyResult<Option<usize>> {
        self.stack.look(|stack| {
            Ok(stack.above(self::node(stack, node)?, SpaceId(space)).map(NodeId::index))
        })?
    }

    /// The VM process of a VM, an address space of the kernel below.
    fn vm_process(&self, vm: usize) -> PyResult<u16> {
        self.stack.look(|stack| Ok(stack.vm_process(self::vm(stack, vm)?).0))?
    }

    /// The page of the VM process that a page of a VM's memory is.
    fn hva(&self, vm: usize, page: u64) -> PyResult<u64> {
        self.stack.look(|stack| Ok(stack.hva(self::vm(stack, vm)?, page_of(page)?).get()))?
    }

    /// The frame of the host behind a frame of a kernel, if there is one.
    fn bottom_frame(&self, node: usize, frame: u64) -> PyResult<Option<u64>> {
        self.stack.look(|stack| {
            let node = self::node(stack, node)?;
            let frame = frame_of(stack.kernel(node), frame)?;
            Ok(stack.bottom_frame(node, frame).map(Frame::get))
        })?
    }

    /// Address spaces of a kernel.
    fn spaces(&self, node: usize) -> PyResult<Vec<u16>> {
        self.kernel(node, |kernel| Ok(kernel.spaces().map(|(space, _)| space.0).collect()))
    }

    /// Areas of an address space: first address, address after the last, advice on huge pages wanted.
    fn areas(&self, node: usize, space: u16) -> PyResult<Vec<(u64, u64)>> {
        self.kernel(node, |kernel| {
            let areas = kernel.space(SpaceId(space)).map(|place| place.vmas());
            let ends = areas.into_iter().flat_map(|areas| areas.iter());
            Ok(ends.map(|area| (area.range.start.get(), area.range.end.get())).collect())
        })
    }

    /// How the region of a page is mapped, "absent", "base" or "huge", and how many of its pages are.
    fn region(&self, node: usize, space: u16, page: u64) -> PyResult<RegionState> {
        self.kernel(node, |kernel| region(kernel, space, page))
    }

    /// The frame that a page is mapped to.
    fn frame(&self, node: usize, space: u16, page: u64) -> PyResult<Option<u64>> {
        self.kernel(node, |kernel| frame(kernel, space, page))
    }

    /// Base frames of memory of a kernel.
    fn frames(&self, node: usize) -> PyResult<u64> {
        self.kernel(node, |kernel| Ok(kernel.memory().frames()))
    }

    /// Free base frames of a kernel.
    fn free_frames(&self, node: usize) -> PyResult<u64> {
        self.kernel(node, |kernel| Ok(kernel.memory().free_frames()))
    }

    /// Free regions of 2 MiB of a kernel.
    fn free_regions(&self, node: usize) -> PyResult<u64> {
        self.kernel(node, |kernel| Ok(kernel.memory().free_regions()))
    }

    /// Whether a frame, or the region that it begins, is free.
    #[pyo3(signature = (node, frame, size="4k"))]
    fn is_free(&self, node: usize, frame: u64, size: &str) -> PyResult<bool> {
        let order = order(size)?;
        self.kernel(node, |kernel| Ok(kernel.memory().is_free(frame_of(kernel, frame)?, order)))
    }

    /// Makes the region of a page huge, in this frame or in any. Whether it is huge then, and why not.
    #[pyo3(signature = (node, space, page, target=None))]
    fn collapse(
        &self,
        node: usize,
        space: u16,
        page: u64,
        target: Option<u64>,
    ) -> PyResult<(bool, Option<String>)> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let node = self::node(stack, node)?;
            let space = check_space(stack.kernel(node), space)?;
            let target = target.map(|to| frame_of(stack.kernel(node), to)).transpose()?;
            Ok(stack.collapse(&mut policy, node, space, page_of(page)?, target))
        })??;
        Ok(match self.policy.result(done)? {
            Collapsed::Huge(_) => (true, None),
            Collapsed::Unchanged(why) => (false, Some(why.to_string())),
        })
    }

    /// Moves a base page into a frame. Whether it is there then.
    fn migrate(&self, node: usize, space: u16, page: u64, to: u64) -> PyResult<bool> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let node = self::node(stack, node)?;
            let space = check_space(stack.kernel(node), space)?;
            let to = frame_of(stack.kernel(node), to)?;
            Ok(stack.migrate(&mut policy, node, space, page_of(page)?, to))
        })??;
        self.policy.result(done)
    }

    /// Moves a base page into a frame of this colour. Whether it is in one then.
    #[pyo3(signature = (node, space, page, colour, copies=true))]
    fn recolour(
        &self,
        node: usize,
        space: u16,
        page: u64,
        colour: u32,
        copies: bool,
    ) -> PyResult<bool> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let node = self::node(stack, node)?;
            let space = check_space(stack.kernel(node), space)?;
            let place = (space, page_of(page)?);
            Ok(stack.recolour(&mut policy, node, place, Colour::new(colour), copies))
        })??;
        self.policy.result(done)
    }

    /// Makes the region of a page of a nested guest huge in its shadow table. Whether it is.
    fn promote_shadow(&self, guest: usize, page: u64) -> PyResult<bool> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let guest = vm(stack, guest)?;
            Ok(stack.promote_shadow(&mut policy, guest, page_of(page)?))
        })??;
        self.policy.result(done)
    }

    /// Fills in what is missing of the region of a page in a nested guest's shadow table.
    fn fill_shadow(&self, guest: usize, page: u64) -> PyResult<()> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let guest = vm(stack, guest)?;
            Ok(stack.fill_shadow(&mut policy, guest, page_of(page)?))
        })??;
        self.policy.result(done)
    }

    /// Backs a page of a VM's memory, in all layers below it.
    fn back(&self, vm: usize, page: u64) -> PyResult<()> {
        let mut policy = self.policy.clone();
        let done = self.stack.change(|stack| -> PyResult<_> {
            let vm = self::vm(stack, vm)?;
            Ok(stack.back(&mut policy, vm, page_of(page)?))
        })??;
        self.policy.result(done)
    }
}

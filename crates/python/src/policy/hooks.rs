//! The hooks of a policy, each passed on to the object's method of the same name.

use super::lent::Lent;
use super::python::PythonPolicy;
use super::stack::{KernelView, StackView};
use super::values::{self, Fault, Feedback, MoveAsked, Position};
use pyo3::prelude::*;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_stack::{
    HugeAdvice, Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId, PageFault, Placement,
    PlacementCounts, Policy, Stack, TradeCounts,
};

/// What stock Linux does.
struct Linux;

impl Policy for Linux {
    fn settings(&mut self, _at: strata_stack::Position) -> KernelSettings {
        KernelSettings {
            thp: strata_stack::ThpMode::Always,
            align_areas: strata_stack::AlignAreas::Never,
            fragmented: true,
            coloured: false,
        }
    }
}

impl PythonPolicy {
    /// Lends the stack to Python while `with` runs.
    fn lend<T>(
        &self,
        py: Python<'_>,
        stack: Lent<Stack>,
        with: impl FnOnce(&Bound<'_, StackView>) -> PyResult<T>,
    ) -> PyResult<T> {
        let view = Bound::new(py, StackView { stack, policy: self.clone() })?;
        let done = with(&view);
        view.get().stack.end();
        done
    }
}

/// Lends a kernel to Python while `with` runs.
fn lend_kernel<T>(
    py: Python<'_>,
    kernel: &mut Kernel,
    with: impl FnOnce(&Bound<'_, KernelView>) -> PyResult<T>,
) -> PyResult<T> {
    let view = Bound::new(py, KernelView { kernel: Lent::mutable(kernel) })?;
    let done = with(&view);
    view.get().kernel.end();
    done
}

impl Policy for PythonPolicy {
    fn settings(&mut self, at: strata_stack::Position) -> KernelSettings {
        if !self.has("settings") {
            return Linux.settings(at);
        }
        let answer = self.ask(|object| {
            values::settings(&object.call_method1("settings", (Position::from(at),))?)
        });
        answer.unwrap_or_else(|| Linux.settings(at))
    }

    fn vm_memory(&mut self, at: strata_stack::Position) -> HugeAdvice {
        if !self.has("vm_memory") {
            return Linux.vm_memory(at);
        }
        let answer = self.ask(|object| {
            values::advice(&object.call_method1("vm_memory", (Position::from(at),))?)
        });
        answer.unwrap_or_else(|| Linux.vm_memory(at))
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        if !self.has("place") {
            return Linux.place(node, kernel, fault);
        }
        let answer = self.ask(|object| {
            lend_kernel(object.py(), kernel, |view| {
                let asked = (node.index(), view, Fault::from(fault));
                values::placement(&object.call_method1("place", asked)?)
            })
        });
        answer.unwrap_or(Placement::Linux)
    }

    fn wants_backs(&self) -> bool {
        self.has("wants_backs")
            && self.ask(|object| object.call_method0("wants_backs")?.extract()).unwrap_or(false)
    }

    fn mapped_at_once(&self, vm: NodeId) -> u64 {
        if !self.has("mapped_at_once") {
            return 1;
        }
        let answer =
            self.ask(|object| object.call_method1("mapped_at_once", (vm.index(),))?.extract());
        answer.unwrap_or(1)
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        if !self.has("mapped") {
            return Ok(());
        }
        self.attempt(|object| {
            self.lend(object.py(), Lent::mutable(stack), |view| {
                let told = (view, node.index(), Fault::from(fault), values::size_name(size));
                object.call_method1("mapped", told).map(drop)
            })
        })
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        if !self.has("second_stage_written") {
            return Ok(());
        }
        self.attempt(|object| {
            self.lend(object.py(), Lent::mutable(stack), |view| {
                let told = (view, vm.index(), page.get(), values::size_name(size));
                object.call_method1("second_stage_written", told).map(drop)
            })
        })
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        if !self.has("may_move") {
            return true;
        }
        let answer = self.ask(|object| {
            self.lend(object.py(), Lent::shared(stack), |view| {
                object.call_method1("may_move", (view, MoveAsked::from(asked)))?.extract()
            })
        });
        answer.unwrap_or(true)
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        if !self.has("balloon_colours") {
            return Vec::new();
        }
        let answer: Option<Vec<u32>> = self.ask(|object| {
            self.lend(object.py(), Lent::shared(stack), |view| {
                object.call_method1("balloon_colours", (view, guest.index()))?.extract()
            })
        });
        answer.unwrap_or_default().into_iter().map(Colour::new).collect()
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        if !self.has("may_merge") {
            return true;
        }
        let answer = self.ask(|object| {
            self.lend(object.py(), Lent::shared(stack), |view| {
                let asked = (view, vm.index(), page.get(), frame.get());
                object.call_method1("may_merge", asked)?.extract()
            })
        });
        answer.unwrap_or(true)
    }

    fn freed_huge(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        vm: Option<NodeId>,
        region: Frame<Lower>,
    ) {
        if self.has("freed_huge") {
            self.ask(|object| {
                self.lend(object.py(), Lent::mutable(stack), |view| {
                    let told = (view, node.index(), vm.map(NodeId::index), region.get());
                    object.call_method1("freed_huge", told).map(drop)
                })
            });
        }
    }

    fn ended(&mut self, stack: &mut Stack, kernels: &[NodeId]) {
        if self.has("ended") {
            let kernels: Vec<usize> = kernels.iter().map(|node| node.index()).collect();
            self.ask(|object| {
                self.lend(object.py(), Lent::mutable(stack), |view| {
                    object.call_method1("ended", (view, kernels)).map(drop)
                })
            });
        }
    }

    fn memory_short(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        if !self.has("memory_short") {
            return Linux.memory_short(node, kernel);
        }
        let answer = self.ask(|object| {
            lend_kernel(object.py(), kernel, |view| {
                object.call_method1("memory_short", (node.index(), view))?.extract()
            })
        });
        answer.unwrap_or(false)
    }

    fn wake(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        now: f64,
        feedback: strata_stack::Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        if !self.has("wake") {
            return Ok(());
        }
        self.attempt(|object| {
            self.lend(object.py(), Lent::mutable(stack), |view| {
                let told = (view, vm.index(), now, Feedback::from(feedback));
                object.call_method1("wake", told).map(drop)
            })
        })
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        if !self.has("placement") {
            return None;
        }
        let answer = self.ask(|object| {
            self.lend(object.py(), Lent::shared(stack), |view| {
                let counts = object.call_method1("placement", (view, guest.index()))?;
                values::placement_counts(&counts)
            })
        });
        answer.flatten()
    }

    fn trade(&self, stack: &Stack, guest: NodeId) -> Option<TradeCounts> {
        if !self.has("trade") {
            return None;
        }
        let answer = self.ask(|object| {
            self.lend(object.py(), Lent::shared(stack), |view| {
                values::trade_counts(&object.call_method1("trade", (view, guest.index()))?)
            })
        });
        answer.flatten()
    }

    fn told_of_cache(&mut self, vm: NodeId, cache: VirtualCache) -> Option<String> {
        if !self.has("told_of_cache") {
            return None;
        }
        let told = (vm.index(), cache.colours.count(), cache.first);
        self.ask(|object| object.call_method1("told_of_cache", told)?.extract()).flatten()
    }

    fn refuses(&self, colours: Colours) -> Option<String> {
        if !self.has("refuses") {
            return None;
        }
        self.ask(|object| object.call_method1("refuses", (colours.count(),))?.extract()).flatten()
    }

    fn next_wake(&self, vm: NodeId) -> f64 {
        if !self.has("next_wake") {
            return f64::INFINITY;
        }
        let answer = self.ask(|object| object.call_method1("next_wake", (vm.index(),))?.extract());
        answer.unwrap_or(f64::INFINITY)
    }
}

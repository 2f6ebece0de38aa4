"""Policies in Python: slow, and whole, for trying ideas. docs/python.md follows the guide's example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._strata import Fault, Feedback, KernelView, MoveAsked, Position, StackView

Placement = str | tuple[str, int]


@dataclass
class Settings:
    """How a kernel is set up."""

    #: Transparent huge pages.
    thp: Literal["never", "madvise", "always"] = "always"
    #: Areas handed out as whole regions of 2 MiB.
    align_areas: Literal["never", "always", "needless"] = "never"
    #: Memory is as fragmented as was asked for.
    fragmented: bool = True
    #: Memory tells cache colours apart, as `("base_of", colour)` needs it.
    coloured: bool = False


class Policy:
    """What decides where the pages of all kernels go.

    A subclass has the hooks that it needs; whatever it leaves out is done as stock Linux does it. Pages and
    frames are numbers of 4 KiB, kernels numbers from 0, the host. What a hook is given of the stack is lent to
    it while it runs. Each machine gets an object of its own: a class is called without arguments, an object is
    copied.
    """

    #: What it is called; the name of the class in small letters unless something else is said.
    name: str | None = None

    @classmethod
    def policy_name(cls) -> str:
        """What it is called."""
        return cls.name or cls.__name__.lower()

    @classmethod
    def about(cls) -> str:
        """What it does, in one line."""
        lines = (cls.__doc__ or "").strip().splitlines()
        return lines[0] if lines else f"the class {cls.__qualname__} of {cls.__module__}"

    if TYPE_CHECKING:
        # The hooks: a class that has one is asked, so none may be here when a program runs.
        def settings(self, at: Position) -> Settings: ...
        def vm_memory(self, at: Position) -> Literal["default", "wanted", "refused"]: ...
        def place(self, node: int, kernel: KernelView, fault: Fault) -> Placement: ...
        def wants_backs(self) -> bool: ...
        def mapped(self, stack: StackView, node: int, fault: Fault, size: str) -> None: ...
        def second_stage_written(self, stack: StackView, vm: int, page: int, size: str) -> None: ...
        def may_move(self, stack: StackView, asked: MoveAsked) -> bool: ...
        def balloon_colours(self, stack: StackView, guest: int) -> list[int]: ...
        def may_merge(self, stack: StackView, vm: int, page: int, frame: int) -> bool: ...
        def freed_huge(self, stack: StackView, node: int, vm: int | None, region: int) -> None: ...
        def ended(self, stack: StackView, kernels: list[int]) -> None: ...
        def memory_short(self, node: int, kernel: KernelView) -> bool: ...
        def wake(self, stack: StackView, vm: int, now: float, feedback: Feedback) -> None: ...
        def placement(self, stack: StackView, guest: int) -> dict[str, int] | None: ...
        def trade(self, stack: StackView, guest: int) -> dict[str, int] | None: ...
        def told_of_cache(self, vm: int, colours: int, first: int) -> str | None: ...
        def refuses(self, colours: int) -> str | None: ...
        def next_wake(self, vm: int) -> float: ...

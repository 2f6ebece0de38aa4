"""Predicts what memory virtualisation costs: native, in a VM, in a nested VM, under huge-page policies.

    import strata
    result = strata.run(workload="random:size=64MiB,accesses=1M", stack="nested", policy=["base", "thp"])
    result.table()

docs/python.md is the manual.
"""

from ._command import _find_plugin
from ._strata import (
    Fault,
    Feedback,
    KernelView,
    MoveAsked,
    Position,
    StackView,
    StrataError,
    Table,
    version as _version,
)
from .policy import Policy, Settings
from .result import Record, Recording, Result, read
from .run import run
from .sweep import Swept, sweep

_find_plugin()

__version__ = _version()

__all__ = [
    "Fault",
    "Feedback",
    "KernelView",
    "MoveAsked",
    "Policy",
    "Position",
    "Record",
    "Recording",
    "Result",
    "Settings",
    "StackView",
    "StrataError",
    "Swept",
    "Table",
    "read",
    "run",
    "sweep",
]

"""What was found: by a run, or in a file of before."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _strata

if TYPE_CHECKING:
    from .sweep import Swept


class Record(dict[str, Any]):
    """A dictionary whose values are attributes as well: `run.cycles` is `run["cycles"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no '{name}'; there are {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key for key in self if key.isidentifier())]


class Result:
    """A result of `strata run`, `join`, `lab` or `paper`; docs/json.md describes every field.

    Fields of the JSON are attributes. In a notebook it shows itself as the page of `--html`.
    """

    def __init__(self, json_text: str, input_sha256: str | None = None) -> None:
        self._json = json_text
        self._input_sha256 = input_sha256
        self._read: Record | None = None

    @property
    def json(self) -> str:
        """The bytes that `--json` writes, but for the end of the line."""
        return self._json

    @property
    def input_sha256(self) -> str | None:
        """SHA-256 of what was run; None for a live program, and where it is not known."""
        return self._input_sha256

    @property
    def kind(self) -> str:
        """Which command wrote it: run, join, lab or paper."""
        return _strata.kind(self._json)

    def to_dict(self) -> dict[str, Any]:
        """The JSON as a dictionary of your own."""
        return json.loads(self._json)  # type: ignore[no-any-return]

    def table(self) -> _strata.Table:
        """A row per run, stack and policy; docs/python.md lists the columns."""
        if self.kind != "run":
            raise ValueError(f"a result of strata {self.kind} has no runs to make a table of")
        return _strata.table([(self._json, self._input_sha256)])

    def sentences(self) -> list[str]:
        """What a run's table says below its figures; first, of a sampled run, what of it is estimated."""
        return _strata.sentences(self._json)

    def html(self) -> str:
        """The page to look at."""
        return _strata.page(self._json)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON, or the page if the name ends with .html."""
        path = Path(path)
        path.write_text(self.html() if path.suffix == ".html" else self._json + "\n", encoding="utf-8")

    def _repr_html_(self) -> str:
        # A page of its own: neither its styles nor its script meet those of the notebook.
        page = html.escape(self.html(), quote=True)
        style = "width:100%;height:700px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    def _fields(self) -> Record:
        if self._read is None:
            self._read = json.loads(self._json, object_hook=Record)
        return self._read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fields(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self._json == other._json

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Result, (self._json, self._input_sha256)

    def __repr__(self) -> str:
        if self.kind != "run":
            return f"<strata.Result of strata {self.kind}>"
        runs = [f"{run.stack}/{run.policy}" for run in self.runs]
        runs += [f"{vm.name}:{run.policy}" for vm in self._fields().get("vms", []) for run in vm.runs]
        partial = ", partial" if self.partial else ""
        return f"<strata.Result: {self.workload.name or 'VMs'} on {', '.join(runs)}{partial}>"


class Recording(Record):
    """What is known of a recording: its path, its accesses, the bytes that it touches."""

    def run(self, **options: Any) -> Result:
        """Runs it, with the options of `strata.run`."""
        from .run import run

        return run(trace=self["path"], **options)


def read(path: str | os.PathLike[str]) -> Result | Recording | Swept:
    """Reads what Strata wrote: JSON of a run, a join, a lab, a paper or a sweep; or a recording, or any
    trace that `strata run` takes."""
    path = Path(path)
    with open(path, "rb") as file:
        start = file.read(64).lstrip()
    if not start.startswith(b"{"):
        return Recording({"path": os.fspath(path), **_strata.recording(path)})
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if '"sweep"' in text and "sweep" in json.loads(text):
        from .sweep import Swept

        return Swept(_strata.Sweep.swept(text))
    result = Result(text)
    result.kind  # raises what is wrong with it
    return result

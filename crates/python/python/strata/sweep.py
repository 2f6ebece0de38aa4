"""Sweeps: every combination of some options, here or on other computers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from . import _options, _strata
from .result import Result

Parts = tuple[str | None, str | None, str | None, bool]
#: Is told how many points are done, of how many, and how many seconds are left, if that can be told.
Progress = Callable[[int, int, float | None], None]


class Executor(Protocol):
    """All that is asked of an executor: its futures need `result()`, and no more."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any: ...


class Swept:
    """What came of every point of a sweep, in order."""

    def __init__(self, sweep: _strata.Sweep) -> None:
        self._sweep = sweep

    def __len__(self) -> int:
        return len(self._sweep)

    def __getitem__(self, number: int) -> Result | str:
        """The result of a point, or why there is none."""
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        json_text, input_sha256, failed, _ = self._sweep.get(number % len(self)) or (None, None, None, False)
        if json_text is None:
            return failed or "interrupted before it was run"
        return Result(json_text, input_sha256)

    def __iter__(self) -> Iterator[Result | str]:
        return (self[number] for number in range(len(self)))

    @property
    def options(self) -> list[dict[str, Any]]:
        """What each point was run with."""
        return [json.loads(point) for point in self._sweep.points()]

    @property
    def failed(self) -> int:
        """How many points failed."""
        return self._sweep.missing()[0]

    @property
    def missing(self) -> int:
        """How many points were not reached, because somebody interrupted."""
        return self._sweep.missing()[1]

    def table(self) -> _strata.Table:
        """A row per point, stack and policy: where it is on each axis, its error, and the columns of a run."""
        return self._sweep.table()

    @property
    def json(self) -> str:
        """The bytes that `strata sweep --json` writes, but for the end of the line."""
        return self._sweep.json()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON, for `strata.read`."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.json + "\n")

    def __repr__(self) -> str:
        wrong = "".join(
            f", {number} {what}" for number, what in ((self.failed, "failed"), (self.missing, "missing")) if number
        )
        return f"<strata.Swept of {len(self)} points{wrong}>"


def _values(values: Any) -> Any:
    """A list of what can be one; a text is not, whose letters nobody wants to sweep. Others are refused later."""
    return values if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") else list(values)


def sweep(
    grid: Mapping[str, Any] | str | os.PathLike[str],
    executor: Executor | None = None,
    cache: str | os.PathLike[str] | Literal[False] | None = None,
    progress: bool | Progress | None = None,
    jobs: int | None = None,
    memory_bytes: int | None = None,
    **options: Any,
) -> Swept:
    """Runs every combination of the values of a grid.

    `grid` has a list of values for each option that has several; parameters are `set.NAME`. `options` are
    those of every point. Or `grid` is the name of a file as `strata sweep` takes it.

    Without an executor points run in this process, at most `jobs` at once (one per core unless something
    else is said) and only as many as fit into `memory_bytes`, or into this computer's memory. With one they
    are submitted to it, all at once.

    Results are kept in the directory `cache`, by all that they depend on, and not run again: in the user's
    cache if it is None, nowhere if it is False. A point that fails is a row with its error, and is tried again
    the next time. Ctrl-C gives what there is.
    """
    own: dict[str, _options.Given] = {}
    if isinstance(grid, Mapping):
        axes = {name if name.startswith("set.") else name.replace("_", "-"): _values(grid[name]) for name in grid}
        if isinstance(axes.get("policy"), list):
            axes["policy"] = _options.take_out(axes["policy"], own)
        axes["set"] = {name[4:]: axes.pop(name) for name in list(axes) if name.startswith("set.")}
        if not axes["set"]:
            del axes["set"]
        named = {**_options.options(options, own), "grid": _options.plain(axes)}
        points = _strata.Sweep.of(_options.text(named))
    elif options:
        raise ValueError("a sweep that is read from a file has its options there; leave the others out")
    else:
        points = _strata.Sweep.read(os.fspath(grid))
    directory = _strata.user_cache() if cache is None else cache or None
    directory = None if directory is None else os.fspath(directory)
    tell = _teller(progress)
    policies = list(own.values())
    if executor is None:
        points.run(directory, jobs, memory_bytes, tell, policies)
    else:
        _submit(points, executor, directory, tell, policies)
    return Swept(points)


def run_point(
    options: str, directory: Path | None, cache: str | None, policies: list[_options.Given]
) -> Parts:
    """What a worker does. Whatever a point fails of is its outcome; a worker that dies is not."""
    try:
        return _strata.run_point(options, directory, cache, policies)
    except Exception as error:
        return None, None, f"{type(error).__name__}: {error}", False


def _submit(
    points: _strata.Sweep,
    executor: Executor,
    cache: str | None,
    tell: Progress | None,
    policies: list[_options.Given],
) -> None:
    submitted = [
        executor.submit(run_point, point, points.directory, cache, policies) for point in points.points()
    ]
    since, made, number = time.monotonic(), 0, 0

    def take(number: int) -> bool:
        try:
            parts: Parts = tuple(submitted[number].result())  # type: ignore[assignment]
        except Exception as error:
            parts = (None, None, f"its worker failed: {type(error).__name__}: {error}", False)
        # Workers may share no disk with this process.
        points.set(number, parts, cache)
        return not parts[3]

    try:
        for number in range(len(submitted)):
            made += take(number)
            left = (time.monotonic() - since) / made * (len(submitted) - number - 1) if made else None
            if tell:
                tell(number + 1, len(submitted), left)
    except KeyboardInterrupt:
        # What has ended meanwhile is not lost; some executors cannot tell.
        for later, future in enumerate(submitted[number:], number):
            if getattr(future, "done", bool)():
                take(later)
            elif hasattr(future, "cancel"):
                future.cancel()


def _teller(progress: bool | Progress | None) -> Progress | None:
    if callable(progress):
        return progress
    if progress or (progress is None and sys.stderr.isatty()):
        return _print
    return None


def _print(done: int, of: int, left: float | None) -> None:
    words = f"{done} of {of} points"
    if left is not None and done < of:
        words += f", {left:.0f} s left" if left < 120 else f", {left / 60:.0f} min left"
    print(f"\r{words:<40}", end="\n" if done == of else "", file=sys.stderr, flush=True)

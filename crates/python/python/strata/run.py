"""Runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from . import _options, _strata
from .policy import Policy
from .result import Result


def run(
    *,
    workload: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    command: Sequence[str] | None = None,
    stack: str | Sequence[str] | None = None,
    policy: str | type[Policy] | Policy | Sequence[str | type[Policy] | Policy] | None = None,
    **options: Any,
) -> Result:
    """Runs a workload, a trace or a program, as `strata run` does, and gives the result.

    Options are those of the command line, with `_` for `-`: `run(workload="random:size=1GiB", memory="4GiB",
    set={"thp.scan_sleep": 5})`. `command` is what stands after `--` there. Other threads of Python run
    meanwhile. Ctrl-C gives the result of what was run until then (`result.partial`).
    """
    given = {"workload": workload, "trace": trace, "command": command, "stack": stack}
    own: dict[str, _options.Given] = {}
    named = _options.options({**given, "policy": policy, **options}, own)
    json_text, input_sha256, failed = _strata.run(_options.text(named), list(own.values()))
    result = Result(json_text, input_sha256)
    if failed is not None:
        error = _strata.StrataError(failed)
        error.result = result  # type: ignore[attr-defined]
        raise error
    return result

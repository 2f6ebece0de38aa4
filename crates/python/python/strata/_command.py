"""The command `strata`: the program itself, which the wheel has beside the module."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_BIN = Path(__file__).parent / "bin"


def main() -> None:
    """Becomes the program, so that signals, exit status and standard streams are its own."""
    program = _BIN / "strata"
    try:
        os.execv(program, ["strata", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"strata: {program}: {error.strerror}; install the wheel anew")


def _find_plugin() -> None:
    """Says where the plugin is that live runs load, unless somebody said so."""
    plugin = _BIN / "libstrata_plugin.so"
    if plugin.exists():
        os.environ.setdefault("STRATA_PLUGIN", str(plugin))

"""What all tests use."""

from __future__ import annotations

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(pathlib.Path(__file__).parent))

#: A run of a moment.
SMALL = {"workload": "random:size=16MiB,accesses=50k", "stack": "vm"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Results of other tests are not taken for those of this one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

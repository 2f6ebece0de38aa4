"""Every block of docs/python.md runs, and so does the notebook."""

from __future__ import annotations

import json
import re

from conftest import ROOT


def test_every_block_of_the_manual_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "manual"}
    for block in blocks:
        line = text[: text.index(block)].count("\n") + 1
        # Lines of the page in what goes wrong.
        exec(compile("\n" * (line - 1) + block, "docs/python.md", "exec"), names)


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs/sweep.ipynb").read_text())
    assert notebook["nbformat"] == 4
    names: dict[str, object] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None, "clear the outputs"
        exec(compile("".join(cell["source"]), "docs/sweep.ipynb", "exec"), names)
    assert len(names["axes"].get_lines()) == 3
    assert (tmp_path / "fmfi.png").stat().st_size > 10_000

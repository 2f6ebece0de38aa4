"""Runs and their results."""

from __future__ import annotations

import logging
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import strata
from conftest import ROOT, SMALL

PROGRAM = pathlib.Path(strata.__file__).parent / "bin" / "strata"


def command_line(*words, cwd):
    return subprocess.run([PROGRAM, *words], cwd=cwd, check=True, capture_output=True, text=True)


def test_a_run_has_the_bytes_of_the_command_line(tmp_path):
    result = strata.run(**SMALL, policy=["base", "thp"], fragmentation=0.5, set={"thp.scan_sleep": 5})
    words = ["run", "--workload", SMALL["workload"], "--stack", "vm", "--policy", "base,thp"]
    command_line(
        *words, "--fragmentation", "0.5", "--set", "thp.scan_sleep=5", "--json", "a.json", cwd=tmp_path
    )
    assert result.json + "\n" == (tmp_path / "a.json").read_text()
    assert strata.read(tmp_path / "a.json") == result


def test_a_result_has_attributes_and_shows_itself(tmp_path):
    result = strata.run(**SMALL, policy=["base", "thp"], detail=True)
    assert [run.policy for run in result.runs] == ["base", "thp"]
    assert result.runs[1].cycles < result.runs[0].cycles
    assert result.to_dict()["runs"][0]["tlb"]["l2_misses"] == result.runs[0].tlb.l2_misses
    assert result.sentences()[0].startswith("Under base, faults and exits take")
    shown = result._repr_html_()
    assert shown.startswith("<iframe") and "&lt;svg" in shown and "<svg" not in shown
    assert repr(result) == "<strata.Result: random:size=16MiB,accesses=50k on vm/base, vm/thp>"
    result.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == result.html()
    with pytest.raises(AttributeError, match="there is no 'cylces'"):
        result.runs[0].cylces


def test_a_host_of_vms_is_run():
    vms = [{"name": name, "workload": SMALL["workload"], "memory": "64MiB"} for name in ("a", "b")]
    result = strata.run(vm=vms, stack="vm", policy="thp")
    rows = result.table().rows()
    assert [(row["vm"], row["policy"]) for row in rows] == [("a", "thp"), ("b", "thp")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "tpp"}, "no policy is called 'tpp'; did you mean 'thp'?"),
        ({"polcy": "thp"}, "no key is called 'polcy'; did you mean 'policy'?"),
        ({"levels": 7}, "from 4 to 5"),
        ({"workload": "random:size=1EiBB"}, "random"),
        ({"trace": "a", "workload": SMALL["workload"]}, "choose one"),
        ({"seed": object()}, "takes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_words_of_the_command_line(options, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        strata.run(**{**SMALL, **options})


def test_what_does_not_work_is_an_exception():
    with pytest.raises(strata.StrataError, match="to run a program write it after --"):
        strata.run(trace="/nonexistent.strata")


def test_a_stream_that_breaks_off_leaves_what_there_was(tmp_path):
    command_line(
        "record", "-o", "whole.strata", "--workload", "random:size=16MiB,accesses=500k", cwd=tmp_path
    )
    trace = tmp_path / "cut.strata"
    trace.write_bytes((tmp_path / "whole.strata").read_bytes()[:-20_000])
    with pytest.raises(strata.StrataError, match="cut short") as raised:
        strata.run(trace=trace, stack="vm", policy="base")
    assert raised.value.result.partial
    assert raised.value.result.runs[0].accesses > 0


@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="no emulator")
def test_notes_are_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="strata"):
        strata.run(command=["true"], stack="vm", policy="base", jobs=1)
    assert any("--jobs" in record.getMessage() for record in caplog.records)


@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="no emulator")
def test_a_program_is_run_live(tmp_path):
    result = strata.run(command=["true"], stack=["native", "vm"], policy="thp")
    assert result.workload.kind == "live" and result.workload.exit_status == 0
    assert result.runs[0].accesses > 1000
    assert result.input_sha256 is None


def test_without_an_emulator_a_live_run_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(strata.StrataError, match="qemu-x86_64"):
        strata.run(command=["/bin/true"], stack="vm", policy="thp")


def test_other_threads_run_meanwhile():
    counted = 0
    over = threading.Event()

    def count():
        nonlocal counted
        while not over.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    since = time.monotonic()
    strata.run(workload="random:size=64MiB,accesses=1M", stack="nested", policy="base")
    seconds = time.monotonic() - since
    over.set()
    thread.join()
    # A thread that waited for the run would have counted to one or two.
    assert counted > min(20, seconds * 20)


def test_ctrl_c_gives_the_partial_result(tmp_path):
    script = """
import strata
result = strata.run(workload="random:size=64MiB,accesses=100G", stack="vm", policy="base")
print(result.partial, result.partial_reason, result.runs[0].accesses > 0, len(result.table()))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said == "True interrupted by Ctrl-C True 1\n"
    assert process.returncode == 0


def test_the_table_is_tidy():
    result = strata.run(**SMALL, policy=["base", "thp"], seed=7)
    table = result.table()
    assert len(table) == 2 and table.columns[:4] == ["workload", "vm", "stack", "policy"]
    first, second = table.rows()
    assert first["cycles"] == result.runs[0].cycles
    assert first["seed"] == 7 and first["l1_faults"] is None
    assert first["configuration_sha256"] != second["configuration_sha256"]
    assert first["input_sha256"] == second["input_sha256"] == result.input_sha256
    alone = strata.run(**SMALL, policy="thp", seed=7).table().rows()[0]
    assert {**alone, "relative_throughput": 0} == {**second, "relative_throughput": 0}
    assert table.to_csv().splitlines()[0] == ",".join(table.columns)
    assert table.to_dict()["policy"] == ["base", "thp"]


def test_estimates_of_a_sampled_run_say_so_and_have_bounds():
    options = {"workload": "random:size=16MiB,accesses=300k", "stack": "vm", "policy": "base"}
    result = strata.run(**options, sample="interval=60k,window=5k,warm=5k")
    row = result.table().rows()[0]
    assert row["sampled"] == 1 and row["cycles_low"] < row["cycles"] < row["cycles_high"]
    assert "Sampled: figures with ~ are estimated" in result._repr_html_()
    assert result.sentences()[0].startswith("Sampled: figures with ~ are estimated")
    whole = strata.run(**options)
    row = whole.table().rows()[0]
    assert row["sampled"] == 0 and row["cycles_low"] is None
    assert "Sampled: figures with" not in whole._repr_html_()


def test_the_table_goes_through_arrow():
    import pandas
    import polars
    import pyarrow

    result = strata.run(**SMALL, policy=["base", "thp", "aligned"])
    table = result.table()
    arrow = pyarrow.table(table)
    arrow.validate(full=True)
    assert arrow.to_pylist() == table.rows()
    types = {str(field.type) for field in arrow.schema}
    assert types == {"int64", "double", "string"}
    assert arrow["l1_faults"].null_count == 3
    # The table is there still, to be asked again, and outlives who asked.
    again = pyarrow.RecordBatchReader.from_stream(table)
    del table, result
    assert again.read_all() == arrow
    frame = polars.DataFrame(arrow)
    assert frame["policy"].to_list() == ["base", "thp", "aligned"]
    assert polars.DataFrame(strata.run(**SMALL, policy="base").table()).height == 1
    assert pandas.DataFrame.from_arrow(arrow)["cycles"].dtype == "int64"


def test_a_stream_that_nobody_reads_frees_itself():
    import resource

    table = strata.run(**SMALL, policy=["base", "thp"]).table()
    for _ in range(1000):
        table.__arrow_c_stream__()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import pyarrow

    for _ in range(3000):
        table.__arrow_c_stream__()
        pyarrow.table(table)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # A table has some 10 kB: three thousand that were lost would be 30 MB.
    assert grown < 20_000


def test_what_was_written_before_is_read(tmp_path):
    trace = tmp_path / "lackey.txt"
    trace.write_text("".join(f" L {0x1000 + 64 * i:x},8\n" for i in range(5000)))
    recording = strata.read(trace)
    assert recording.path == str(trace)
    assert recording.run(stack="vm", policy="base").runs[0].accesses == 5000
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"a": 1}')
    with pytest.raises(strata.StrataError):
        strata.read(wrong)


def test_the_command_is_the_program(tmp_path):
    command = pathlib.Path(sys.executable).parent / "strata"
    printed = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    assert printed.stdout == f"strata {strata.__version__}\n"
    wrong = subprocess.run([command, "rn"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("strata: ")


def test_types_are_told():
    assert (pathlib.Path(strata.__file__).parent / "py.typed").exists()
    stub = (ROOT / "crates/python/python/strata/_strata.pyi").read_text()
    for name in dir(strata._strata):
        if not name.startswith("_"):
            assert f"class {name}" in stub or f"def {name}" in stub, name
            for member in vars(strata._strata)[name].__dict__ if name[0].isupper() else ():
                if not member.startswith("_"):
                    assert member in stub, f"{name}.{member}"

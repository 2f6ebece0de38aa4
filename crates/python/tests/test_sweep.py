"""Sweeps, here and elsewhere."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import strata
from conftest import SMALL

GRID = {"fragmentation": [0, 0.9], "policy": ["base", "thp", "nope"]}
PROGRAM = pathlib.Path(strata.__file__).parent / "bin" / "strata"


def alone():
    return [
        strata.run(**SMALL, fragmentation=fmfi, policy=policy).json
        for fmfi in GRID["fragmentation"]
        for policy in GRID["policy"]
        if policy != "nope"
    ]


def whole(swept):
    return [point.json for point in swept if isinstance(point, strata.Result)]


def test_a_sweep_is_its_points_alone(tmp_path):
    told = []
    swept = strata.sweep(GRID, cache=tmp_path / "c", progress=lambda *done: told.append(done), **SMALL)
    assert len(swept) == 6 and swept.failed == 2 and swept.missing == 0
    assert whole(swept) == alone()
    assert "no policy is called 'nope'" in swept[2]
    assert sorted(done for done, _, _ in told) == [1, 2, 3, 4, 5, 6]
    assert all(of == 6 for _, of, _ in told) and max(told)[2] == 0
    rows = swept.table().rows()
    assert [(row["fragmentation"], row["grid.policy"]) for row in rows[:3]] == [
        (0, "base"),
        (0, "thp"),
        (0, "nope"),
    ]
    assert rows[0]["error"] is None and rows[0]["cycles"] > rows[1]["cycles"]
    assert "nope" in rows[2]["error"] and rows[2]["cycles"] is None
    swept.save(tmp_path / "s.json")
    assert strata.read(tmp_path / "s.json").table().rows() == rows


def test_what_is_known_is_not_run_again(tmp_path):
    def made(**options):
        kept = tmp_path / "c"
        before = set(kept.iterdir()) if kept.exists() else set()
        strata.sweep({"policy": ["base", "thp"]}, cache=kept, **{**SMALL, **options})
        return len(set(kept.iterdir()) - before)

    assert made() == 2
    assert made() == 0
    assert made(seed=2) == 2
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f" L {0x1000 + 64 * i:x},8\n" for i in range(5000)))
    assert made(workload=None, trace=trace) == 2
    assert made(workload=None, trace=trace) == 0
    # Another file of the same name.
    trace.write_text("".join(f" L {0x1000 + 128 * i:x},8\n" for i in range(5000)))
    assert made(workload=None, trace=trace) == 2
    assert made() == 0


def test_the_command_line_sweeps_the_same(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        f'workload = "{SMALL["workload"]}"\nstack = "vm"\n[grid]\n'
        'fragmentation = [0, 0.9]\npolicy = ["base", "thp", "nope"]\n'
    )
    words = [PROGRAM, "sweep", "sweep.toml", "--json", "s.json", "--csv", "s.csv", "--cache", "c"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "2 of 6 points failed" in done.stderr
    swept = strata.sweep(file, cache=False)
    assert swept.json + "\n" == (tmp_path / "s.json").read_text()
    assert swept.table().to_csv() == (tmp_path / "s.csv").read_text()
    assert swept.json == strata.sweep(GRID, cache=False, **SMALL).json


def test_memory_is_not_taken_twice(tmp_path):
    # No two points fit into a megabyte: they are run one after the other, and all the same.
    grid = {"policy": ["base", "thp", "gemini"]}
    narrow = strata.sweep(grid, cache=False, jobs=3, memory_bytes=1 << 20, **SMALL)
    assert narrow.json == strata.sweep(grid, cache=False, jobs=3, **SMALL).json


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors_of_the_standard_library_do(kind, tmp_path):
    if kind == "threads":
        pool = concurrent.futures.ThreadPoolExecutor(2)
    else:
        import multiprocessing

        pool = concurrent.futures.ProcessPoolExecutor(
            2, mp_context=multiprocessing.get_context("spawn")
        )
    with pool:
        swept = strata.sweep(GRID, executor=pool, cache=tmp_path / "c", **SMALL)
    assert whole(swept) == alone()
    assert swept.failed == 2 and "no policy is called 'nope'" in swept[2]
    assert swept.json == strata.sweep(GRID, cache=tmp_path / "c", **SMALL).json


def test_any_executor_with_submit_and_result_does(tmp_path):
    class Future:
        def __init__(self, function, arguments):
            self.work = function, arguments

        def result(self):
            function, arguments = self.work
            return function(*arguments)

    class Bare:
        def submit(self, function, *arguments):
            return Future(function, arguments)

    kept = tmp_path / "c"
    swept = strata.sweep(GRID, executor=Bare(), cache=kept, **SMALL)
    assert whole(swept) == alone()
    assert len(list(kept.iterdir())) == 4


def test_a_worker_that_fails_costs_its_point_only(tmp_path):
    class Lost:
        def __init__(self, number):
            self.number = number

        def submit(self, function, *arguments):
            future = concurrent.futures.Future()
            self.number -= 1
            if self.number == 0:
                future.set_exception(OSError("gone"))
            else:
                future.set_result(function(*arguments))
            return future

    grid = {"policy": ["base", "thp"]}
    swept = strata.sweep(grid, executor=Lost(1), cache=tmp_path / "c", **SMALL)
    assert swept.failed == 1 and swept[0] == "its worker failed: OSError: gone"
    assert strata.sweep(grid, cache=tmp_path / "c", **SMALL).failed == 0


def test_a_policy_in_python_is_swept(tmp_path):
    from test_policy import Utilization

    grid = {"policy": ["base", Utilization], "fragmentation": [0, 0.5]}
    here = strata.sweep(grid, cache=tmp_path / "c", **SMALL)
    assert here.failed == 0
    assert not (tmp_path / "c").exists(), "what a class does cannot be told from its name"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert strata.sweep(grid, executor=pool, cache=False, **SMALL).json == here.json


def test_dask_loses_nothing_when_a_worker_is_killed(tmp_path):
    from distributed import Client, LocalCluster

    grid = {"seed": list(range(1, 13)), "policy": ["base", "thp"]}
    options = {"workload": "random:size=32MiB,accesses=2M", "stack": "vm"}
    with (
        LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        killed = []

        def kill(done, of, left):
            if done == 2 and not killed:
                # The one that has something to do, so that it is lost with it.
                busy = max(client.processing().items(), key=lambda worker: len(worker[1]))[0]
                killed.append(pids[busy])
                os.kill(killed[0], signal.SIGKILL)

        pids = client.run(os.getpid)
        swept = strata.sweep(grid, executor=client.get_executor(), cache=False, progress=kill, **options)
        assert killed and killed[0] not in client.run(os.getpid).values()
    assert swept.failed == swept.missing == 0
    assert swept.json == strata.sweep(grid, cache=False, **options).json


def test_ctrl_c_gives_what_there_is(tmp_path):
    script = f"""
import strata
grid = {{"seed": list(range(1, 1000))}}
swept = strata.sweep(grid, cache={str(tmp_path / "c")!r}, jobs=1, policy="base", **{SMALL!r})
print(swept.missing > 0, swept.failed, len(swept) - swept.missing > 0)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    kept = tmp_path / "c"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (kept.exists() and any(kept.iterdir())):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said == "True 0 True\n"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"policy": []}, "no list of values"),
        ({"policy": "base"}, "no list of values"),
        ({"seed": 1}, "no list of values"),
        ({"stack": ["vm"], "seed": [1]}, "in the grid and beside it"),
    ],
)
def test_grids_that_make_no_sense_are_refused(grid, words):
    with pytest.raises(ValueError, match=words):
        strata.sweep(grid, **SMALL)


def test_the_json_of_a_sweep_says_what_each_point_was(tmp_path):
    swept = strata.sweep({"set.thp.scan_sleep": [1, 10]}, cache=False, policy="thp", **SMALL)
    points = json.loads(swept.json)["sweep"]
    assert [point["place"] for point in points] == [{"set.thp.scan_sleep": n} for n in (1, 10)]
    assert [point["result"]["options"]["set"] for point in points] == [
        {"thp.scan_sleep": "1"},
        {"thp.scan_sleep": "10"},
    ]
    assert swept.options[0]["set"] == {"thp.scan_sleep": 1}


class _Future:
    """Of an executor that did all at once, and whose user presses Ctrl-C while the second is waited for."""

    def __init__(self, number, value):
        self.number, self.value = number, value

    def result(self):
        if self.number == 1:
            raise KeyboardInterrupt
        return self.value

    def done(self):
        return self.number != 1

    def cancel(self):
        assert self.number == 1


class _Interrupted:
    def __init__(self):
        self.number = -1

    def submit(self, function, *arguments):
        self.number += 1
        return _Future(self.number, function(*arguments))


def test_ctrl_c_keeps_what_an_executor_has_done(tmp_path):
    grid = {"seed": [1, 2, 3, 4]}
    swept = strata.sweep(grid, executor=_Interrupted(), cache=tmp_path, policy="base", **SMALL)
    assert (swept.failed, swept.missing) == (0, 1)
    assert [row["error"] is None for row in swept.table().rows()].count(True) == 3

"""Policies in Python."""

from __future__ import annotations

import json
import re

import pytest
import strata
from conftest import ROOT

PAGES = 512


class Utilization(strata.Policy):
    """promotes a region once most of it is in use, in every layer on its own"""

    def __init__(self, threshold=0.9):
        self.threshold = threshold

    def settings(self, at):
        return strata.Settings(thp="always")

    def place(self, node, kernel, fault):
        return "base"

    def mapped(self, stack, node, fault, size):
        how, present = stack.region(node, fault.space, fault.page)
        if how == "base" and present >= self.threshold * PAGES:
            stack.collapse(node, fault.space, fault.page)


#: What crates/strata/tests/integration/same_bytes.rs runs, with the same policy in Rust.
OPTIONS = {
    "workload": "zipf:size=48MiB,accesses=200k",
    "stack": ["native", "vm", "nested"],
    "fragmentation": 0.5,
    "memory": "128MiB",
}


def test_the_same_idea_in_rust_gives_the_same_bytes():
    result = strata.run(**OPTIONS, policy=["base", Utilization])
    found = result.to_dict()
    del found["version"]
    golden = json.loads((ROOT / "crates/strata/tests/golden/own-policy.json").read_text())
    assert found == golden
    promoted = [run for run in result.runs if run.policy == "utilization" and run.promotions]
    assert promoted, "it did nothing, so that nothing was compared"


def test_the_hooks_are_those_of_the_guide():
    guide = (ROOT / "docs/adding-a-policy.md").read_text()
    hooks = re.findall(r"^\| `(\w+)\(", guide, re.MULTILINE)
    source = (ROOT / "crates/python/python/strata/policy.py").read_text()
    typed = re.findall(r"^        def (\w+)\(self", source, re.MULTILINE)
    assert typed == hooks
    passed_on = (ROOT / "crates/python/src/policy/python.rs").read_text()
    listed = re.search(r"HOOKS[^=]*= \[(.*?)\]", passed_on, re.DOTALL).group(1)
    assert re.findall(r'"(\w+)"', listed) == hooks


def run(policy, **options):
    given = {"workload": "random:size=16MiB,accesses=50k", "stack": "nested", "fragmentation": "none"}
    return strata.run(**{**given, **options}, policy=policy)


def test_an_object_is_copied_for_every_machine():
    policy = Utilization(threshold=2)
    policy.name = "never"
    result = run([policy, Utilization], stack=["vm", "nested"])
    huge = {(run.stack, run.policy): run.alignment.guest_huge for run in result.runs}
    assert huge["vm", "never"] == huge["nested", "never"] == 0
    assert huge["vm", "utilization"] > 0


def test_a_hook_that_is_not_there_is_linux():
    class Nothing(strata.Policy):
        pass

    nothing, thp = run([Nothing, "thp"]).to_dict()["runs"]
    assert {**nothing, "policy": "thp"} == {**thp, "relative_throughput": nothing["relative_throughput"]}


def test_every_hook_is_asked():
    asked = set()

    class Curious(strata.Policy):
        def __getattr__(self, name):
            raise AttributeError(name)

    answers = {
        "settings": lambda *_: strata.Settings(),
        "vm_memory": lambda *_: "default",
        "place": lambda *_: "linux",
        "wants_backs": lambda: True,
        "mapped_at_once": lambda vm: 16,
        "may_move": lambda *_: True,
        "memory_short": lambda node, kernel: kernel.release_all_regions() > 0,
        "next_wake": lambda vm: 0.001,
        "placement": lambda *_: {"backed": 7},
        "trade": lambda *_: {"rows": 3},
    }

    def hook(name):
        def answer(self, *told):
            asked.add(name)
            return answers.get(name, lambda *_: None)(*told)

        return answer

    for name in ("mapped", "second_stage_written", "wake", "freed_huge", *answers):
        setattr(Curious, name, hook(name))
    result = run(Curious, workload="random:size=32MiB,accesses=200k", fragmentation=0.3)
    always = {"settings", "vm_memory", "place", "mapped_at_once", "mapped"}
    assert always | {"second_stage_written", "wake"} <= asked
    counters = result.runs[0].counters
    assert counters["strata.coloured_pages"] == 7 and counters["strata.rows_chosen"] == 3


def test_the_stack_can_be_looked_at_and_changed():
    seen = {}

    class Looks(strata.Policy):
        def place(self, node, kernel, fault):
            seen["free"] = kernel.free_frames <= kernel.frames
            return "base"

        def mapped(self, stack, node, fault, size):
            seen["kept"] = stack
            seen["size"] = size
            at = stack.position(node)
            if not at.is_guest or "moved" in seen:
                return
            frame = stack.frame(node, fault.space, fault.page)
            wanted = next(n for n in range(100, stack.frames(node)) if stack.is_free(node, n))
            assert stack.migrate(node, fault.space, fault.page, wanted)
            assert stack.frame(node, fault.space, fault.page) == wanted != frame
            assert stack.above(stack.below(node), stack.vm_process(node)) == node
            seen["moved"] = True
            with pytest.raises(ValueError, match="there is no kernel 99"):
                stack.free_frames(99)
            with pytest.raises(ValueError, match="there is no frame"):
                stack.migrate(node, fault.space, fault.page, 1 << 40)

    run(Looks)
    assert seen["moved"] and seen["free"] and seen["size"] == "4k"
    with pytest.raises(RuntimeError, match="a hook that has ended"):
        seen["kept"].nodes()


def test_a_hook_that_is_asked_may_not_change_anything():
    class Meddles(strata.Policy):
        def place(self, node, kernel, fault):
            return "base"

        def mapped(self, stack, node, fault, size):
            stack.collapse(node, fault.space, fault.page)

        def may_move(self, stack, asked):
            stack.migrate(asked.node, asked.space, asked.page, 0)
            return True

    with pytest.raises(RuntimeError, match="may look at the stack and not change it"):
        run(Meddles)


def test_an_exception_ends_the_run_and_is_raised():
    class Fails(strata.Policy):
        def mapped(self, stack, node, fault, size):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(Fails, workload="random:size=16MiB,accesses=10G")


def test_an_answer_that_makes_no_sense_is_named():
    class Odd(strata.Policy):
        def place(self, node, kernel, fault):
            return "upstairs"

    with pytest.raises(ValueError, match="place is 'upstairs'; give one of 'linux', 'base'"):
        run(Odd)


def test_a_name_that_is_taken_is_refused():
    class Thp(strata.Policy):
        pass

    with pytest.raises(ValueError, match="there is a policy called 'thp'"):
        run(Thp)
    with pytest.raises(ValueError, match="two policies are called 'utilization'"):
        run([Utilization, Utilization(0.5)])

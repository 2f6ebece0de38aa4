"""From Python's arguments to the options of the command line."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from .policy import Policy

# A name, what it does in one line, and what makes one for each machine.
Given = tuple[str, str, Callable[[], Any]]


def plain(value: Any) -> Any:
    """A value as JSON has it: paths are texts, numbers of other libraries are numbers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "item"):
        return value.item()
    return value


def own(policy: Any) -> Given | None:
    """What is to be known of a policy in Python; None for the name of one that is built in."""
    if isinstance(policy, type) and issubclass(policy, Policy):
        return *_about(policy, policy), policy
    if isinstance(policy, Policy):
        # Every machine has its own, as it was when it was given.
        return *_about(policy, type(policy)), functools.partial(copy.deepcopy, policy)
    return None


def _about(policy: Any, its_class: type[Policy]) -> tuple[str, str]:
    lines = (its_class.__doc__ or "").strip().splitlines()
    about = lines[0] if lines else f"the class {its_class.__qualname__} of {its_class.__module__}"
    return policy.name or its_class.__name__.lower(), about


def take_out(policies: Any, found: dict[str, Given]) -> Any:
    """The names of policies; those in Python are put into `found`."""
    if isinstance(policies, (list, tuple)):
        return [take_out(policy, found) for policy in policies]
    given = own(policies)
    if given is None:
        return policies
    if given[0] in found:
        raise ValueError(f"two policies are called '{given[0]}'; give one of them another name")
    found[given[0]] = given
    return given[0]


def options(given: Mapping[str, Any], found: dict[str, Given]) -> dict[str, Any]:
    """Options under the names of the command line. Those that are None are left out."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        name = {"command": "program"}.get(name, name).replace("_", "-")
        if name == "policy":
            value = take_out(value, found)
        if name == "vm":
            value = [
                {**vm, "policy": take_out(vm["policy"], found)} if "policy" in vm else vm
                for vm in value
            ]
            value = [{key.replace("_", "-"): inner for key, inner in vm.items()} for vm in value]
        named[name] = plain(value)
    return named


def text(given: Mapping[str, Any]) -> str:
    """Options as the module takes them."""
    try:
        return json.dumps(given, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"an option has a value that none takes: {error}") from None

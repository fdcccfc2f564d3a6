"""What the parts of bench/gpu_all.py have left: which of several tries counts, and what is left to
try after a crash.

A step, such as `moves`, may run as several parts: after a crash another process goes on behind what
crashed ("moves, staged"), and loaders that lack memory run with more ("epochs, 5GiB").
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

from _gpu_epochs import speedups_of_gnndrive
from _gpu_moves import MEASURE, ROW_BYTES

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.common.memory import parse_size

EACH = len(MEASURE) * len(ROW_BYTES)  # moves that a way has with a set of switches

Result = dict[str, Any]


def step_of(name: str) -> str:
    """The step that a part belongs to."""
    return "graph" if name == "smaller graph" else name.partition(",")[0]


def of_step(results: Result, step: str) -> list[str]:
    """The parts of a step."""
    return [name for name in results["parts"] if step_of(name) == step]


def moves_of(results: Result, *steps: str) -> list[Result]:
    """All moves that the parts of steps have measured."""
    return [
        move for name, ran in results["parts"].items() if step_of(name) in steps
        for move in ran["result"].get("moves", [])
    ]  # fmt: skip


# ---- after a crash


def working_ways(results: Result) -> list[str]:
    """The ways of which all moves were measured, and that failed at nothing; the preferred one
    first."""
    results_of = [results["parts"][name]["result"] for name in of_step(results, "moves")]
    failed = {way for found in results_of for way in _failed(found)}
    count = Counter(move["way"] for move in moves_of(results, "moves"))
    return [way for way in WAYS if count[way] == EACH and way not in failed]


def ways_behind(ways: Sequence[str], found: Result) -> list[str]:
    """The ways that another process should measure, behind the one at which this one failed.

    Args:
        ways: what the process was asked for, in order.
        found: its results.
    """
    count = Counter(move["way"] for move in found.get("moves", []))
    failed = _failed(found)
    unavailable = {line.partition(":")[0] for line in found.get("unavailable", [])}

    def ended(way: str) -> bool:
        return way not in failed and (count[way] == EACH or way in unavailable)

    return [way for way in list(dropwhile(ended, ways))[1:] if count[way] < EACH]


def _failed(found: Result) -> set[str]:
    """The ways in the notes of what failed, such as "h2d, staged, 512 B, defaults: an error"."""
    return {word for line in found.get("failed", []) for word in line.split(", ")[1:2]}


def sets_behind(sets: Sequence[str], found: Result) -> list[str]:
    """The sets of switches that wait behind the one at which a process crashed: the last that has
    moves, or the one behind it if that one has all."""
    done = [move["switches"] for move in found.get("moves", [])]
    if not done:
        return list(sets[1:])
    return list(sets[sets.index(done[-1]) + 1 + (done.count(done[-1]) == EACH) :])


# ---- the tries of the epochs


def epoch_tries(results: Result) -> list[str]:
    """The tries of the epochs, the one with the least memory first."""

    def budget(name: str) -> float:
        given = results["parts"][name]["result"].get("host_budget")
        return parse_size(given, "host_budget") if given else math.inf

    return sorted(of_step(results, "epochs"), key=budget)


def try_with(results: Result, loader: str) -> str:
    """The try in which gnndrive is compared with a loader under the least memory; without one, the
    last that has any epochs, or the last."""
    tries = epoch_tries(results)

    def epochs(name: str) -> list[Result]:
        return list(results["parts"][name]["result"].get("epochs", []))

    compared = [name for name in tries if speedups_of_gnndrive(epochs(name), loader)]
    ended = [name for name in tries if epochs(name)]
    return compared[0] if compared else (ended or tries or ["epochs"])[-1]


def epochs_of_gnndrive(results: Result) -> Result:
    """The result of the first try in which an epoch of gnndrive ended, or {}."""
    for name in epoch_tries(results):
        found: Result = results["parts"][name]["result"]
        if any(one["loader"] == "gnndrive" for one in found.get("epochs", [])):
            return found
    return {}


# ---- earlier results


def earlier(file: Path, rehearsal: bool, asked: Sequence[str]) -> Result:
    """What an earlier call has left of the steps that are not asked for now; {} if nothing.

    Args:
        file: its results.json.
        rehearsal: whether this call is one; figures of a fake GPU and of a real one do not mix.
        asked: the steps of this call.
    """
    try:
        found: Result = json.loads(file.read_text(encoding="utf-8"))
        parts = {name: ran for name, ran in found["parts"].items() if step_of(name) not in asked}
        same = found["rehearsal"] == rehearsal
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}
    return found | {"parts": parts} if parts and same else {}

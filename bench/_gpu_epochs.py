"""The part of bench/gpu.py that runs whole epochs: the loaders in rounds, within a time."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epoch
from _limits import Cgroup

from gnndrive.common.errors import GNNDriveError

SCRIPT = str(Path(__file__).with_name("gpu.py"))
PILOT_BATCHES = 2
FEW_BATCHES = 6  # rather one round of so many batches than several of fewer
SLOWER = 1.25  # a loader may take so many times as long as the pilot did

Clock = Callable[[], float]


class Epochs:
    """Runs the loaders, round after round, until the rounds or the time are used up.

    Args:
        own: the script's options; `seconds` is the time, or None for no limit.
        options: bench/epoch.py's options.
        group: memory group of the loaders.
        found: gets the results in `epochs`, and in `failed` which loader failed and why.
        save: called after each result.
        clock: seconds.
    """

    def __init__(
        self,
        own: argparse.Namespace,
        options: argparse.Namespace,
        group: Cgroup | None,
        found: dict[str, Any],
        save: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._own, self._options, self._group = own, options, group
        self._found, self._save, self._clock = found, save, clock
        self._ends = None if own.seconds is None else clock() + own.seconds
        self._failed: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Run all rounds.

        Raises:
            SystemExit: the loaders did not train on the same batches.
        """
        turns = [
            (name, switches)
            for switches in self._own.switch
            for name in self._own.gpu_loaders
            if name == "gnndrive" or switches == self._own.switch[0]
        ]
        batches, longest = self._batches(len(turns)), 0.0
        for number in range(self._own.runs):
            began = self._clock()
            if number and self._left(longest) < longest:
                print(f"no time for round {number}, {longest:.0f} s", file=sys.stderr)
                break
            if number and self._ends is not None and killed(self._found):
                print(f"no round {number}: a loader needs more memory", file=sys.stderr)
                break
            for name, switches in turns:
                if (name, switches) not in self._failed:
                    self._one(name, switches, number, batches)
            longest = max(longest, self._clock() - began)
        if not same_batches(self._found["epochs"]):
            sys.exit(
                "the loaders did not train on the same batches, so their times cannot be compared"
            )

    def _left(self, otherwise: float) -> float:
        """Seconds that are left, or `otherwise` if there is no limit."""
        return otherwise if self._ends is None else self._ends - self._clock()

    def _batches(self, turns: int) -> int:
        """As many batches as fit into the time, by a short run of the first loader."""
        most: int = self._options.batches
        if self._ends is None or most <= PILOT_BATCHES:
            return most
        began = self._clock()
        try:
            pilot = self._spawn(self._own.gpu_loaders[0], self._own.switch[0], PILOT_BATCHES)
        except SystemExit as error:
            self._fail(self._own.gpu_loaders[0], self._own.switch[0], error)
            return min(most, FEW_BATCHES)
        set_up = self._clock() - began - pilot["elapsed_s"]
        left = self._left(0.0)
        return batches_in(
            left, turns, set_up, pilot["elapsed_s"] / PILOT_BATCHES, self._own.runs, most
        )

    def _one(self, name: str, switches: str, number: int, batches: int) -> None:
        """Run a loader once, and keep its result or its error."""
        began = self._clock()
        try:
            result = self._spawn(name, switches, batches)
        except SystemExit as error:
            self._fail(name, switches, error)
            return
        more = {"run": number, "switches": switches, "wall_s": self._clock() - began}
        more["s_per_batch"] = result["elapsed_s"] / result["batches"]
        self._found["epochs"].append(result | more)
        self._save()

    def _fail(self, name: str, switches: str, error: SystemExit) -> None:
        self._failed.add((name, switches))
        self._found["failed"].append(f"epoch, {name}, {switches}: {error}")
        self._save()

    def _spawn(self, name: str, switches: str, batches: int) -> dict[str, Any]:
        """Run a loader in a separate process.

        Raises:
            SystemExit: it failed, or the time was up.
        """
        given = [*self._options.given, "--batches", str(batches), "--switch", switches]
        options = argparse.Namespace(**vars(self._options) | {"given": given, "batches": batches})
        left = None if self._ends is None else max(self._left(0.0), 0.1)
        try:
            return epoch.spawn(name, options, self._group, SCRIPT, left, self._ends is None)
        except subprocess.TimeoutExpired:
            sys.exit(f"{name} had not ended when the time was up")
        except GNNDriveError as error:  # such as a memory group that cannot be made
            sys.exit(str(error))


def batches_in(
    seconds: float, turns: int, set_up_s: float, batch_s: float, rounds: int, most: int
) -> int:
    """Batches for each loader so that as many rounds as possible, at most `rounds`, fit.

    Args:
        seconds: the time for all rounds.
        turns: loaders in a round.
        set_up_s: seconds that a loader takes before its first batch.
        batch_s: seconds a batch of a slow loader.
        rounds: rounds that are wanted, at least 1; fewer if each had less than `FEW_BATCHES`
            batches.
        most: batches that are wanted.
    """
    for wanted in range(rounds, 0, -1):
        batches = int((seconds / wanted / turns - set_up_s) / (SLOWER * batch_s))
        if batches >= min(FEW_BATCHES, most):
            break
    return max(PILOT_BATCHES, min(batches, most))


def killed(found: dict[str, Any]) -> bool:
    """Whether a loader was killed, as one is that exceeds its memory limit."""
    return any("(killed" in line for line in found.get("failed", []))


def same_batches(results: list[dict[str, Any]]) -> bool:
    """Whether all loaders trained on the same batches."""
    return len({(result["batches"], result["checksum"]) for result in results}) <= 1


def speedups_of_gnndrive(results: list[dict[str, Any]], name: str) -> list[float]:
    """How many times as fast as loader `name` gnndrive was, round by round.

    If gnndrive ran with several sets of switches, the first one counts.
    """
    seconds: dict[tuple[str, int], float] = {}
    for result in results:
        seconds.setdefault((result["loader"], result["run"]), result["s_per_batch"])
    return [
        seconds[name, number] / seconds["gnndrive", number]
        for loader, number in seconds
        if loader == name and ("gnndrive", number) in seconds
    ]

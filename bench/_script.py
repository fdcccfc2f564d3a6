"""What the scripts of this folder share: parsing options, formatting figures, writing results, and
reporting errors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from gnndrive.common.errors import GNNDriveError


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with a script's docstring as its help."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip


def add_batches(
    made: argparse.ArgumentParser, batches: int | None = None, size: int = 1000,
    fanout: Sequence[int] = (10, 10, 10),
) -> None:  # fmt: skip
    """Add the options that most scripts have."""
    made.add_argument("--batches", type=int, default=batches)
    made.add_argument("--batch-size", type=int, default=size)
    made.add_argument("--fanout", type=numbers, default=list(fanout))
    made.add_argument("--json", metavar="FILE")


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def check_names(
    made: argparse.ArgumentParser, what: str, asked: Iterable[str], known: Collection[str]
) -> None:
    """End the script if one of the names that were asked for is not known."""
    if unknown := [name for name in asked if name not in known]:
        made.error(f"unknown {what} {', '.join(unknown)}: choose from {', '.join(known)}")


def arguments_of(text: str) -> dict[str, Any]:
    """A loader's arguments from a text such as "buffer=820MB,samplers=1"."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def spread(values: Sequence[float], digits: int = 2, to: str = " to ") -> str:
    """The median, and the range if there are several values."""
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}{to}{max(values):.{digits}f})"


def grouped(results: Iterable[dict[str, Any]], *what: str) -> dict[Any, list[dict[str, Any]]]:
    """Results by their entry `what`, or by several entries."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for result in results:
        key = tuple(result[name] for name in what) if len(what) > 1 else result[what[0]]
        groups.setdefault(key, []).append(result)
    return groups


class Phases:
    """A `progress` function that adds up the seconds of each phase, in `seconds` by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started = self._last = perf_counter()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note progress."""
        now = perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now
        say(f"{what}: {done:,} of {total:,}, {now - self.started:.1f} s")

    def result(self) -> dict[str, Any]:
        """The seconds until now, and those of each phase."""
        return {"s": perf_counter() - self.started, "phases": self.seconds}


def listed(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(text: str, found: dict[str, Any], path: str | None) -> None:
    print(text)
    if path:
        write(found, path)


def write(found: dict[str, Any], path: str) -> None:
    """Write figures as JSON to `path`; an older file there stays whole until then."""
    unfinished = Path(f"{path}.new")
    unfinished.write_text(json.dumps(found, indent=2))
    unfinished.replace(path)


def run(main: Callable[[], None]) -> None:
    """Run a script; a gnndrive error ends it with its message, Ctrl-C with exit code 130."""
    try:
        main()
    except GNNDriveError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

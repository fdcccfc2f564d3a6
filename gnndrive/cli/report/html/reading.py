"""`read_run` reads a RUN.json; `Part` is an object in it, whose values are checked when asked for.

A file may come from a stranger or from a later gnndrive: unknown keys are ignored, and a value of
the wrong kind is a ConfigError that says where it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gnndrive.cli.report.html.values import over
from gnndrive.cli.report.text import LOOKED_UP, looked_up
from gnndrive.common.errors import ConfigError

MADE_BY = (
    "give the output of gnndrive train, plan, bench strategies or bench headroom with --json, as "
    "the command wrote it"
)
FILE_BYTES_MAX = 64 << 20  # an hour of intervals is under 1 MB
NUMBER_MAX = 1e18  # no counter is larger, and sums of such numbers are finite
SECTIONS = (
    "batches", "stages", "intervals", "plan", "miss_ratio", "strategies", "headroom", "choice",
    "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """An object of a file; `place` is the file and the keys that lead to it.

    A value that is not what it has to be is a ConfigError that names its place.
    """

    content: Mapping[str, Any]
    place: str

    def has(self, name: str) -> bool:
        """Whether there is an entry that is not null."""
        return self.content.get(name) is not None

    def number(self, name: str) -> float:
        """A number from 0 to `NUMBER_MAX` that has to be there."""
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number")
        if not 0 <= value <= NUMBER_MAX:  # also if it is nan
            self._refuse(name, f"a number from 0 to {NUMBER_MAX:g}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A number; None: it is absent or null."""
        return self.number(name) if self.has(name) else None

    def numbers(self, name: str) -> list[float]:
        """A list of numbers, empty if it is absent."""
        values = self._list(name)
        each = Part({str(number): value for number, value in enumerate(values)}, self._at(name))
        return [each.number(number) for number in each.content]

    def text(self, name: str, default: str = "") -> str:
        """A text, or `default` if it is absent."""
        if not self.has(name):
            return default
        value = self.content[name]
        if not isinstance(value, str):
            self._refuse(name, "a text")
        return value

    def part(self, name: str) -> Part:
        """An object, without entries if it is absent."""
        value = self.content[name] if self.has(name) else {}
        if not isinstance(value, dict):
            self._refuse(name, "an object")
        return Part(value, self._at(name))

    def parts(self, name: str) -> list[Part]:
        """A list of objects, empty if it is absent."""
        found = []
        for number, value in enumerate(self._list(name)):
            if not isinstance(value, dict):
                self._refuse(name, "a list of objects")
            found.append(Part(value, f"{self._at(name)}[{number}]"))
        return found

    def _list(self, name: str) -> list[Any]:
        value = self.content.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self._refuse(name, "a list")
        return value

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if ": " in self.place else f"{self.place}: {name}"

    def _refuse(self, name: str, what: str) -> NoReturn:
        value = repr(self.content.get(name))
        said = f"{value[:40]}…" if len(value) > 40 else value
        is_there = f"is {said}" if self.has(name) else "is missing"
        raise ConfigError(f"{self._at(name)} {is_there}, and has to be {what}: {MADE_BY}")


def read_run(path: Path) -> Part:
    """Read a RUN.json; a ConfigError says why it is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): {MADE_BY}") from None
    if len(text) > FILE_BYTES_MAX:
        size = f"{FILE_BYTES_MAX >> 20} MiB"
        raise ConfigError(f"{path} has more than {size}, so it is no run: {MADE_BY}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        empty = "is empty" if not text.strip() else "is no JSON"
        raise ConfigError(f"{path} {empty}: {MADE_BY}") from None
    if not isinstance(content, dict) or not isinstance(content.get("gnndrive"), str):
        raise ConfigError(f"{path} is JSON, but not of a run of gnndrive: {MADE_BY}")
    if not any(content.get(name) is not None for name in SECTIONS):
        raise ConfigError(
            f"{path} has nothing to show, no {', '.join(SECTIONS[1:-1])} and no {SECTIONS[-1]}: "
            f"{MADE_BY}"
        )
    return Part(content, str(path))


def rows_looked_up(run: Part) -> float:
    """The rows that batches have looked up, of all tables together; 0: not known."""
    return looked_up({name: run.number(name) for name in LOOKED_UP if run.has(name)})


def hit_share(run: Part) -> float | None:
    """The share of the rows looked up that were in the feature buffer; None: not known."""
    return over(run.number_or_none("rows_hit"), rows_looked_up(run))

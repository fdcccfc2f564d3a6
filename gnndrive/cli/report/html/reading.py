"""`read_run` reads a RUN.json, which may come from a stranger or from a later gnndrive.

Unknown keys are ignored; a value of the wrong kind is a ConfigError that says where it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnndrive.cli.report.html.values import over
from gnndrive.cli.report.text import LOOKED_UP, looked_up
from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size

MADE_BY = (
    "give the output of gnndrive train, plan, bench strategies or bench headroom with --json, as "
    "the command wrote it"
)
FILE_BYTES_MAX = 64_000_000  # an hour of intervals is under 1 MB
NUMBER_MAX = 1e18  # no counter is larger, and sums of such numbers are finite
SECTIONS = (
    "batches", "stages", "intervals", "plan", "miss_ratio", "strategies", "headroom", "choice",
    "epochs", "verdict",
)  # fmt: skip


class Part(Record):
    """An object of a file. What is null counts as absent; texts may have any characters."""

    def number(self, name: str) -> float:
        """A number that has to be there, from 0 to `NUMBER_MAX`."""
        value: Any = self.fields.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= NUMBER_MAX:  # also if it is nan
            raise self.wrong(name, f"a number from 0 to {NUMBER_MAX:g}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A number; None: it is absent."""
        return self.number(name) if self.has(name) else None

    def numbers(self, name: str) -> list[float]:
        """A list of numbers, empty if it is absent."""
        values = self.value(name, list) if self.has(name) else []
        each = self.inside(name, {str(number): value for number, value in enumerate(values)})
        return [each.number(number) for number in each.fields]

    def text(self, name: str, default: str = "") -> str:
        """A text, or `default` if it is absent."""
        return str(self.value(name, str)) if self.has(name) else default

    def part(self, name: str) -> Part:
        """An object, without entries if it is absent."""
        return self.inner(name) if self.has(name) else self.inside(name, {})

    def parts(self, name: str) -> list[Part]:
        """A list of objects, empty if it is absent."""
        return list(self.each(name).values()) if self.has(name) else []


def read_run(path: Path) -> Part:
    """Read a RUN.json; a ConfigError says why it is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): {MADE_BY}") from None
    if len(text) > FILE_BYTES_MAX:
        size = format_size(FILE_BYTES_MAX)
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
    return Part(content, str(path), MADE_BY, raises=ConfigError)


def rows_looked_up(run: Part) -> float:
    """The rows that batches have looked up, of all tables together; 0: not known."""
    return looked_up({name: run.number(name) for name in LOOKED_UP if run.has(name)})


def hit_share(run: Part) -> float | None:
    """The share of the rows looked up that were in the feature buffer; None: not known."""
    return over(run.number_or_none("rows_hit"), rows_looked_up(run))

"""How the page writes numbers, texts, tables and figures; all text that goes in comes out escaped.

A number that is not known is written so: a page never has an empty cell that could mean 0.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from gnndrive.cli.report.text import si
from gnndrive.common.duration import duration
from gnndrive.common.memory import format_size

UNKNOWN = "not known"
# Controls, halves of characters, and marks that turn the direction of what follows.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """The text so that it can stand in an element or an attribute."""
    return html.escape(_UNSEEN.sub("\ufffd", text), quote=True)


def seconds(value: float | None) -> str:
    """Seconds in the unit that leaves a number from 1 on: "13.2 ms"."""
    return UNKNOWN if value is None else duration(value)


def size(value: float | None, per: str = "") -> str:
    """Bytes in decimal units, as `memory=` takes them: "1.28 GB"; `per`: such as "/s"."""
    return UNKNOWN if value is None else f"{format_size(value)}{per}"


def count(value: float | None, per: str = "") -> str:
    """A count with three digits: "950", "12.3 k", "1.1 M"; `per`: such as "/s"."""
    return UNKNOWN if value is None else f"{si(value)}{per}"


def share(value: float | None) -> str:
    """A share in per cent: "45.2 %"."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def times(value: float | None) -> str:
    """A ratio: "1.4 times"."""
    return UNKNOWN if value is None else f"{value:.2f} times"


def known(value: float | None, say: Callable[[float], str]) -> str:
    """A value in words; empty: it is not known."""
    return "" if value is None else say(value)


def over(part: float | None, whole: float | None) -> float | None:
    """`part / whole`; None: one of them is not known, or the whole is 0."""
    return part / whole if part is not None and whole else None


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, strong: int | None = None) -> str:
    """A table that scrolls sideways where it is too wide; the first cell of a row is its head, and
    `strong` the row to set off."""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in heads)
    lines = []
    for number, (first, *rest) in enumerate(rows):
        kind = ' class="strong"' if number == strong else ""
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        lines.append(f'<tr{kind}><th scope="row">{escaped(first)}</th>{cells}</tr>')
    body = "".join(lines)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table of numbers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, inside: str) -> str:
    """Something that is shown on demand; `inside` is HTML."""
    return f"<details><summary>{escaped(summary)}</summary>{inside}</details>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    of_kind = f' class="{kind}"' if kind else ""
    return f"<p{of_kind}>{escaped(text)}</p>"


def figure(about: str, numbers: str, picture: str = "", says: Sequence[str] = ()) -> str:
    """What a section shows of a run.

    Args:
        about: how to read it, in a sentence or two.
        numbers: the numbers in HTML.
        picture: a picture of them in HTML; empty: the numbers stand open instead.
        says: what follows from them, one sentence a line.
    """
    shown = f'<div class="picture">{picture}</div>{folded("The numbers", numbers)}'
    lines = "".join(paragraph(line, "says") for line in says)
    return f"{lines}<figcaption>{escaped(about)}</figcaption>{shown if picture else numbers}"

"""Bars below each other, each with its name, what it says, and lines of text: `draw_bars`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnndrive.cli.report.html.drawing import LINE, Drawing, fitted, wrapped

_NAME, _BAR, _GAP = 170.0, 530.0, 14.0  # widths in a wide picture
_THICK = 12.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar.

    Attributes:
        name: what it is of.
        value: how long it is; None: there is no bar, but its texts.
        says: the value in words.
        below: more to know of it.
        low, high: the ends of a line over the bar's end.
        mark: where a diamond stands.
        kind: the style's class of its colour: "c1" to "c4", or "soft".
    """

    name: str
    value: float | None
    says: str
    below: str = ""
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    kind: str = "c1"


def draw_bars(picture: Drawing, bars: Sequence[Bar]) -> None:
    """Draw bars from a common zero.

    Args:
        picture: what they fill; names stand beside the bars if it has the room, else above.
        bars: from the top down.
    """
    width = picture.width
    wide = width > _NAME + _BAR
    ends = [number for bar in bars for number in (bar.value, bar.high, bar.mark) if number]
    left = _NAME if wide else 0.0
    longest = _BAR if wide else width - 8
    scale = longest / max(ends, default=1.0)
    y = 0.0
    for bar in bars:
        if wide:
            picture.text(0, y + 13, fitted(bar.name, _NAME - _GAP, bold=True), "bold")
            beside = left + (longest + _GAP if bar.value is not None else 0)
            follows = picture.lines(beside, y + 13, wrapped(bar.says, width - beside))
            _draw_one(picture, left, y + 3, scale, bar)
            below = y + 13 + LINE if bar.value is not None else follows
            said = wrapped(bar.below, longest) if bar.below else []
            end = picture.lines(left, below, said, "muted") - 13
            y = max(end, follows - 13) + 8
        else:
            picture.text(0, y + 13, fitted(bar.name, width, bold=True), "bold")
            follows = picture.lines(0, y + 13 + LINE, wrapped(bar.says, width))
            _draw_one(picture, left, follows - 10, scale, bar)
            below = follows + (LINE + 4 if bar.value else 0)
            said = wrapped(bar.below, width) if bar.below else []
            y = picture.lines(0, below, said, "muted") - (0 if said else 4)


def _draw_one(picture: Drawing, x: float, y: float, scale: float, bar: Bar) -> None:
    """The bar itself, its line and its diamond."""
    if bar.value is None:
        return
    middle = y + _THICK / 2
    if bar.value:
        picture.box(x, y, max(bar.value * scale, 1.5), _THICK, f"bar {bar.kind}")
    if bar.low is not None and bar.high is not None and bar.high > bar.low:
        low, high = x + bar.low * scale, x + bar.high * scale
        picture.line([(low, middle), (high, middle)], "whisker")
        for end in (low, high):
            picture.line([(end, middle - 4), (end, middle + 4)], "whisker")
    if bar.mark is not None:
        picture.mark(x + bar.mark * scale, middle, "mark")

"""`Axes`: a plot's frame with its scales, into which lines and stacked columns are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnndrive.cli.report.html.drawing import Drawing, fitted, text_width

LEFT = 66.0  # room for the numbers of the upright axis
_DASHES = ("", "dash", "dots", "dash-dots")


def nice_step(most: float, steps: int) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which at most so many make `most`."""
    if most <= 0:
        return 1.0
    rough = most / steps
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(each for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Axes:
    """A plot's frame.

    Attributes:
        picture: what it is drawn into.
        top, height: where the frame is, in px.
        x_most, y_most: the ends of the scales, which begin at 0, or at `x_least`.
        x_least: where the level scale begins.
        logarithmic: whether the level scale is.
    """

    picture: Drawing
    top: float
    height: float
    x_most: float
    y_most: float
    x_least: float = 0.0
    logarithmic: bool = False

    @property
    def width(self) -> float:
        """The frame's width in px."""
        return self.picture.width - LEFT - 4

    def x(self, value: float) -> float:
        """Where a value is, from left to right."""
        low, high = self.x_least, self.x_most
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        part = (value - low) / (high - low) if high > low else 0.5
        return LEFT + min(max(part, 0), 1) * self.width

    def y(self, value: float) -> float:
        """Where a value is, from the top down."""
        return self.top + self.height * (1 - min(max(value / (self.y_most or 1), 0), 1))

    def frame(
        self, say_x: Callable[[float], str], say_y: Callable[[float], str], y_steps: int = 2
    ) -> None:
        """Draw the scales and their numbers."""
        bottom, right = self.top + self.height, LEFT + self.width
        for number in range(y_steps + 1):
            value = self.y_most * number / y_steps
            self.picture.line([(LEFT, self.y(value)), (right, self.y(value))], "grid")
            label = fitted(say_y(value), LEFT - 6)
            self.picture.text(LEFT - 6, self.y(value) + 4, label, "muted", end=True)
        taken = -1.0
        for value in self._x_ticks():
            label = say_x(value)
            half = text_width(label) / 2
            middle = min(max(self.x(value), LEFT + half), right - half)
            if middle - half > taken:
                self.picture.line([(self.x(value), bottom), (self.x(value), bottom + 4)], "grid")
                self.picture.text(middle, bottom + 17, label, "muted", middle=True)
                taken = middle + half + 8
        self.picture.down_to(bottom + 20)

    def _x_ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(
                math.floor(math.log10(self.x_least)), math.ceil(math.log10(self.x_most)) + 1
            )
            steps = [each * 10.0**power for power in powers for each in (1, 2, 5)]
            return [step for step in steps if self.x_least <= step <= self.x_most]
        step = nice_step(self.x_most - self.x_least, 6 if self.width > 500 else 3)
        first = math.ceil(self.x_least / step)
        return [each * step for each in range(first, math.floor(self.x_most / step + 1e-9) + 1)]

    def line(self, points: Sequence[tuple[float, float]], number: int) -> None:
        """A line through points; each number has a colour and a dash of its own."""
        path = [(self.x(x), self.y(y)) for x, y in points]
        self.picture.line(path, f"line s{number + 1} {_DASHES[number]}")

    def column(self, left: float, right: float, low: float, high: float, fill: str) -> None:
        """A column from `low` to `high`, filled with a pattern."""
        x, y = self.x(left), self.y(high)
        self.picture.box(x, y, self.x(right) - x, self.y(low) - y, "column", fill=fill)


def legend(picture: Drawing, y: float, names: Sequence[str], *, patterns: str = "") -> float:
    """What the lines or patterns mean; returns where the next thing may begin.

    Args:
        picture: what it is drawn into.
        y: its top.
        names: of the lines by number.
        patterns: what the patterns' ids begin with; empty: these are lines.
    """
    x = 0.0
    for number, name in enumerate(names):
        needed = 30 + text_width(name) + 18
        if x and x + needed - 18 > picture.width:
            x, y = 0.0, y + 18
        if patterns:
            picture.box(x, y + 1, 22, 12, "column", fill=f"{patterns}{number}")
        else:
            picture.line([(x, y + 8), (x + 24, y + 8)], f"line s{number + 1} {_DASHES[number]}")
        picture.text(x + 30, y + 12, name)
        x += needed
    return y + 24


def define_patterns(picture: Drawing, prefix: str) -> None:
    """Four fills that differ in their pattern as well as in their colour."""
    marks = (
        "",
        '<path d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4" class="ink"/>',
        '<circle cx="4" cy="4" r="1.6" class="dot"/>',
        '<path d="M0,2 h8 M0,6 h8" class="ink"/>',
    )
    picture.define(
        "".join(
            f'<pattern id="{prefix}{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" class="c{number + 1}"/>{mark}</pattern>'
            for number, mark in enumerate(marks)
        )
    )

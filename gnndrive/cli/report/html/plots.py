"""Sections with plots: what happened over time, and hits by size of the feature buffer.

A plot is an SVG of lines that stretches to any width, between texts in HTML at fixed places: the
upright scale has three numbers, and where a narrow page has no room the level one leaves some out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import (
    UNKNOWN,
    count,
    escaped,
    figure,
    over,
    seconds,
    share,
    size,
    table,
)

LOGARITHMIC_FROM = 20.0  # largest by smallest value of a level scale that begins above 0
_APART, _APART_NARROW = 0.08, 0.3  # least distance of two numbers of the level scale, of its length


def nice_step(most: float, steps: int) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which at most so many make `most`."""
    if most <= 0:
        return 1.0
    rough = most / steps
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(each for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Scale:
    """The level scale of a plot, from `least` to `most`; logarithmic if it begins above 0."""

    least: float
    most: float
    say: Callable[[float], str]

    def at(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high = self.least, self.most
        if low > 0:
            value, low, high = math.log(value), math.log(low), math.log(high)
        part = (value - low) / (high - low) if high > low else 0.5
        return min(max(part, 0.0), 1.0)

    def markup(self) -> str:
        """Its numbers in HTML."""
        last = last_narrow = -1.0
        shown = []
        for value in self._round_values():
            place = self.at(value)
            if place - last < _APART:
                continue
            narrow = place - last_narrow >= _APART_NARROW
            kind = "" if narrow else ' class="wide"'
            shown.append(f'<span{kind} style="left:{100 * place:.2f}%">{self.say(value)}</span>')
            last, last_narrow = place, place if narrow else last_narrow
        return f'<div class="x">{"".join(shown)}</div>'

    def _round_values(self) -> list[float]:
        if not self.least:
            step = nice_step(self.most, 6)
            return [number * step for number in range(math.floor(self.most / step + 1e-9) + 1)]
        powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        values = [each * 10.0**power for power in powers for each in (1, 2, 5)]
        return [value for value in values if self.least <= value <= self.most]


Points = Sequence[tuple[float, float]]


def plot(
    title: str, scale: Scale, top: float, say: Callable[[float], str], inside: str,
    legend: Sequence[str] = (), kind: str = "line",
) -> str:  # fmt: skip
    """A plot in HTML.

    Args:
        top: the end of the upright scale, which begins at 0.
        say: how the upright scale's numbers are written.
        inside: what is drawn, in HTML.
        legend: what the lines or fills mean, by number.
        kind: the style's class of the legend's samples: "line" or "fill".
    """
    names = "".join(
        f'<li><i class="{kind} k{number}"></i>{escaped(name)}</li>'
        for number, name in enumerate(legend, 1)
    )
    upright = "".join(f"<span>{say(top * part)}</span>" for part in (1, 0.5, 0))
    return (
        f"<h4>{escaped(title)}</h4>" + (f'<ul class="legend">{names}</ul>' if names else "")
        + f'<div class="plot"><div class="y">{upright}</div><div class="area">{inside}</div>'
        f"{scale.markup()}</div>"
    )  # fmt: skip


def polylines(scale: Scale, top: float, lines: Sequence[Points]) -> str:
    """Lines; each has a colour and a dash of its own."""
    drawn = ""
    for number, points in enumerate(lines, 1):
        path = " ".join(
            f"{1000 * scale.at(x):.1f},{100 * (1 - min(y / (top or 1), 1.0)):.2f}"
            for x, y in points
        )
        drawn += f'<polyline class="k{number}" points="{path}"/>'
    return (
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
    )


# ---- over time

SHOWN_MAX = 120  # intervals; more are drawn together
QUEUES = {
    "extracting_queue": "extracting queue",
    "training_queue": "training queue",
    "output_queue": "output queue",
}
WAITS = {
    "wait_disk_s": "the disk",
    "wait_sampling_s": "sampling",
    "wait_gather_s": "the gather",
    "wait_slots_s": "slots",
}
_SUMS = ("batches", "bytes_read", "requests", *WAITS)


@dataclass(frozen=True, slots=True)
class Interval:
    """One or several intervals of a run, in seconds since its start.

    Attributes:
        sums: what happened in it, by name; unknown values are left out.
        means: what the queues held on average.
    """

    start: float
    end: float
    sums: dict[str, float]
    means: dict[str, float]

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start

    def rate(self, name: str) -> float | None:
        """A sum by second."""
        return over(self.sums.get(name), self.length)


def timeline_section(run: Part) -> str:
    """What happened in each interval of a run: rates, queues, what the loop waited for."""
    found = _read(run.parts("intervals"))
    if not found:
        return ""
    together = -(-len(found) // SHOWN_MAX)
    shown = [_merged(found[at : at + together]) for at in range(0, len(found), together)]
    about = (
        "From left to right: seconds of loading for training. What your loop waited for is the "
        "share of the time in which it had no batch."
    )
    if together > 1:
        about += f" {len(found)} intervals are drawn as {len(shown)}."
    return figure(about, _numbers(shown), _over_time(shown))


def _read(parts: Sequence[Part]) -> list[Interval]:
    """The intervals that have a length, one after the other."""
    found: list[Interval] = []
    now = 0.0
    for part in parts:
        length = part.number("interval_s")
        end = max(part.number_or_none("elapsed_s") or 0.0, now + length)
        if length > 0:
            sums = {name: part.number(name) for name in _SUMS if part.has(name)}
            means = {name: part.number(name) for name in QUEUES if part.has(name)}
            found.append(Interval(end - length, end, sums, means))
            now = end
    return found


def _merged(group: Sequence[Interval]) -> Interval:
    sums = {
        name: sum(one.sums.get(name, 0.0) for one in group)
        for name in _SUMS if any(name in one.sums for one in group)
    }  # fmt: skip
    means = {}
    for name in QUEUES:
        known = [one for one in group if name in one.means]
        if known:
            whole = sum(one.length for one in known)
            means[name] = sum(one.means[name] * one.length for one in known) / whole
    return Interval(group[0].start, group[-1].end, sums, means)


def _over_time(shown: Sequence[Interval]) -> str:
    """The plots that there are numbers for, below each other."""
    scale = Scale(0.0, shown[-1].end, lambda at: f"{at:g} s")

    def steps(values: Sequence[float | None]) -> Points:
        """The corners of a line that is level in each interval."""
        return [
            (at, value)
            for one, value in zip(shown, values, strict=True) if value is not None
            for at in (one.start, one.end)
        ]  # fmt: skip

    def lines(
        title: str, found: Sequence[Points], say: Callable[[float], str],
        legend: Sequence[str] = (),
    ) -> str:  # fmt: skip
        if not any(found):
            return ""
        top = 2 * nice_step(max(value for line in found for _, value in line), 2)
        return plot(title, scale, top, say, polylines(scale, top, found), legend)

    queues = {what: steps([one.means.get(name) for one in shown]) for name, what in QUEUES.items()}
    known = {what: points for what, points in queues.items() if points}
    batches = [one.rate("batches") for one in shown]
    plots = lines("Batches a second", [steps(batches)], lambda rate: count(rate, "/s"))
    read = [one.rate("bytes_read") for one in shown]
    plots += lines("Bytes read a second", [steps(read)], lambda rate: size(rate, "/s"))
    plots += lines("Batches in each queue", list(known.values()), count, list(known))
    if any(name in one.sums for one in shown for name in WAITS):
        plots += plot(
            "What your loop waited for", scale, 1.0, _whole_per_cent, _columns(shown, scale),
            list(WAITS.values()), "fill",
        )  # fmt: skip
    return plots


def _columns(shown: Sequence[Interval], scale: Scale) -> str:
    """The shares of the waits, on top of each other."""
    drawn = ""
    for one in shown:
        left, low = scale.at(one.start), 0.0
        wide = scale.at(one.end) - left
        for number, name in enumerate(WAITS, 1):
            high = min(low + (one.rate(name) or 0.0), 1.0)
            if high > low:
                drawn += (
                    f'<i class="fill k{number}" style="left:{100 * left:.2f}%;width:'
                    f"{100 * wide:.2f}%;bottom:{100 * low:.2f}%;height:{100 * (high - low):.2f}%"
                    '"></i>'
                )
            low = high
    return drawn


def _whole_per_cent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _numbers(shown: Sequence[Interval]) -> str:
    heads = (
        "seconds", "batches/s", "bytes/s", "requests/s", *QUEUES.values(),
        *(f"waited for {what}" for what in WAITS.values()),
    )  # fmt: skip
    rows = [
        (
            f"{one.start:.1f}–{one.end:.1f}",
            count(one.rate("batches")), size(one.rate("bytes_read")), count(one.rate("requests")),
            *(UNKNOWN if name not in one.means else f"{one.means[name]:.2f}" for name in QUEUES),
            *(f"{seconds(one.sums.get(name))} ({share(one.rate(name))})"
              if name in one.sums else UNKNOWN for name in WAITS),
        )
        for one in shown
    ]  # fmt: skip
    return table(heads, rows)


# ---- the miss-ratio curve


@dataclass(frozen=True, slots=True)
class Point:
    """A size of the buffer, and what it would give."""

    nbytes: float
    hit: float
    seconds: float | None


def curve_section(run: Part) -> str:
    """The miss-ratio curve: what a larger or a smaller feature buffer would give."""
    curve = run.part("miss_ratio")
    points = _points(curve)
    if len(points) < 2:
        return ""
    now = curve.number_or_none("buffer_bytes")
    of = curve.text("table")
    about = (
        f"The share of a batch's rows{f' of {of}' if of else ''} that would be in a feature buffer "
        "of each size, predicted from sampled batches. Hits may fall where one batch more fits "
        "into a sweep, which reads the rows of several batches in one pass over the file: those "
        "batches then take nearly all of the buffer, so that fewer rows stay for later ones."
    )
    if now is not None:
        about += " The diamond is the buffer of this run."
    rows = [
        (size(point.nbytes), share(point.hit), share(1 - point.hit), seconds(point.seconds))
        for point in points
    ]
    numbers = table(("feature buffer", "hits", "misses", "a batch"), rows)
    least, largest = points[0].nbytes, points[-1].nbytes
    scale = Scale(least if largest / least > LOGARITHMIC_FROM else 0.0, largest, size)
    here = _at(points, now)
    hits = [(point.nbytes, point.hit) for point in points]
    at = None if here is None else (here.nbytes, here.hit)
    plots = _curve("Hits", scale, hits, at, _whole_per_cent, 1.0)
    known = [point for point in points if point.seconds is not None]
    if len(known) > 1:
        took = [(point.nbytes, point.seconds or 0.0) for point in known]
        top = 2 * nice_step(max(value for _, value in took), 2)
        here = _at(known, now)
        at = None if here is None else (here.nbytes, here.seconds or 0.0)
        plots += _curve("Seconds a batch", scale, took, at, seconds, top)
    return figure(about, numbers, plots, _changes(points, now))


def _points(curve: Part) -> list[Point]:
    """The points by size; a share above 1 is 1."""
    found = [
        Point(each.number("bytes"), min(each.number("hit_share"), 1.0),
              each.number_or_none("seconds_per_batch"))
        for each in curve.parts("points")
    ]  # fmt: skip
    return sorted((point for point in found if point.nbytes > 0), key=lambda point: point.nbytes)


def _at(points: Sequence[Point], nbytes: float | None) -> Point | None:
    """The curve at a size; None: there is none, or the curve does not reach so far."""
    if nbytes is None or not points[0].nbytes <= nbytes <= points[-1].nbytes:
        return None
    sizes = [point.nbytes for point in points]
    known = [math.nan if point.seconds is None else point.seconds for point in points]
    took = float(np.interp(nbytes, sizes, known))
    hit = float(np.interp(nbytes, sizes, [point.hit for point in points]))
    return Point(nbytes, hit, None if math.isnan(took) else took)


def _changes(points: Sequence[Point], now: float | None) -> list[str]:
    """What half and twice the buffer would change."""
    here = _at(points, now)
    if here is None:
        return []
    lines = []
    for what, factor in (("Twice the buffer", 2.0), ("Half of it", 0.5)):
        there = _at(points, factor * here.nbytes)
        if there is None:
            continue
        line = (
            f"{what} ({size(there.nbytes)}): {share(there.hit)} hits instead of {share(here.hit)}"
        )
        if there.seconds is not None and here.seconds:
            change = there.seconds / here.seconds - 1
            more = "more" if change > 0 else "less"
            line += f"; a batch takes {100 * abs(change):.0f} % {more} time"
        lines.append(f"{line}.")
    return lines


def _curve(
    title: str, scale: Scale, points: Points, here: tuple[float, float] | None,
    say: Callable[[float], str], top: float,
) -> str:  # fmt: skip
    """One plot over the sizes, with a diamond at this run's."""
    inside = polylines(scale, top, [points])
    if here is not None:
        x, y = 100 * scale.at(here[0]), 100 * (1 - min(here[1] / top, 1.0))
        inside += f'<i class="now" style="left:{x:.2f}%"></i>'
        inside += f'<i class="mark" style="left:{x:.2f}%;top:{y:.2f}%"></i>'
        title += f" (now: {size(here[0])}, {say(here[1])})"
    return plot(title, scale, top, say, inside)

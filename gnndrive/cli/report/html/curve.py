"""The miss-ratio curve: what a larger or a smaller feature buffer would give."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnndrive.cli.report.html.axes import LEFT, Axes, nice_step
from gnndrive.cli.report.html.drawing import Drawing, text_width
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import seconds, share, size, table

HEIGHT = 180.0
LOGARITHMIC_FROM = 20.0  # largest by smallest size


@dataclass(frozen=True, slots=True)
class Point:
    """A size of the buffer, and what it would give."""

    nbytes: float
    hit: float
    seconds: float | None


def curve_figure(run: Part) -> Figure | None:
    """The figure of a run with a curve; None: it has none."""
    curve = run.part("miss_ratio")
    points = [] if curve is None else _points(curve)
    if curve is None or len(points) < 2:
        return None
    now = curve.number_or_none("buffer_bytes")
    of = curve.text("table")
    about = (
        f"The share of a batch's rows{f' of {of}' if of else ''} that would be in a feature buffer "
        "of each size, predicted from sampled batches."
    )
    if now is not None:
        about += " The diamond is the buffer of this run."
    rows = [
        (size(point.nbytes), share(point.hit), share(1 - point.hit), seconds(point.seconds))
        for point in points
    ]
    numbers = table(("feature buffer", "hits", "misses", "a batch"), rows)
    return Figure(
        "Hits by size of the feature buffer", about, numbers,
        lambda picture: _draw(picture, points, now), _says(points, now),
    )  # fmt: skip


def _points(curve: Part) -> list[Point]:
    """The points by size; a share above 1 is 1."""
    found = [
        Point(each.number("bytes"), min(each.number("hit_share"), 1.0),
              each.number_or_none("seconds_per_batch"))
        for each in curve.parts("points")
    ]  # fmt: skip
    return sorted((point for point in found if point.nbytes > 0), key=lambda point: point.nbytes)


def _at(points: Sequence[Point], nbytes: float) -> Point | None:
    """The curve at a size; None: it does not reach so far."""
    if not points[0].nbytes <= nbytes <= points[-1].nbytes:
        return None
    after = bisect_left([point.nbytes for point in points], nbytes)
    high, low = points[after], points[max(after - 1, 0)]
    between = high.nbytes - low.nbytes
    part = (nbytes - low.nbytes) / between if between else 0.0
    known = low.seconds is not None and high.seconds is not None
    took = (low.seconds or 0) + part * ((high.seconds or 0) - (low.seconds or 0))
    return Point(nbytes, low.hit + part * (high.hit - low.hit), took if known else None)


def _says(points: Sequence[Point], now: float | None) -> tuple[str, ...]:
    """What half and twice the buffer would change."""
    here = None if not now else _at(points, now)
    if here is None or not now:
        return ()
    lines = []
    for what, factor in (("Twice the buffer", 2.0), ("Half of it", 0.5)):
        there = _at(points, factor * now)
        if there is None:
            continue
        line = f"{what} ({size(factor * now)}): {share(there.hit)} hits instead of "
        line += share(here.hit)
        if there.seconds is not None and here.seconds:
            change = there.seconds / here.seconds - 1
            more = "more" if change > 0 else "less"
            line += f"; a batch takes {100 * abs(change):.0f} % {more} time"
        lines.append(f"{line}.")
    return tuple(lines)


def _draw(picture: Drawing, points: Sequence[Point], now: float | None) -> None:
    picture.text(0, 12, "Hits", "bold")
    y = _plot(picture, 24, points, now, [point.hit for point in points], share_of_100, 1.0)
    times = [(point, point.seconds) for point in points if point.seconds is not None]
    if len(times) > 1:
        picture.text(0, y + 12, "Seconds a batch", "bold")
        values = [value for _, value in times]
        most = 2 * nice_step(max(values), 2)
        _plot(picture, y + 24, [point for point, _ in times], now, values, seconds, most)


def share_of_100(value: float) -> str:
    """A share in whole per cent, for an axis."""
    return f"{100 * value:.0f} %"


def _plot(
    picture: Drawing, top: float, points: Sequence[Point], now: float | None,
    values: Sequence[float], say: Callable[[float], str], most: float,
) -> float:  # fmt: skip
    """One plot over the sizes; returns where the next one begins."""
    least, largest = points[0].nbytes, points[-1].nbytes
    far = largest / least > LOGARITHMIC_FROM
    axes = Axes(picture, top, HEIGHT, largest, most, least if far else 0.0, far)
    axes.frame(size, say)
    sizes = [point.nbytes for point in points]
    axes.line(list(zip(sizes, values, strict=True)), 0)
    here = None
    if now is not None:
        line = [Point(at, 0.0, value) for at, value in zip(sizes, values, strict=True)]
        here = _at(line, now)
    if now is not None and here is not None and here.seconds is not None:
        x, y = axes.x(now), axes.y(here.seconds)
        picture.line([(x, axes.top), (x, axes.top + HEIGHT)], "now dash")
        picture.mark(x, y, "mark")
        label = f"now: {size(now)}, {say(here.seconds)}"
        wide = text_width(label, bold=True)
        right, left = x + 10, x - 10 - wide
        if right + wide > picture.width:
            right = left if left >= LEFT else picture.width - wide
        below = y < axes.top + HEIGHT / 2
        at = axes.top + (HEIGHT - 8 if below else 16)
        picture.text(right, at, label, "bold")
    return top + HEIGHT + 36

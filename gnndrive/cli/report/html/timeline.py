"""What happened in each interval of a run: rates, queues, what the loop waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnndrive.cli.report.html.axes import Axes, define_patterns, legend, nice_step
from gnndrive.cli.report.html.drawing import Drawing
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import UNKNOWN, count, over, seconds, share, size, table

SHOWN_MAX = 120  # intervals; more are drawn together
HEIGHT = 96.0  # of one plot
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
    """One or several intervals of a run.

    Attributes:
        start, end: seconds since the run's start.
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


def timeline_figure(run: Part) -> Figure | None:
    """The figure of a run that has intervals; None: it has none."""
    found = _read(run.parts("intervals"))
    if not found:
        return None
    shown = _together(found)
    each = ""
    if len(shown) < len(found):
        each = f" {len(found)} intervals are drawn as {len(shown)}."
    about = (
        "From left to right: seconds of loading for training. What your loop waited for is the "
        f"share of the time in which it had no batch.{each}"
    )
    return Figure(
        "Queues and waiting over time", about, _numbers(shown),
        lambda picture: _draw(picture, shown),
    )  # fmt: skip


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


def _together(found: Sequence[Interval]) -> list[Interval]:
    """At most `SHOWN_MAX` intervals."""
    each = -(-len(found) // SHOWN_MAX)
    return [_merged(found[at : at + each]) for at in range(0, len(found), each)]


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


def _steps(shown: Sequence[Interval], values: Sequence[float | None]) -> list[tuple[float, float]]:
    """The corners of a line that is level in each interval."""
    return [
        (at, value)
        for one, value in zip(shown, values, strict=True) if value is not None
        for at in (one.start, one.end)
    ]  # fmt: skip


def _draw(picture: Drawing, shown: Sequence[Interval]) -> None:
    """The plots that there are numbers for, below each other."""
    y = 0.0
    for name, title, say in (
        ("batches", "Batches a second", lambda rate: count(rate, "/s")),
        ("bytes_read", "Bytes read a second", lambda rate: size(rate, "/s")),
    ):
        points = _steps(shown, [one.rate(name) for one in shown])
        if points:
            y = _plot(picture, y, title, shown, [points], say)
    queues = {
        what: points
        for name, what in QUEUES.items()
        if (points := _steps(shown, [one.means.get(name) for one in shown]))
    }
    if queues:
        y = _plot(
            picture, y, "Batches in each queue", shown, list(queues.values()), count, list(queues)
        )
    if any(name in one.sums for one in shown for name in WAITS):
        _waits(picture, y, shown)


def _plot(
    picture: Drawing, y: float, title: str, shown: Sequence[Interval],
    lines: Sequence[Sequence[tuple[float, float]]], say: Callable[[float], str],
    names: Sequence[str] = (),
) -> float:  # fmt: skip
    """One plot of lines; returns where the next one begins."""
    picture.text(0, y + 12, title, "bold")
    top = y + 24 if not names else legend(picture, y + 20, names)
    most = max(value for line in lines for _, value in line)
    step = nice_step(most, 2)
    axes = Axes(picture, top, HEIGHT, shown[-1].end, 2 * step)
    axes.frame(lambda at: f"{at:g} s", say)
    for number, line in enumerate(lines):
        axes.line(line, number)
    return top + HEIGHT + 36


def _waits(picture: Drawing, y: float, shown: Sequence[Interval]) -> None:
    """The plot of the waits, on top of each other."""
    picture.text(0, y + 12, "What your loop waited for", "bold")
    prefix = f"{picture.name}-wait"
    define_patterns(picture, prefix)
    top = legend(picture, y + 20, list(WAITS.values()), patterns=prefix)
    axes = Axes(picture, top, HEIGHT, shown[-1].end, 1.0)
    axes.frame(lambda at: f"{at:g} s", lambda part: f"{100 * part:.0f} %")
    for one in shown:
        low = 0.0
        for number, name in enumerate(WAITS):
            high = min(low + (one.rate(name) or 0.0), 1.0)
            if high > low:
                axes.column(one.start, one.end, low, high, f"{prefix}{number}")
            low = high


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

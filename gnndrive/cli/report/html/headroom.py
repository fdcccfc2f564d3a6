"""Headroom: seconds a batch if one part of the work cost nothing."""

from __future__ import annotations

from gnndrive.cli.report.html.bars import Bar, draw_bars
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import seconds, table, times

FREE = {
    "nothing": "as it is",
    "sampler": "sampling free",
    "disk": "disk free",
    "loader": "loading free",
    "step": "training step free",
}


def headroom_figure(run: Part) -> Figure | None:
    """The figure of a run that measured headroom; None: it did not."""
    measured = run.part("headroom")
    lines = [] if measured is None else measured.parts("lines")
    if measured is None or not lines:
        return None
    bars, rows = [], []
    for line in lines:
        free, took = line.text("free", "not named"), line.number("seconds_per_batch")
        factor, rounds = line.number_or_none("times"), line.numbers("rounds")
        low, high = (min(rounds), max(rounds)) if rounds else (None, None)
        name, as_it_is = FREE.get(free, f"{free} free"), free == "nothing"
        says = seconds(took)
        if factor is not None and not as_it_is:
            says += f", {times(factor)} as fast"
        kind = "c1" if as_it_is else "c3"
        bars.append(Bar(name, took, says, low=low, high=high, kind=kind))
        ends = "" if low is None else f"{seconds(low)} – {seconds(high)}"
        rows.append((name, seconds(took), times(factor), ends))
    numbers = table(("", "seconds a batch", "as fast as it is", "fastest – slowest"), rows)
    about = (
        "The same batches, each line with one part made free: the shorter its bar, the more you "
        "can gain there. Lines go from the fastest round to the slowest."
    )
    return Figure(
        "Where time can be gained", about, numbers, lambda picture: draw_bars(picture, bars)
    )

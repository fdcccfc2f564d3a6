"""Strategies side by side: seconds a batch, beside what was predicted, and what each one reads."""

from __future__ import annotations

from gnndrive.cli.report.html.bars import Bar, draw_bars
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import (
    UNKNOWN,
    count,
    escaped,
    folded,
    over,
    seconds,
    share,
    size,
    table,
    times,
)

HEADS = (
    "strategy", "paper", "seconds a batch", "fastest – slowest", "predicted", "bound by",
    "first batch", "nodes a batch", "edges a batch", "rows loaded", "requests", "bytes read",
    "hits", "peak memory", "same batches", "note",
)  # fmt: skip


def strategies_figure(run: Part) -> Figure | None:
    """The figure of a run that compares strategies; None: it does not."""
    compared = run.part("strategies")
    runs = [] if compared is None else compared.parts("runs")
    if compared is None or not runs:
        return None
    bars = [_bar(each) for each in runs]
    memory = compared.number_or_none("memory")
    about = "Bars are medians of the rounds, lines go from the fastest round to the slowest."
    if any(bar.mark is not None for bar in bars):
        about += " Diamonds are what was predicted before."
    if memory is not None:
        about += f" Each had {size(memory)} of memory."
    numbers = table(HEADS, [_row(each) for each in runs])
    commands = [
        f"<li>{escaped(_name(each))}: <code>{escaped(each.text('command'))}</code></li>"
        for each in runs if each.has("command")
    ]  # fmt: skip
    if commands:
        numbers += folded("The command of each", f"<ul>{''.join(commands)}</ul>")
    return Figure(
        "Strategies side by side",
        about,
        numbers,
        lambda picture: draw_bars(picture, bars),
        _says(runs),
    )


def _name(run: Part) -> str:
    return run.text("strategy", "not named")


def _says(runs: list[Part]) -> tuple[str, ...]:
    """Which one is the fastest, and by how much; those with other batches are set apart."""
    ran = [run for run in runs if not run.has("failed")]
    alike = sorted((run for run in ran if run.content.get("same_batches") is not False), key=_took)
    says = []
    if len(alike) > 1:
        first, second = alike[:2]
        by = over(_took(second), _took(first))
        line = "" if len(alike) == len(ran) else "Of those with the same batches, "
        line += f"{_name(first)} takes the least time a batch: {seconds(_took(first))}"
        line += "" if by is None else f", {times(by)} as fast as {_name(second)}"
        if _ends_meet(first, second):
            line += "; their rounds overlap, so that another run may say otherwise"
        says.append(f"{line}.")
    return tuple(says) + tuple(
        f"{_name(run)} takes {seconds(_took(run))}, but for other batches."
        for run in ran if run not in alike
    )  # fmt: skip


def _took(run: Part) -> float:
    return run.number("seconds_per_batch")


def _ends_meet(first: Part, second: Part) -> bool:
    """Whether a round of the slower one took no longer than one of the faster one."""
    one, other = _range(first), _range(second)
    return one is not None and other is not None and other[0] <= one[1]


def _range(run: Part) -> tuple[float, float] | None:
    rounds = run.numbers("rounds")
    return (min(rounds), max(rounds)) if rounds else None


def _bar(run: Part) -> Bar:
    if run.has("failed"):
        return Bar(_name(run), None, f"Did not run: {run.text('failed')}", run.text("note"))
    took, predicted, ends = (
        run.number("seconds_per_batch"), run.number_or_none("predicted_s"), _range(run)
    )  # fmt: skip
    low, high = ends or (None, None)
    says = seconds(took)
    if ends is not None:
        says += f" ({seconds(ends[0])} – {seconds(ends[1])})"
    if predicted is not None:
        says += f"; predicted {seconds(predicted)}"
    return Bar(_name(run), took, says, _about(run), low, high, predicted)


def _about(run: Part) -> str:
    """What to know of its batches, in one line."""
    parts = [
        f"{say(run.number(name))} {what}"
        for name, say, what in (
            ("bytes_read_per_batch", size, "read a batch"), ("nodes_per_batch", count, "nodes"),
            ("hit_share", share, "hits"),
        ) if run.has(name)
    ]  # fmt: skip
    if run.content.get("same_batches") is False:
        parts.append("other batches than the first strategy's")
    if run.text("bound_by"):
        parts.append(f"bound by {run.text('bound_by')}")
    if run.text("note"):
        parts.append(run.text("note"))
    return "; ".join(parts)


def _row(run: Part) -> tuple[str, ...]:
    ends, failed = _range(run), run.text("failed")
    same = run.content.get("same_batches")
    return (
        _name(run), run.text("paper"), seconds(run.number_or_none("seconds_per_batch")),
        UNKNOWN if ends is None else f"{seconds(ends[0])} – {seconds(ends[1])}",
        seconds(run.number_or_none("predicted_s")), run.text("bound_by", UNKNOWN),
        seconds(run.number_or_none("first_batch_s")), count(run.number_or_none("nodes_per_batch")),
        count(run.number_or_none("edges_per_batch")),
        count(run.number_or_none("rows_loaded_per_batch")),
        count(run.number_or_none("requests_per_batch")),
        size(run.number_or_none("bytes_read_per_batch")), share(run.number_or_none("hit_share")),
        size(run.number_or_none("peak_bytes")),
        {True: "yes", False: "no"}.get(same, UNKNOWN) if isinstance(same, bool) else UNKNOWN,
        f"did not run: {failed}" if failed else run.text("note"),
    )  # fmt: skip

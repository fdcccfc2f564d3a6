"""Sections that compare by bars: the plan's memory, strategies, headroom; and the choice, a table.

A bar is a row of an HTML table, which a narrow page shows below each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import (
    UNKNOWN,
    count,
    escaped,
    figure,
    folded,
    over,
    seconds,
    share,
    size,
    table,
    times,
)

NOISE = "noise"  # the kind of a bar that these rounds do not tell from the one it is compared with


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar.

    Attributes:
        value: how long it is; None: there is no bar, but its texts.
        says: the value in words.
        below: more to know of it.
        ends: the ends of a line over the bar's end.
        mark: where a diamond stands.
        kind: the style's class of its colour.
    """

    name: str
    value: float | None
    says: str
    below: str = ""
    ends: tuple[float, float] | None = None
    mark: float | None = None
    kind: str = "c1"


def bars_picture(bars: Sequence[Bar]) -> str:
    """Bars below each other, from a common zero, in HTML."""
    known = [number for bar in bars for number in (bar.value, *(bar.ends or ()), bar.mark)]
    most = max((number for number in known if number), default=1.0)
    rows = []
    for bar in bars:
        track = ""
        if bar.value is not None:
            least = "min-width:1.5px;" if bar.value else ""
            width = f"{least}width:{100 * bar.value / most:.2f}%"
            track = f'<i class="{bar.kind}" style="{width}"></i>'
            if bar.ends is not None and bar.ends[1] > bar.ends[0]:
                low, high = (100 * end / most for end in bar.ends)
                track += f'<i class="range" style="left:{low:.2f}%;width:{high - low:.2f}%"></i>'
            if bar.mark is not None:
                track += f'<i class="mark" style="left:{100 * bar.mark / most:.2f}%"></i>'
            track = f'<div class="track">{track}</div>'
        below = f"<small>{escaped(bar.below)}</small>" if bar.below else ""
        rows.append(
            f'<tr><th scope="row">{escaped(bar.name)}</th><td>{escaped(bar.says)}</td>'
            f"<td>{track}{below}</td></tr>"
        )
    return f'<table class="bars"><tbody>{"".join(rows)}</tbody></table>'


def _ends(run: Part) -> tuple[float, float] | None:
    """The fastest and the slowest round; None: not known."""
    rounds = run.numbers("rounds")
    return (min(rounds), max(rounds)) if rounds else None


def _range(ends: tuple[float, float] | None, unknown: str = UNKNOWN) -> str:
    return unknown if ends is None else f"{seconds(ends[0])} – {seconds(ends[1])}"


def _overlap(one: Part, other: Part) -> bool:
    """Whether the rounds of two runs overlap, so that more of them may order the runs otherwise."""
    first, second = _ends(one), _ends(other)
    return (
        first is not None and second is not None
        and first[0] <= second[1] and second[0] <= first[1]
    )  # fmt: skip


def _noise(bars: Sequence[Bar], runs: Sequence[Part], other: str) -> str:
    """A sentence on grey bars, whose rounds overlap those of `other`, or on what one round does not
    say; empty: neither is there."""
    if max((len(run.numbers("rounds")) for run in runs), default=0) == 1:
        return " One round does not show how large the noise is: give more --rounds."
    if all(bar.kind != NOISE for bar in bars):
        return ""
    return f" Grey bars are within the noise: their rounds overlap those of {other}."


# ---- the plan


def plan_section(run: Part) -> str:
    """What takes how much memory of the host and of the device, and why."""
    plan = run.part("plan")
    items = plan.parts("items")
    if not items:
        return ""
    budget = plan.number_or_none("memory")
    bars, rows, says = [], [], []
    for name, on_device in (("host memory", False), ("device memory", True)):
        here = [item for item in items if (item.text("where", "host") == "device") == on_device]
        total = sum(item.number("bytes") for item in here)
        if here:
            of = f" of the {size(budget)} given" if budget and not on_device else ""
            says.append(f"Planned: {size(total)} of {name}{of}.")
        for item in here:
            nbytes, what = item.number("bytes"), item.text("what", "not named")
            label, kind = (f"{what} (device)", "c4") if on_device else (what, "c1")
            why = item.text("why")
            bars.append(Bar(label, nbytes, size(nbytes), why, kind=kind))
            part = over(nbytes, total) or 0.0
            rows.append((what, name, f"{nbytes:,.0f}", size(nbytes), share(part), why))
    numbers = table(("item", "where", "bytes", "", "of all", "why"), rows)
    text = plan.text("text")
    if text:
        numbers += folded("As the command prints it", f'<pre tabindex="0">{escaped(text)}</pre>')
    about = "An upper bound for each use of memory, fixed before the first read; below it, why."
    return figure(about, numbers, bars_picture(bars), says)


# ---- headroom

FREE = {
    "nothing": "as it is",
    "sampler": "sampling free",
    "disk": "disk free",
    "loader": "loading free",
    "step": "training step free",
}


def headroom_section(run: Part) -> str:
    """Seconds a batch if one part of the work cost nothing."""
    lines = run.part("headroom").parts("lines")
    if not lines:
        return ""
    bars, rows = [], []
    real = next((line for line in lines if line.text("free") == "nothing"), None)
    for line in lines:
        free, took = line.text("free", "not named"), line.number("seconds_per_batch")
        factor, ends = line.number_or_none("times"), _ends(line)
        name, as_it_is = FREE.get(free, f"{free} free"), free == "nothing"
        says = seconds(took)
        if factor is not None and not as_it_is:
            says += f", {times(factor)} as fast"
        kind = "c1" if as_it_is else "c3"
        if real is not None and not as_it_is and _overlap(line, real):
            says, kind = f"{says}; within the noise", NOISE
        bars.append(Bar(name, took, says, ends=ends, kind=kind))
        rows.append((name, seconds(took), times(factor), _range(ends, "")))
    numbers = table(("", "seconds a batch", "as fast as it is", "fastest – slowest"), rows)
    about = (
        "The same batches, each line with one part made free: the shorter its bar, the more you "
        "can gain there. Lines go from the fastest round to the slowest."
    )
    about += _noise(bars, lines, "the run as it is")
    return figure(about, numbers, bars_picture(bars))


# ---- strategies

HEADS = (
    "strategy", "paper", "seconds a batch", "fastest – slowest", "predicted", "bound by",
    "first batch", "nodes a batch", "edges a batch", "rows loaded", "requests", "bytes read",
    "hits", "peak memory", "same batches", "note",
)  # fmt: skip


def strategies_section(run: Part) -> str:
    """Strategies side by side: seconds a batch, beside what was predicted, and what each reads."""
    compared = run.part("strategies")
    runs = compared.parts("runs")
    if not runs:
        return ""
    fastest = min(_alike(runs), key=_took, default=None)
    bars = [_bar(each, fastest) for each in runs]
    memory = compared.number_or_none("memory")
    about = "Bars are medians of the rounds, lines go from the fastest round to the slowest."
    if any(bar.mark is not None for bar in bars):
        about += " Diamonds are what was predicted before."
    if fastest is not None:
        about += _noise(bars, runs, f"{_name(fastest)}, the fastest")
    if memory is not None:
        about += f" Each had {size(memory)} of memory."
    numbers = table(HEADS, [_row(each) for each in runs])
    commands = [
        f"<li>{escaped(_name(each))}: <code>{escaped(each.text('command'))}</code></li>"
        for each in runs if each.has("command")
    ]  # fmt: skip
    if commands:
        numbers += folded("The command of each", f"<ul>{''.join(commands)}</ul>")
    return figure(about, numbers, bars_picture(bars), _fastest(runs))


def _name(run: Part) -> str:
    return run.text("strategy", "not named")


def _took(run: Part) -> float:
    return run.number("seconds_per_batch")


def _alike(runs: Sequence[Part]) -> list[Part]:
    """Those that ran, without those that had other batches."""
    return [
        run for run in runs
        if not run.has("failed") and run.fields.get("same_batches") is not False
    ]  # fmt: skip


def _fastest(runs: Sequence[Part]) -> list[str]:
    """Which one is the fastest, and by how much; those with other batches are set apart."""
    ran = [run for run in runs if not run.has("failed")]
    alike = sorted(_alike(runs), key=_took)
    says = []
    if len(alike) > 1:
        first, second = alike[:2]
        by = over(_took(second), _took(first))
        line = "" if len(alike) == len(ran) else "Of those with the same batches, "
        line += f"{_name(first)} takes the least time a batch: {seconds(_took(first))}"
        line += "" if by is None else f", {times(by)} as fast as {_name(second)}"
        if _overlap(first, second):
            line += "; their rounds overlap, so that another run may say otherwise"
        says.append(f"{line}.")
    return says + [
        f"{_name(run)} takes {seconds(_took(run))}, but for other batches."
        for run in ran if run not in alike
    ]  # fmt: skip


def _bar(run: Part, fastest: Part | None) -> Bar:
    if run.has("failed"):
        return Bar(_name(run), None, f"Did not run: {run.text('failed')}", run.text("note"))
    took, predicted, ends = _took(run), run.number_or_none("predicted_s"), _ends(run)
    says = seconds(took)
    if ends is not None:
        says += f" ({_range(ends)})"
    if predicted is not None:
        says += f"; predicted {seconds(predicted)}"
    noise = fastest is not None and run is not fastest and _overlap(run, fastest)
    if noise:
        says += "; within the noise"
    about = [
        f"{say(run.number(name))} {what}"
        for name, say, what in (
            ("bytes_read_per_batch", size, "read a batch"), ("nodes_per_batch", count, "nodes"),
            ("hit_share", share, "hits"),
        ) if run.has(name)
    ]  # fmt: skip
    if run.fields.get("same_batches") is False:
        about.append("other batches than the first strategy's")
    if run.text("bound_by"):
        about.append(f"bound by {run.text('bound_by')}")
    about.append(run.text("note"))
    below = "; ".join(filter(None, about))
    return Bar(_name(run), took, says, below, ends, predicted, NOISE if noise else "c1")


def _row(run: Part) -> tuple[str, ...]:
    failed, same = run.text("failed"), run.fields.get("same_batches")
    return (
        _name(run), run.text("paper"), seconds(run.number_or_none("seconds_per_batch")),
        _range(_ends(run)),
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


# ---- the choice


def choice_section(run: Part) -> str:
    """What each strategy would take, by the predictions that `strategy="auto"` chooses by."""
    choices = run.parts("choice")
    if not choices:
        return ""
    rows = [
        (
            each.text("strategy", "not named") + ("" if number else " (this run)"),
            seconds(each.number_or_none("seconds_per_batch")),
            seconds(each.number_or_none("seconds_per_epoch")),
            each.text("bound_by", UNKNOWN),
            each.text("changes", UNKNOWN),
            _note(each),
        )
        for number, each in enumerate(choices)
    ]
    heads = ("strategy", "loading a batch", "an epoch", "bound by", "changes in samples", "note")
    about = "Predicted before the first read. By these figures strategy=auto chooses."
    return figure(about, table(heads, rows, strong=0))


def _note(choice: Part) -> str:
    """Its note; of a strategy that cannot run, only the first sentence, which is the reason."""
    note = choice.text("note")
    if choice.has("seconds_per_batch"):
        return note
    first, more, _ = note.partition(". ")
    return f"{first}." if more else first

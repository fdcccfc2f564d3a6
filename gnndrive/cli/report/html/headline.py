"""The head of a page: what ran, when, where, its verdict, and its first figures."""

from __future__ import annotations

import math
from datetime import datetime

from gnndrive.cli.report.html.reading import Part, hit_share
from gnndrive.cli.report.html.values import (
    count,
    escaped,
    folded,
    over,
    paragraph,
    seconds,
    share,
    size,
    table,
)

KINDS = {
    "train": "Training",
    "strategies": "Comparison of strategies",
    "headroom": "Headroom",
    "plan": "A plan",
}


def what_ran(run: Part) -> str:
    """What ran, in a few words."""
    kind = run.text("kind", "run")
    return KINDS.get(kind, kind)


def headline(run: Part, label: str) -> str:
    """The head of a run in HTML; `label`: its number, if the page has several."""
    store = run.text("store")
    on = f' on <span class="store">{escaped(store)}</span>' if store else ""
    lines = [f"<h2>{escaped(label)}{escaped(what_ran(run))}{on}</h2>"]
    lines.append(paragraph(_when_and_where(run), "muted"))
    lines += [paragraph(verdict, "verdict") for verdict in _verdicts(run)]
    tiles = "".join(
        f"<div><dt>{escaped(what)}</dt><dd>{escaped(value)}</dd></div>"
        for what, value in _first_figures(run)
    )
    if tiles:
        lines.append(f'<dl class="tiles">{tiles}</dl>')
    epochs = _epochs(run)
    if epochs:
        lines.append(folded("The epochs", epochs))
    command = run.text("command")
    if command:
        lines.append(f'<p class="command"><code>{escaped(command)}</code></p>')
    return f"<header>{''.join(lines)}</header>"


def _when_and_where(run: Part) -> str:
    machine = run.part("machine")
    parts = [_date(run.text("date"))]
    if machine is not None:
        processors, memory = (
            machine.number_or_none("processors"),
            machine.number_or_none("memory_bytes"),
        )
        parts += [
            "" if processors is None else f"{processors:.0f} processors",
            "" if memory is None else f"{size(memory)} of memory",
            f"Python {machine.text('python')}" if machine.has("python") else "",
            f"torch {machine.text('torch')}" if machine.has("torch") else "",
        ]
    return " · ".join(part for part in [*parts, f"gnndrive {run.text('gnndrive')}"] if part)


def _date(text: str) -> str:
    """A date as people write it, or the text if it is none."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return text


def _verdicts(run: Part) -> list[str]:
    headroom = run.part("headroom")
    of_headroom = "" if headroom is None else headroom.text("verdict")
    found = [run.text("verdict"), of_headroom]
    said = [text for number, text in enumerate(found) if text and text not in found[:number]]
    return [text[0].upper() + text[1:] for text in said]


def _first_figures(run: Part) -> list[tuple[str, str]]:
    """What to know first of a run that trained."""
    if not (run.has("batches") and run.has("elapsed_s")):
        return []
    elapsed, batches = run.number("elapsed_s"), run.number("batches")
    waited, read = run.number_or_none("wait_s"), run.number_or_none("bytes_read")
    figures = [
        ("a batch", over(elapsed, batches), seconds),
        ("batches", batches, count),
        ("of the time waited for batches", over(waited, elapsed), share),
        ("of the rows were in the buffer", hit_share(run), share),
        ("read", read, size),
        ("read a second", over(read, elapsed), lambda value: size(value, "/s")),
        ("peak memory", run.number_or_none("peak_memory_bytes"), size),
    ]
    found = [(what, say(value)) for what, value, say in figures if value is not None]
    epochs = run.parts("epochs")
    last = epochs[-1].part("accuracy") if epochs else None
    for split in () if last is None else last.content:
        if last is not None and last.has(split):
            found.append((f"{split} accuracy", share(last.number(split))))
    return found


def _epochs(run: Part) -> str:
    """The epochs' results as a table; empty: there are none."""
    epochs = run.parts("epochs")
    accuracies = [each.part("accuracy") for each in epochs]
    splits = sorted({split for each in accuracies if each is not None for split in each.content})
    rows = []
    for number, (each, accuracy) in enumerate(zip(epochs, accuracies, strict=True), 1):
        of_splits = [
            share(None if accuracy is None else accuracy.number_or_none(split)) for split in splits
        ]
        epoch, loss = each.number_or_none("epoch"), each.number_or_none("loss")
        rows.append((
            f"{number if epoch is None else math.floor(epoch)}",
            "not a number" if loss is None else f"{loss:.4f}",
            seconds(each.number_or_none("seconds")), *of_splits,
        ))  # fmt: skip
    heads = ("epoch", "loss", "seconds", *(f"{split} accuracy" for split in splits))
    return table(heads, rows) if rows else ""

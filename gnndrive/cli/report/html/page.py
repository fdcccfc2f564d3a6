"""`page`: the head of each run, and the sections that the runs have the numbers for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gnndrive.cli.report.html.bars import (
    choice_section,
    headroom_section,
    plan_section,
    strategies_section,
)
from gnndrive.cli.report.html.pipeline import pipeline_section
from gnndrive.cli.report.html.plots import curve_section, timeline_section
from gnndrive.cli.report.html.reading import Part, hit_share
from gnndrive.cli.report.html.style import stylesheet
from gnndrive.cli.report.html.values import (
    count,
    escaped,
    folded,
    known,
    over,
    paragraph,
    seconds,
    share,
    size,
    table,
)

SECTIONS = {
    "pipeline": ("The pipeline and its rates", pipeline_section),
    "timeline": ("Queues and waiting over time", timeline_section),
    "memory": ("Planned memory", plan_section),
    "curve": ("Hits by size of the feature buffer", curve_section),
    "strategies": ("Strategies side by side", strategies_section),
    "headroom": ("Where time can be gained", headroom_section),
    "choice": ("What each strategy would take", choice_section),
}
"""The page's sections, in its order; each gives HTML, or an empty text."""
KINDS = {
    "train": "Training",
    "strategies": "Comparison of strategies",
    "headroom": "Headroom",
    "plan": "A plan",
}

# No script runs and nothing is fetched, whatever a file says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(paths: Sequence[Path], runs: Sequence[Part]) -> str:
    """The page of one or several runs; a ConfigError names a value that cannot be."""
    labels = [""]
    if len(runs) > 1:
        labels = [f"Run {number}, {path.name}" for number, path in enumerate(paths, 1)]
    labelled = list(zip(labels, runs, strict=True))
    heads = [headline(run, f"{label}: " if label else "") for label, run in labelled]
    sections, links = [], []
    for anchor, (title, section_of) in SECTIONS.items():
        figures = ""
        for label, run in labelled:
            inside = section_of(run)
            if inside and label:
                figures += f"<h3>{escaped(label)}</h3>"
            if inside:
                figures += f"<figure>{inside}{_command(run, 'Made by ')}</figure>"
        if figures:
            links.append(f'<li><a href="#{anchor}">{title}</a></li>')
            sections.append(f'<section id="{anchor}"><h2>{title}</h2>{figures}</section>\n')
    if len(links) > 1:
        heads.append(f'<nav aria-label="sections"><ul>{"".join(links)}</ul></nav>')
    title = " and ".join(dict.fromkeys(what_ran(run) for run in runs))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)} · gnndrive</title><style>{stylesheet()}</style></head>\n"
        f"<body><main><h1>gnndrive report</h1>{''.join(heads)}\n{''.join(sections)}"
        "</main></body></html>\n"
    )


def _command(run: Part, before: str = "") -> str:
    """The command as it was typed; empty: not known."""
    command = run.text("command")
    return f'<p class="command">{before}<code>{escaped(command)}</code></p>' if command else ""


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
    return f"<header>{''.join(lines)}{_command(run)}</header>"


def _when_and_where(run: Part) -> str:
    machine = run.part("machine")
    parts = [
        _date(run.text("date")),
        known(machine.number_or_none("processors"), lambda number: f"{number:.0f} processors"),
        known(machine.number_or_none("memory_bytes"), lambda nbytes: f"{size(nbytes)} of memory"),
        f"Python {machine.text('python')}" if machine.has("python") else "",
        f"torch {machine.text('torch')}" if machine.has("torch") else "",
        f"gnndrive {run.text('gnndrive')}",
    ]
    return " · ".join(filter(None, parts))


def _date(text: str) -> str:
    """A date as people write it, or the text if it is none."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return text


def _verdicts(run: Part) -> list[str]:
    found = dict.fromkeys([run.text("verdict"), run.part("headroom").text("verdict")])
    return [text[0].upper() + text[1:] for text in found if text]


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
    accuracies = [epoch.part("accuracy") for epoch in run.parts("epochs")[-1:]]
    return found + [
        (f"{split} accuracy", share(last.number(split)))
        for last in accuracies for split in last.fields if last.has(split)
    ]  # fmt: skip


def _epochs(run: Part) -> str:
    """The epochs' results as a table; empty: there are none."""
    epochs = run.parts("epochs")
    accuracies = [each.part("accuracy") for each in epochs]
    splits = sorted({split for each in accuracies for split in each.fields})
    rows = []
    for number, (each, accuracy) in enumerate(zip(epochs, accuracies, strict=True), 1):
        of_splits = [share(accuracy.number_or_none(split)) for split in splits]
        epoch, loss = each.number_or_none("epoch"), each.number_or_none("loss")
        rows.append((
            f"{number if epoch is None else math.floor(epoch)}",
            "not a number" if loss is None else f"{loss:.4f}",
            seconds(each.number_or_none("seconds")), *of_splits,
        ))  # fmt: skip
    heads = ("epoch", "loss", "seconds", *(f"{split} accuracy" for split in splits))
    return table(heads, rows) if rows else ""

"""The plan: what takes how much memory of the host and of the device, and why."""

from __future__ import annotations

from gnndrive.cli.report.html.bars import Bar, draw_bars
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import escaped, folded, share, size, table

WHERE = {"host": "host memory", "device": "device memory"}


def plan_figure(run: Part) -> Figure | None:
    """The figure of a run with a plan; None: it has none."""
    plan = run.part("plan")
    items = [] if plan is None else plan.parts("items")
    if plan is None or not items:
        return None
    budget = plan.number_or_none("memory")
    bars, rows, says = [], [], []
    for place, name in WHERE.items():
        here = [item for item in items if _where(item) == place]
        total = sum(item.number("bytes") for item in here)
        if here:
            of = f" of the {size(budget)} given" if budget and place == "host" else ""
            says.append(f"Planned: {size(total)} of {name}{of}.")
        for item in here:
            nbytes, what = item.number("bytes"), item.text("what", "not named")
            label = what if place == "host" else f"{what} (device)"
            why = item.text("why")
            kind = "c1" if place == "host" else "c4"
            bars.append(Bar(label, nbytes, size(nbytes), why, kind=kind))
            part = nbytes / total if total else 0.0
            rows.append((what, name, f"{nbytes:,.0f}", size(nbytes), share(part), why))
    numbers = table(("item", "where", "bytes", "", "of all", "why"), rows)
    text = plan.text("text")
    if text:
        numbers += folded("As the command prints it", f'<pre tabindex="0">{escaped(text)}</pre>')
    about = "An upper bound for each use of memory, fixed before the first read; below it, why."
    return Figure(
        "Planned memory", about, numbers, lambda picture: draw_bars(picture, bars), tuple(says)
    )


def _where(item: Part) -> str:
    return "device" if item.text("where", "host") == "device" else "host"

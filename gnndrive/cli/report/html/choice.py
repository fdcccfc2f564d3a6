"""What `strategy="auto"` chose, and from what."""

from __future__ import annotations

from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.values import UNKNOWN, seconds, table


def choice_figure(run: Part) -> Figure | None:
    """The figure of a run with a choice; None: it has none."""
    choices = run.parts("choice")
    if not choices:
        return None
    rows = [
        (
            each.text("strategy", "not named") + ("" if number else " (chosen)"),
            seconds(each.number_or_none("seconds_per_batch")),
            seconds(each.number_or_none("seconds_per_epoch")),
            each.text("bound_by", UNKNOWN),
            each.text("note"),
        )
        for number, each in enumerate(choices)
    ]
    numbers = table(("strategy", "a batch", "an epoch", "bound by", "note"), rows, strong=0)
    about = "What each strategy would take here, predicted before the first read."
    return Figure("The choice of strategy=auto", about, numbers)

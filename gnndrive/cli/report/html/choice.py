"""What each strategy would take, by the predictions that `strategy="auto"` chooses by."""

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
            each.text("strategy", "not named") + ("" if number else " (this run)"),
            seconds(each.number_or_none("seconds_per_batch")),
            seconds(each.number_or_none("seconds_per_epoch")),
            each.text("bound_by", UNKNOWN),
            _note(each),
        )
        for number, each in enumerate(choices)
    ]
    numbers = table(("strategy", "loading a batch", "an epoch", "bound by", "note"), rows, strong=0)
    about = "Predicted before the first read. By these figures strategy=auto chooses."
    return Figure("What each strategy would take", about, numbers)


def _note(choice: Part) -> str:
    """Its note; of a strategy that cannot run, only the first sentence, which is the reason."""
    note = choice.text("note")
    if choice.has("seconds_per_batch"):
        return note
    first, more, _ = note.partition(". ")
    return f"{first}." if more else first

"""`page`: the whole page, made of the figures that the runs have the numbers for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnndrive.cli.report.html.choice import choice_figure
from gnndrive.cli.report.html.curve import curve_figure
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.headline import headline, what_ran
from gnndrive.cli.report.html.headroom import headroom_figure
from gnndrive.cli.report.html.memory import plan_figure
from gnndrive.cli.report.html.pipeline import pipeline_figure
from gnndrive.cli.report.html.reading import Part
from gnndrive.cli.report.html.strategies import strategies_figure
from gnndrive.cli.report.html.style import stylesheet
from gnndrive.cli.report.html.timeline import timeline_figure
from gnndrive.cli.report.html.values import escaped

FIGURES = {
    "pipeline": pipeline_figure,
    "timeline": timeline_figure,
    "memory": plan_figure,
    "curve": curve_figure,
    "strategies": strategies_figure,
    "headroom": headroom_figure,
    "choice": choice_figure,
}
"""The page's sections, in its order."""

# No script runs and nothing is fetched, whatever a file says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Run:
    """A run on the page.

    Attributes:
        content: its file.
        label: what tells it from the others; empty: it is the only one.
    """

    content: Part
    label: str

    @property
    def command(self) -> str:
        """Its command as it was typed; empty: not known."""
        return self.content.text("command")


def page(paths: Sequence[Path], parts: Sequence[Part]) -> str:
    """The page of one or several runs.

    Args:
        paths: their files.
        parts: what the files hold.

    Raises:
        ConfigError: a value of a file is not what it has to be; the message says which.
    """
    several = len(parts) > 1
    runs = [
        Run(part, f"Run {number}, {path.name}" if several else "")
        for number, (path, part) in enumerate(zip(paths, parts, strict=True), 1)
    ]
    heads = [headline(run.content, f"{run.label}: " if run.label else "") for run in runs]
    sections, links = [], []
    for anchor, figure_of in FIGURES.items():
        found = [(run, figure) for run in runs if (figure := figure_of(run.content)) is not None]
        if found:
            title = found[0][1].title
            links.append(f'<li><a href="#{anchor}">{escaped(title)}</a></li>')
            sections.append(_section(anchor, title, found))
    if len(links) > 1:
        heads.append(f'<nav aria-label="sections"><ul>{"".join(links)}</ul></nav>')
    title = " and ".join(dict.fromkeys(what_ran(run.content) for run in runs))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)} · gnndrive</title><style>{stylesheet()}</style></head>\n"
        f"<body><main><h1>gnndrive report</h1>{''.join(heads)}\n{''.join(sections)}"
        "</main></body></html>\n"
    )


def _section(anchor: str, title: str, found: Sequence[tuple[Run, Figure]]) -> str:
    """A section with the figure of each run that has one."""
    inside = ""
    for number, (run, figure) in enumerate(found, 1):
        if run.label:
            inside += f"<h3>{escaped(run.label)}</h3>"
        inside += figure.markup(f"{anchor}{number}", run.command)
    return f'<section id="{anchor}"><h2>{escaped(title)}</h2>{inside}</section>\n'

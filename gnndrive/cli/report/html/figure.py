"""`Figure`: a picture in two widths, its numbers as a table, and the command that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnndrive.cli.report.html.drawing import NARROW, WIDE, Drawing
from gnndrive.cli.report.html.values import escaped, folded, paragraph


@dataclass(frozen=True, slots=True)
class Figure:
    """What a section shows of one run.

    Attributes:
        title: what the picture shows, in a few words.
        about: how to read it, in a sentence or two; it stands above the picture.
        says: what follows from it, one sentence a line; it stands above the picture, too.
        draw: draws it into an empty picture of any width; None: the numbers stand open instead.
        numbers: the numbers in HTML.
    """

    title: str
    about: str
    numbers: str
    draw: Callable[[Drawing], None] | None = None
    says: tuple[str, ...] = ()

    def markup(self, name: str, command: str) -> str:
        """The figure in HTML.

        Args:
            name: an id that no other figure of the page has.
            command: how to get it again; empty: not known.
        """
        inside = "".join(paragraph(line, "says") for line in self.says)
        if self.about:
            inside += f"<figcaption>{escaped(self.about)}</figcaption>"
        if self.draw is None:
            inside += self.numbers
        else:
            about = " ".join([self.about, *self.says])
            for kind, width in (("wide", WIDE), ("narrow", NARROW)):
                picture = Drawing(f"{name}-{kind}", width)
                self.draw(picture)
                inside += f'<div class="{kind}">{picture.svg(self.title, about)}</div>'
            inside += folded("The numbers", self.numbers)
        if command:
            inside += f'<p class="command">Made by <code>{escaped(command)}</code></p>'
        return f"<figure>{inside}</figure>"

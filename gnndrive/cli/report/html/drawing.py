"""`Drawing`: an SVG whose height follows from what is drawn, and whose texts have known boxes.

Text in an SVG does not wrap by itself. So the width of a text is computed from a table of a wide
common font (DejaVu Sans); in most other fonts a text is narrower, and nothing overlaps. Use HTML
for everything that may be long.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from gnndrive.cli.report.html.values import escaped

SIZE = 12.0  # of a text, in px
WIDE, NARROW = 1040, 310  # the two widths in which a figure is drawn: on a screen, on a phone
LINE = 16.0  # from one line of text to the next
ASCENT, DESCENT = 0.8, 0.24  # of a text's box, in its size

# Hundredths of the size, from the space to the tilde.
_WIDTHS = (
    32, 41, 46, 84, 64, 96, 78, 28, 40, 40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 54, 100, 69, 69, 70, 78, 64, 58, 78, 76, 30, 30, 66, 56, 87, 75, 79,
    61, 79, 70, 64, 62, 74, 69, 99, 69, 62, 69, 40, 34, 40, 84, 50, 50, 62, 64, 55, 64, 62, 36, 64,
    64, 28, 28, 58, 28, 98, 64, 62, 64, 64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84,
)  # fmt: skip
_OTHERS = {"\xa0": 32, "·": 32, "–": 50, "µ": 64}
_BOLD = 1.17


def text_width(text: str, *, bold: bool = False, size: float = SIZE) -> float:
    """The most that a text takes in px."""
    hundredths = sum(_width(character) for character in text)
    return hundredths / 100 * size * (_BOLD if bold else 1)


def _width(character: str) -> int:
    code = ord(character)
    if 32 <= code < 127:
        return _WIDTHS[code - 32]
    wide = unicodedata.east_asian_width(character) in "WF"
    return _OTHERS.get(character, 140 if wide else 100)


def fitted(text: str, width: float, *, bold: bool = False) -> str:
    """The text, or its beginning and an ellipsis if it is wider."""
    if text_width(text, bold=bold) <= width:
        return text
    while text and text_width(f"{text}…", bold=bold) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def wrapped(text: str, width: float, most: int = 6, *, bold: bool = False) -> list[str]:
    """The text in lines that are not wider, at most so many of them; breaks at spaces only."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, bold=bold) <= width:
            lines[-1] = longer
        elif len(lines) == most:
            lines[-1] += " …"
            break
        else:
            lines.append(word)
    return [fitted(line, width, bold=bold) for line in lines]


@dataclass(eq=False)
class Drawing:
    """A picture that grows downward.

    Attributes:
        name: an id that no other picture of the page has.
        width: in px; 1 px of the drawing is one of the page unless the page is narrower.
        bottom: the lowest point drawn so far.
    """

    name: str
    width: float
    bottom: float = 0.0
    _elements: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, kind: str = "", *, end: bool = False,
        middle: bool = False,
    ) -> None:  # fmt: skip
        """A line of text whose baseline begins at (x, y), or ends there, or has its middle there.

        Args:
            x, y: in px.
            text: any text.
            kind: classes of the style: "bold", "muted", "accent".
            end, middle: which point of the baseline x is.
        """
        anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
        of_kind = f' class="{kind}"' if kind else ""
        self._elements.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{anchor}{of_kind}>{escaped(text)}</text>'
        )
        self.down_to(y + DESCENT * SIZE)

    def lines(self, x: float, y: float, texts: list[str], kind: str = "") -> float:
        """Lines of text below each other; the first one's baseline is at y. Returns the baseline
        of a line that would follow."""
        for number, text in enumerate(texts):
            self.text(x, y + number * LINE, text, kind)
        return y + len(texts) * LINE

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, *, fill: str = "",
        corner: float = 0,
    ) -> None:  # fmt: skip
        """A rectangle; `fill`: the id of a pattern that fills it instead of a colour."""
        round_ = f' rx="{_n(corner)}"' if corner else ""
        filled = f' fill="url(#{fill})"' if fill else ""
        self._elements.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" '
            f'height="{_n(max(height, 0))}"{round_}{filled} class="{kind}"/>'
        )
        self.down_to(y + height)

    def line(self, points: list[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._elements.append(f'<polyline points="{path}" class="{kind}"/>')
        self.down_to(max(y for _, y in points))

    def arrow(self, points: list[tuple[float, float]], kind: str = "arrow") -> None:
        """A line with a head at its last point; the last stretch is level or upright."""
        (x0, y0), (x, y) = points[-2:]
        self.line(points, kind)
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        left, right = ((x - 6 * dx + 4 * dy * side, y - 6 * dy + 4 * dx * side) for side in (-1, 1))
        path = " ".join(f"{_n(a)},{_n(b)}" for a, b in (left, (x, y), right))
        self._elements.append(f'<polygon points="{path}" class="head"/>')

    def mark(self, x: float, y: float, kind: str) -> None:
        """A diamond around a point."""
        path = f"{_n(x)},{_n(y - 6)} {_n(x + 5)},{_n(y)} {_n(x)},{_n(y + 6)} {_n(x - 5)},{_n(y)}"
        self._elements.append(f'<polygon points="{path}" class="{kind}"/>')
        self.down_to(y + 6)

    def define(self, markup: str) -> None:
        """Add definitions, such as patterns; `markup` is SVG."""
        self._elements.append(f"<defs>{markup}</defs>")

    def down_to(self, y: float) -> None:
        """Make the picture reach down to y."""
        self.bottom = max(self.bottom, y)

    def svg(self, title: str, about: str) -> str:
        """The picture in SVG.

        Args:
            title, about: what it shows, for those who do not see it.
        """
        height, name = self.bottom + 2, self.name
        return (
            f'<svg viewBox="0 0 {_n(self.width)} {_n(height)}" role="img" '
            f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escaped(title)}</title>'
            f'<desc id="{name}-d">{escaped(about)}</desc>{"".join(self._elements)}</svg>'
        )


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")

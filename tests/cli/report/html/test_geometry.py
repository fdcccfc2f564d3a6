"""No text of a figure overlaps another or leaves its figure, in either width.

The boxes are computed from a table of the widths of a wide font; `.ci/report_in_browser.py` asks a
browser.
"""

from typing import Any
from xml.etree.ElementTree import Element

import pytest

from gnndrive.cli.report.html.drawing import (
    ASCENT,
    DESCENT,
    NARROW,
    SIZE,
    WIDE,
    Drawing,
    fitted,
    text_width,
    wrapped,
)
from tests.cli.report.html.conftest import pictures
from tests.cli.report.html.samples import RUNS

Box = tuple[float, float, float, float, str]
LONG = "a-very-long-name-of-a-strategy-that-somebody-has-registered-for-a-test 数据加载器" * 3


def boxes(picture: Element) -> list[Box]:
    """(left, top, right, bottom, text) of each text."""
    found = []
    for element in picture.iter("text"):
        text, kind = element.text or "", (element.get("class") or "").split()
        bold = bool({"bold", "accent"} & set(kind))
        width = text_width(text, bold=bold)
        x, y = float(element.get("x", "0")), float(element.get("y", "0"))
        left = x - width * {"end": 1.0, "middle": 0.5}.get(element.get("text-anchor", ""), 0)
        found.append((left, y - ASCENT * SIZE, left + width, y + DESCENT * SIZE, text))
    return found


def findings(picture: Element) -> list[str]:
    """Texts that overlap, or that leave the picture."""
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    texts, wrong = boxes(picture), []
    for number, (left, top, right, bottom, text) in enumerate(texts):
        if left < -0.5 or right > width + 0.5 or top < 0 or bottom > height:
            wrong.append(f"outside: {text}")
        wrong += [
            f"overlap: {text} | {other}"
            for a, b, c, d, other in texts[number + 1 :]
            if left < c and a < right and top < d and b < bottom
        ]
    for rect in picture.iter("rect"):
        if (rect.get("class") or "").startswith("box"):
            wrong += _cut(rect, texts)
    return wrong


def _cut(rect: Element, texts: list[Box]) -> list[str]:
    """Texts that begin in a box and end outside of it."""
    x, y, width, height = (float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
    return [
        f"cut: {text}"
        for left, top, right, bottom, text in texts
        if x <= left < x + width and y <= top < y + height
        and (right > x + width + 0.5 or bottom > y + height + 0.5)
    ]  # fmt: skip


def longer(value: Any) -> Any:
    """The same with long texts and large numbers."""
    if isinstance(value, dict):
        return {name: longer(each) for name, each in value.items()}
    if isinstance(value, list):
        return [longer(each) for each in value]
    if isinstance(value, str):
        return f"{value} {LONG}"
    return value * 1_234.567 if isinstance(value, float | int) and value is not True else value


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("change", [lambda run: run, longer], ids=["usual", "long"])
def test_texts_do_not_overlap(page_of, kind, change):
    run = RUNS[kind]()
    changed = change(run) | {name: run[name] for name in ("date", "machine")}
    found = pictures(page_of(changed))
    assert found
    widths = {picture.get("viewBox", "").split()[2] for picture in found}
    assert widths == {str(WIDE), str(NARROW)}
    assert [finding for picture in found for finding in findings(picture)] == []


def test_an_overlap_and_a_text_outside_are_found():
    picture = Drawing("a", 100)
    picture.box(0, 0, 30, 20, "box stage")
    picture.text(2, 14, "wider than its box")
    picture.text(40, 18, "on it")
    (drawn,) = pictures(picture.svg("A", "B"))
    assert [finding.split(":")[0] for finding in findings(drawn)] == ["outside", "overlap", "cut"]


def test_text_is_cut_and_wrapped_to_a_width():
    assert fitted("short", 100) == "short"
    cut = fitted("a long text that does not fit", 100)
    assert cut.endswith("…")
    assert text_width(cut) <= 100
    lines = wrapped("one two three four five six seven", 60, most=3)
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert max(map(text_width, lines)) <= 60
    assert wrapped("", 60) == [""]

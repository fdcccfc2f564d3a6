"""The page's colours can be told apart, in the light and in the dark."""

import re

import pytest

from gnndrive.cli.report.html.style import DARK, LIGHT, stylesheet


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_lines_can_be_seen(colours):
    grounds = [colours[name] for name in ("page", "card", "raised")]
    for name in ("text", "muted", "accent"):
        assert min(contrast(colours[name], ground) for ground in grounds) >= 4.5, name
    for name in ("c1", "c2", "c3", "c4"):
        assert contrast(colours[name], colours["card"]) >= 3, name


def test_every_colour_is_one_of_both_schemes():
    assert set(LIGHT) == set(DARK)
    style = stylesheet()
    assert set(re.findall(r"var\(--(\w+)\)", style)) == set(LIGHT)
    rules = style.split("*{box-sizing", 1)[1]
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b", rules)
    assert style.count("{") == style.count("}")

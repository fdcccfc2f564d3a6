"""The switches of the CUDA device, as text."""

from __future__ import annotations

import dataclasses

import pytest

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.common.errors import ConfigError


def test_every_switch_can_be_given_as_text():
    for field in dataclasses.fields(MoveOptions):
        value = not field.default if isinstance(field.default, bool) else 8
        made = MoveOptions(**{field.name: value})
        assert made != MoveOptions()
        assert MoveOptions.parse(str(made).split()) == made
        assert type(getattr(MoveOptions.parse([str(made)]), field.name)) is type(field.default)


def test_a_switch_alone_is_on_and_a_dash_is_as_good():
    assert MoveOptions.parse(["places-on-device"]).places_on_device is True
    assert MoveOptions.parse(["restrict=on"]) == MoveOptions() == MoveOptions.parse([])
    assert str(MoveOptions()) == "defaults"
    assert str(MoveOptions.parse(["restrict=off", "huge-pages"])) == "restrict=off huge_pages=on"


@pytest.mark.parametrize(
    ("switch", "says"),
    [
        ("block=1", "choose from blocks, places_on_device"),
        ("blocks=many", "give a number"),
        ("blocks", "give a number"),
        ("blocks=-1", "at least 1, or 0"),
        ("loads=3", "choose one of 1, 2, 4, 8"),
        ("portions=0", "at least 1"),
        ("restrict=maybe", "on or off"),
    ],
)
def test_a_wrong_switch_says_what_is_right(switch: str, says: str):
    with pytest.raises(ConfigError, match=says):
        MoveOptions.parse([switch])

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
    assert MoveOptions.parse(["gather-stream"]).gather_stream is True
    assert MoveOptions.parse(["gather_stream=off"]) == MoveOptions.parse([]) == MoveOptions()


@pytest.mark.parametrize(
    ("switch", "says"),
    [
        ("block=1", "choose from blocks, gather_stream"),
        ("blocks=many", "give a number"),
        ("blocks=-1", "at least 1, or 0"),
        ("portions=0", "at least 1"),
        ("gather_stream=maybe", "on or off"),
    ],
)
def test_a_wrong_switch_says_what_is_right(switch, says):
    with pytest.raises(ConfigError, match=says):
        MoveOptions.parse([switch])

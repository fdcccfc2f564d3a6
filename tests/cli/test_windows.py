"""`gnndrive plan` and `gnndrive train` with a strategy that samples inside windows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnndrive.store.partitioned.partition import partition
from tests.cli.conftest import Command

PARTS = 8
FEW = ("--fanout", "4,3", "--batch-size", "100")
WINDOWS = ("--strategy", "hierbatching", "--partitioned", "default", "--megabatch", "2")


@pytest.fixture
def partitioned(store: Path) -> Path:
    partition(store, PARTS, "random", "128MB")
    return store


def test_a_plan_lists_the_windows(gnndrive: Command, partitioned: Path) -> None:
    out = gnndrive("plan", partitioned, *FEW, *WINDOWS, "--static", "0.03").out
    assert "60 static ones and two of 4 windows, each of 2 of 8 partitions" in out
    assert "window graphs" in out
    drawn = gnndrive("plan", partitioned, *FEW, *WINDOWS, "--memory", "100MB").out
    assert "a window keeps " in drawn
    ended = gnndrive("plan", partitioned, *FEW, *WINDOWS, "--compute-s", "1")
    assert (ended.code, "those of strategy hierbatching are not" in ended.err) == (2, True)


def test_training_inside_windows(gnndrive: Command, partitioned: Path) -> None:
    """The other splits are evaluated on the whole graph."""
    words = ("train", partitioned, *FEW, "--epochs", "2", "--json")
    once = gnndrive(*words, *WINDOWS).json
    twice = gnndrive(*words, *WINDOWS, "--passes", "2").json
    assert (once["batches"], once["windows"]) == (2 * (8 + 4 - 1), 2 * 4)
    assert (twice["batches"], twice["windows"]) == (2 * once["batches"], once["windows"])


@pytest.mark.parametrize(
    ("option", "value"), [("--partitioned", "default"), ("--megabatch", "2"), ("--passes", "2"),
                          ("--static", "0.1")],
)  # fmt: skip
def test_options_of_windows_need_such_a_strategy(
    gnndrive: Command, planted: Path, option: str, value: str
) -> None:
    for command in ("plan", "train"):
        ended = gnndrive(command, planted, option, value)
        assert (ended.code, "is for a strategy that samples inside" in ended.err) == (2, True)
    sketch = ("--nodes", "1M", "--edges", "2M", "--row-bytes", "8")
    assert f"{option} needs a STORE" in gnndrive("plan", *sketch, option, value).err

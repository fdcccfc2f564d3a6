"""`gnndrive train` and `plan` with strategies that sample inside windows of a partitioned store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnndrive.cli.commands import loader_options
from tests.cli.conftest import NODES, Command
from tests.cli.test_partitions import RANDOM, refusal

SMALL = ("--fanout", "3,2", "--batch-size", "100")
QUICK = ("--epochs", "1", "--hidden", "8", "--json")
PARTS = {"hierbatching": "default", "marius": "other"}


@pytest.fixture
def partitioned(gnndrive: Command, store: Path) -> Path:
    for name in PARTS.values():
        gnndrive("partition", store, *RANDOM, "--name", name)
    return store


@pytest.mark.parametrize("strategy", PARTS)
def test_training_samples_inside_windows_and_evaluation_does_not(
    gnndrive: Command, partitioned: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
):
    made, make = list[dict[str, Any]](), loader_options.NeighborLoader

    def noted(*args: Any, **given: Any) -> Any:
        made.append(given)
        return make(*args, **given)

    monkeypatch.setattr(loader_options, "NeighborLoader", noted)
    words = ("--strategy", strategy, "--partitioned", PARTS[strategy])
    report = gnndrive("train", partitioned, *SMALL, *words, *QUICK).json
    assert report["batches"] == 0.4 * NODES // 100  # all partitions fit into one window
    used = [(each["strategy"], each["partitioned"], each["samplers"]) for each in made]
    assert used.count((strategy, PARTS[strategy], "auto")) == 1
    assert used.count(("gnndrive", None, loader_options.SAMPLERS)) == len(used) - 1 >= 1


def test_a_plan_says_what_windows_hold(gnndrive: Command, partitioned: Path):
    words = (*SMALL, "--strategy", "hierbatching", "--memory", "60MB")
    planned = gnndrive("plan", partitioned, *words, "--partitioned", "other")
    assert planned.code == 0
    assert "of 8 partitions" in planned.out
    assert "a window keeps " in planned.out
    said = refusal(gnndrive("plan", partitioned, *words))
    assert "give partitioned='default', partitioned='other'" in said


def test_what_goes_with_other_strategies_is_refused(gnndrive: Command, partitioned: Path):
    words = ("plan", partitioned, *SMALL)
    windows = ("--strategy", "marius", "--partitioned", "other")
    assert "give strategy='hierbatching'" in refusal(gnndrive(*words, *windows[2:]))
    said = refusal(gnndrive(*words, *windows, "--compute-s", "0.1"))
    assert "of strategy marius are not: leave them out" in said
    numbers = ("plan", "--nodes", "1M", "--edges", "10M", "--row-bytes", "100")
    assert "--partitioned needs a STORE" in refusal(gnndrive(*numbers, "--partitioned", "other"))

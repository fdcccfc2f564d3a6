"""The strategy `lsm-gnn`: gnndrive's batches, on the host and on a device with a victim buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ConfigError, NeighborLoader
from tests.loader.batches import assert_same, check

Make = Callable[..., NeighborLoader]
COMMON: dict[str, Any] = {"seed": 5, "shuffle": True, "buffer": "30KB"}


@pytest.mark.parametrize("superbatch", [None, 6])
@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_the_batches_are_those_of_gnndrive(
    make: Make, data: Data, device: str, superbatch: int | None
) -> None:
    plain = make(**COMMON, device=device)
    ahead = make(strategy="lsm-gnn", superbatch=superbatch, **COMMON, device=device)
    for _ in range(2):
        for ours, theirs in zip(ahead, plain, strict=True):
            assert_same(ours, theirs)
            if device == "cpu":
                check(ours, data)


@pytest.mark.parametrize("some_staging", [0], indirect=True)
def test_rows_come_back_from_the_victim_buffer(make: Make, some_staging: None) -> None:
    with_victims = make(strategy="lsm-gnn", victim_buffer="40KB", **COMMON, device="simulated-cuda")
    without = make(strategy="lsm-gnn", victim_buffer=0, **COMMON, device="simulated-cuda")
    for ours, theirs in zip(with_victims, without, strict=True):
        assert torch.equal(ours.n_id, theirs.n_id)
    ours, theirs = with_victims.stats(), without.stats()
    assert float(ours["rows_from_victims"]) > 0.2 * float(ours["rows_loaded"])
    assert theirs["rows_from_victims"] == 0


def test_the_host_has_no_victim_buffer_and_says_so(make: Make) -> None:
    loader = make(strategy="lsm-gnn", **COMMON)
    assert "host memory themselves" in str(loader.plan())
    with pytest.raises(ConfigError, match="strategy"):
        make(victim_buffer="1MB", **COMMON)


def test_a_state_of_gnndrive_is_resumed(make: Make) -> None:
    expected, begun = list(make(**COMMON)), make(**COMMON)
    batches = iter(begun)
    for _ in range(3):
        next(batches)
    other = make(strategy="lsm-gnn", superbatch=4, **COMMON)
    other.load_state_dict(begun.state_dict())
    for ours, theirs in zip(other, expected[3:], strict=True):
        assert_same(ours, theirs)

"""A resumed epoch yields exactly the remaining batches, each once."""

import json
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader
from tests.loader.batches import assert_all_same
from tests.loader.conftest import NODES
from tests.soak import product

BATCHES = 25


def taken(batches: Any, count: int) -> list[Data]:
    return [next(batches) for _ in range(count)]


def moved(loader: NeighborLoader, other: NeighborLoader) -> NeighborLoader:
    """`other`, with the state of `loader` after it was written to a file and read again."""
    state = json.loads(json.dumps(loader.state_dict()))
    other.load_state_dict(state)
    assert state["finished"] or other.state_dict() == state
    return other


@product("left_after,seed,buffer", [0, 7, BATCHES], [5, None], ["40KB", "60KB"])
def test_a_resumed_epoch_yields_exactly_the_remaining_batches(make, left_after, seed, buffer):
    """Where all rows fit, the eighth batch is in the middle of a group."""
    torch.manual_seed(1)
    whole = list(make(shuffle=True, seed=seed))
    torch.manual_seed(1)
    loader = make(shuffle=True, seed=seed, buffer=buffer)
    given = taken(iter(loader), left_after)
    assert loader.state_dict()["batches"] == left_after
    other = moved(loader, make(shuffle=True, seed=seed, buffer=buffer))
    assert_all_same(whole, [*given, *other])


def test_the_epochs_after_a_resumed_one_are_the_same_as_without_resuming(make):
    loader, first = make(shuffle=True, seed=5), make(shuffle=True, seed=5)
    epochs = [[batch.n_id for batch in loader] for _ in range(3)]
    assert len(list(first)) == BATCHES
    assert first.state_dict()["finished"] is True
    first = moved(first, make(shuffle=True, seed=5))
    taken(iter(first), 4)
    second = moved(first, make(shuffle=True, seed=5))
    for expected in (epochs[1][4:], epochs[2]):
        for n_id, batch in zip(expected, second, strict=True):
            assert torch.equal(batch.n_id, n_id)


def test_resuming_after_a_warm_up(make):
    """An iterator that is closed in the middle has not finished."""
    loader, other = (make(seed=5, device="simulated-cuda", buffer=None) for _ in range(2))
    batches = iter(loader)
    given = taken(batches, 6)
    batches.close()
    assert list(batches) == []
    state = loader.state_dict()
    assert (state["batches"], state["finished"]) == (6, False)
    for expected, batch in zip(make(seed=5), given + list(moved(loader, other)), strict=True):
        assert torch.equal(expected.n_id, batch.n_id)
    assert other.state_dict()["finished"] is True


# ---- samplers of the user's


def test_a_sampler_draws_the_same_and_a_distributed_ones_epoch_is_in_the_state(make):
    def drawing() -> NeighborLoader:
        sampler = RandomSampler(range(NODES), generator=torch.Generator().manual_seed(3))
        return make(sampler=sampler, seed=5)

    def rank() -> NeighborLoader:
        loader = make(sampler=DistributedSampler(range(NODES), 2, 1), batch_size=20, seed=5)
        loader.set_epoch(3)
        return loader

    for build in (drawing, rank):
        whole, loader, other = list(build()), build(), build()
        if build is rank:
            other.set_epoch(0)
            assert other.sampler.epoch == 0
        batches = iter(loader)
        given = taken(batches, 4)
        assert_all_same(whole, [*given, *moved(loader, other)])


# ---- what is refused


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"batch_size": 8}, r"batch_size was 16 and is 8"),
        ({"num_neighbors": [1]}, r"num_neighbors was \[\d+, \d+\] and is \[1\]"),
        ({"input_nodes": range(30)}, "inputs was"),
        ({"input_id": torch.arange(NODES) + 1}, "inputs was"),
        ({"shuffle": True, "replace": True}, "shuffle was False and is True, replace was"),
        ({"seed": 6}, "seed was 5 and is 6"),
        ({"sampling": "labor", "batch_dependency": 5},
         "sampling was 'neighbor' and is 'labor', batch_dependency was 1 and is 5"),
        ({"sampler": [1, 2]}, "sampler was None and is 'BatchSampler of list, 16 at once'"),
        ({"in_order": False}, "in_order=True"),
    ],
)  # fmt: skip
def test_the_state_of_another_loader_is_refused(make, other, match):
    state = make(seed=5).state_dict()
    with pytest.raises(ConfigError, match=match):
        make(**{"seed": 5, **other}).load_state_dict(state)


def test_the_state_of_another_store_or_a_damaged_one_is_refused(make, store, tmp_path):
    data = Data(x=torch.zeros(NODES, 33), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    loader = make(seed=5)
    other = make(seed=5, data=gnndrive.from_data(data, tmp_path / "other.gnn"), buffer="60KB")
    with pytest.raises(ConfigError, match="another store"):
        loader.load_state_dict(other.state_dict())
    for change in (
        {"version": 1}, {"batches": -1}, {"batches": 1.5}, {"epoch": None}, {"finished": 1},
        {"seed": "5"},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="state"):
            loader.load_state_dict(loader.state_dict() | change)
    with pytest.raises(ConfigError, match="no state"):
        loader.load_state_dict([1])  # type: ignore[arg-type]

"""Ranks that share a feature buffer yield one process's batches, bit for bit, however they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gnndrive import Store
from tests.host.processes import programs

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks


def alone(store: Store, epochs: int = 1, **arguments: Any) -> list[list[str]]:
    """What one process yields."""
    given: dict[str, Any] = {"ranks": None, "host_service": "auto", **arguments}
    with programs.loader(store, **given) as loader:
        return [[programs.digest(batch) for batch in loader] for _ in range(epochs)]


def dealt(whole: Sequence[str], world: int, done: int = 0) -> list[list[str]]:
    """What each of `world` ranks yields of an epoch of which `done` batches are done."""
    steps = -(-(len(whole) - done) // world)
    padded = [whole[(done + at) % len(whole)] for at in range(steps * world)]
    return [padded[rank::world] for rank in range(world)]


def test_two_ranks_in_many_ways(starter, store, tmp_path):
    ended = starter.run("programs.much", 2, tmp_path, store=str(store.path))
    assert ended.statuses == [0, 0], ended.outputs
    assert ended.outputs == ["", ""]
    train = alone(store, 6)
    valid = alone(store, 2, shuffle=False, input_nodes=range(50))
    for rank, found in enumerate(ended.results):

        def of_rank(whole, done=0, rank=rank):
            return dealt(whole, 2, done)[rank]

        assert found["train"] == [of_rank(epoch) for epoch in train[:2]]
        assert found["valid"] == [of_rank(epoch) for epoch in valid]
        assert found["broken off"] == of_rank(train[2])[: 1 + rank]
        assert "another iterator of this loader was begun" in found["first iterator"]
        assert found["second iterator"] == of_rank(train[4])
        assert found["begun"] == of_rank(train[5])[:2]
        assert found["resumed"] == of_rank(train[5], done=4)


@pytest.mark.parametrize("world", [3, 4])
def test_several_tables_and_seed_edges(starter, store, of_types, tmp_path, world):
    typed = {"input_nodes": "paper", "buffer": "60KB"}
    links = {"links": True, "num_neighbors": [3], "neg_sampling": "binary", "batch_size": 200}
    asked = [{"store": str(of_types.path), **typed}, {"store": str(store.path), **links}]
    ended = starter.run("programs.several", world, tmp_path, asked=asked)
    assert ended.statuses == [0] * world, ended.outputs
    whole = [*alone(of_types, **typed), *alone(store, **links)]
    assert ended.results == [
        [dealt(epoch, world)[rank] for epoch in whole] for rank in range(world)
    ]


def test_a_store_without_features(starter, without_x, tmp_path):
    asked = [{"store": str(without_x.path)}]
    ended = starter.run("programs.several", 2, tmp_path, asked=asked)
    assert ended.statuses == [0, 0], ended.outputs
    (whole,) = alone(without_x)
    assert ended.results == [[of_rank] for of_rank in dealt(whole, 2)]


@pytest.mark.parametrize("in_order", [True, False])
def test_one_shares_its_adjacency_and_the_other_has_none(starter, store, tmp_path, in_order):
    given = {"store": str(store.path), "in_order": in_order}
    ended = starter.run("programs.own_topologies", 2, tmp_path, **given)
    assert ended.statuses == [0, 0], ended.outputs
    if in_order:
        assert ended.results == dealt(alone(store)[0], 2)
    else:  # then they share no feature buffer either
        assert list(map(sorted, ended.results)) == list(map(sorted, dealt(alone(store)[0], 2)))

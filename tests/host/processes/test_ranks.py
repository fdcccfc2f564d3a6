"""Ranks that share a feature buffer yield one process's batches, bit for bit, however they go; what
they cannot share is an error on all of them, and clients that break the protocol do no harm."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, Store
from gnndrive.host.inquiry import ask
from tests.host.processes import programs
from tests.host.served.conftest import MEMORY, Serving

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks

SEPARATE = "with host_service=False each rank"


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


def test_several_tables_none_and_seed_edges(starter, store, of_types, without_x, tmp_path):
    typed = {"input_nodes": "paper", "buffer": "60KB"}
    links = {"links": True, "num_neighbors": [3], "neg_sampling": "binary", "batch_size": 200}
    asked = [(of_types, typed), (store, links), (without_x, {})]
    given = [{"store": str(each.path), **arguments} for each, arguments in asked]
    ended = starter.run("programs.several", 3, tmp_path, asked=given)
    assert ended.statuses == [0, 0, 0], ended.outputs
    whole = [epoch for each, arguments in asked for epoch in alone(each, **arguments)]
    assert ended.results == [[dealt(epoch, 3)[rank] for epoch in whole] for rank in range(3)]


@pytest.mark.parametrize("in_order", [True, False])
def test_one_shares_its_adjacency_and_the_other_has_none(starter, store, tmp_path, in_order):
    given = {"store": str(store.path), "in_order": in_order}
    ended = starter.run("programs.own_topologies", 2, tmp_path, **given)
    assert ended.statuses == [0, 0], ended.outputs
    whole = dealt(alone(store)[0], 2)
    if in_order:
        assert ended.results == whole
    else:  # then they share no feature buffer either
        assert list(map(sorted, ended.results)) == list(map(sorted, whole))


def test_ranks_of_a_service_by_hand(starter, store, tmp_path):
    """They share a buffer there, and start no service."""
    with closing(Serving(store, MEMORY)) as serving:
        ended = starter.run("programs.ranks_of_a_service", 2, tmp_path, name=serving.name)
        left = ask(serving.address)
    assert ended.statuses == [0, 0], ended.outputs
    assert ended.outputs == ["", ""]
    assert ended.orphans == []
    (whole,) = alone(store)
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    first, second = (found["clients"] for found in ended.results)
    group = first[0][2]
    assert sorted(first) == sorted(second) == [[0, 2, group], [1, 2, group]]
    for found in ended.results:
        assert (found["engine"], found["started"]) == ("host service", [])
    assert (left.total, left.used) == (0, sum(left.graphs.values()))


# ---- what they cannot share


@pytest.fixture
def other(tmp_path):
    """The path of another store."""
    data = Data(x=torch.zeros(330, 8), edge_index=torch.zeros(2, 5, dtype=torch.int64))
    return str(gnndrive.from_data(data, tmp_path / "other.gnn").path)


def test_a_rank_with_other_arguments(starter, store, other, tmp_path):
    ended = starter.run("programs.differing", 2, tmp_path, store=str(store.path), other=other)
    assert ended.statuses == [0, 0], ended.outputs
    assert ended.outputs == ["", ""]
    assert ended.results[0] == ended.results[1]
    said = ["memory", "buffer", "num_neighbors", "io_depth", "extractors"]
    said += ["whether the ranks of a host share a buffer", "the store"]
    for text, name in zip(ended.results[0], said, strict=True):
        assert f"{name} is" in text
        assert "rank 0" in text
        assert "rank 1" in text
        assert "Give all ranks the same arguments" in text


def test_a_service_that_cannot_start(starter, store, other, tmp_path):
    copy = shutil.copytree(store.path, tmp_path / "copy.gnn")
    ended = starter.run("programs.never_starting", 2, tmp_path, store=str(copy), other=other)
    assert ended.statuses == [0, 0], ended.outputs
    assert "cannot open its store" in ended.outputs[0]
    reasons = [
        "No such file", "Permission denied", "has ended before it answered", "sys.executable",
        "File too large", "has ended before it answered", "serves another store", "ulimit -n",
    ]  # fmt: skip
    first, second = ended.results
    for reason, *texts in zip(reasons, first, second, strict=True):
        assert all(reason in text for text in texts)
        own = reason in ("serves another store", "ulimit -n")
        assert own or all(SEPARATE in text for text in texts)
    assert first[-1].startswith("rank 1 cannot start")
    assert second[0].startswith("rank 0 cannot start")


@pytest.mark.parametrize("arguments", [{}, {"ranks": None}, {"ranks": None, "in_order": False}])
def test_one_rank_has_no_service(store, arguments):
    with (
        programs.loader(store, **arguments) as loader,
        pytest.raises(ConfigError, match="host_service=True cannot be had, because there is one"),
    ):
        iter(loader)


def test_honest_ranks_beside_one_that_is_not(starter, store, tmp_path, seeds):
    (seed,) = seeds(1)
    given = {"store": str(store.path), "seed": seed, "sessions": 40}
    ended = starter.run("strangers.among_honest_ranks", 3, tmp_path, **given)
    assert ended.statuses == [0, 0, 0], ended.outputs
    whole = alone(store, 2, **programs.SMALL)
    for rank in range(2):
        assert ended.results[rank]["batches"] == [dealt(epoch, 2)[rank] for epoch in whole]
    counted = ended.results[2]
    assert counted["sent"] > 50
    assert counted["welcome"] > 2
    assert counted["let in"] == (os.geteuid() != 0), "only root can be another user"
    assert counted["refused"] == [True] * (len(counted["refused"]) - 1) + [False], "but the arena"
    reports = ended.outputs[0].splitlines()
    assert len(reports) > 5
    expected = r"process \d+ was (disconnected|refused): |user \d+ was refused: "
    assert all(re.match(expected, text) for text in reports)
    assert ended.outputs[1:] == ["", ""]

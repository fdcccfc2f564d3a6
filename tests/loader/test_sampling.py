"""`sampling="labor"` and `batch_dependency=` of a loader: the same batches however they are loaded,
resumed epochs, and refusals that say what to give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, NeighborSampler, Store
from gnndrive.sampling.labor import Sampling
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.strategies import strategy
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES, Make
from tests.loader.diskgnn.packs import assert_same_sample, loader_of, make_pack
from tests.loader.hetero.graph import make_data
from tests.loader.ranks.conftest import AsRank, as_rank
from tests.loader.ranks.test_dealt import rounds
from tests.second import Runs

__all__ = ["as_rank"]

GIVEN: dict[str, Any] = {"sampling": "labor", "batch_dependency": 5, "shuffle": True, "seed": 3}
WAYS: list[dict[str, Any]] = [
    {"topology": "mmap", "samplers": 1, "extractors": 1},
    {"topology": "direct", "neighbour_cache": 0},
    {"topology": "direct", "neighbour_cache": "4KB", "samplers": 2},
    {"topology": "direct", "samplers": 1, "engine": "threads"},
    {"memory": "100MB", "buffer": None},
    {"in_order": False, "samplers": 1, "extractors": 1},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_all_ways_give_the_same_batches(make: Make, data: Data, way: dict[str, Any]) -> None:
    expected, got = make(topology="resident", **GIVEN), make(**GIVEN | way)
    for _ in range(2):
        for left, right in zip(expected, got, strict=True):
            assert_same(left, right)
            check(right, data)


def test_batches_are_those_of_the_sampler(make: Make, store: Store) -> None:
    """By seed, epoch and number of the batch; without `seed` by the seed that is drawn."""
    topology = Mmap(store.indptr, store.indices)
    for dependency in (1, 7):
        sampler = Uniform([4, 3], sampling=Sampling("labor", dependency))
        for epoch, loaded in enumerate(
            [make(**GIVEN | {"batch_dependency": dependency})] * 2,
        ):
            for number, batch in enumerate(loaded):
                seeds = batch.n_id[: batch.batch_size].numpy()
                expected = sampler.sample_nodes(seeds, batch_key(3, epoch, number), topology)
                assert np.array_equal(batch.n_id.numpy(), expected.node)
                assert np.array_equal(batch.edge_index[0].numpy(), expected.row)


def test_batches_have_fewer_nodes_and_dependent_ones_more_in_common(make: Make) -> None:
    """stats() says how many rows were delivered and how many of them loaded."""
    rows, loaded = [], []
    for sampling, dependency in (("neighbor", 1), ("labor", 1), ("labor", 64)):
        loader = make(
            sampling=sampling, batch_dependency=dependency, shuffle=True, seed=3, sweep=1,
            policy="lru", num_neighbors=[4, 4], samplers=1, extractors=1,
        )  # fmt: skip
        list(loader)
        rows.append(loader.stats()["rows"])
        loaded.append(loader.stats()["rows_loaded"])
    assert rows[1] < 0.95 * rows[0]
    assert loaded[2] < 0.95 * loaded[1]


def test_a_single_batch(make: Make, data: Data) -> None:
    loader = make(**GIVEN)
    check(loader([3, 1, 4]), data)
    assert_same(loader([3, 1, 4]), loader([3, 1, 4]))
    check(make(sampling="labor", batch_dependency=9)([3, 1, 4]), data)


# ---- resuming


@pytest.mark.parametrize("dependency", [1, 5])
def test_an_epoch_goes_on_with_the_same_batches(make: Make, dependency: int) -> None:
    given = GIVEN | {"batch_dependency": dependency}
    first, whole = make(**given), list(make(**given))
    batches = iter(first)
    for _ in range(7):
        next(batches)
    second = make(topology="direct", **given)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for left, right in zip(whole[7:], second, strict=True):
        assert_same(left, right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": "neighbor", "batch_dependency": 1},
         "sampling was 'labor' and is 'neighbor', batch_dependency was 5 and is 1"),
        ({"batch_dependency": 6}, "batch_dependency was 5 and is 6"),
    ],
)  # fmt: skip
def test_a_state_of_other_sampling_is_refused(
    make: Make, change: dict[str, Any], message: str
) -> None:
    one, other = make(**GIVEN), make(**GIVEN | change)
    for loader in (one, other):
        next(iter(loader))
    with pytest.raises(ConfigError, match=message):
        other.load_state_dict(one.state_dict())
    with pytest.raises(ConfigError, match="the state is from a loader with other settings"):
        one.load_state_dict(other.state_dict())


def test_a_state_without_sampling_is_of_neighbour_sampling(make: Make) -> None:
    """As states of earlier versions are."""
    loader = make(shuffle=True, seed=3)
    whole, state = list(loader), loader.state_dict()
    state["settings"] = {
        name: value
        for name, value in state["settings"].items()
        if name not in ("sampling", "batch_dependency")
    }
    state |= {"batches": 2, "finished": False}
    resumed = make(shuffle=True, seed=3)
    resumed.load_state_dict(state)
    for left, right in zip(whole[2:], resumed, strict=True):
        assert_same(left, right)
    with pytest.raises(ConfigError, match="sampling was 'neighbor' and is 'labor'"):
        make(**GIVEN).load_state_dict(state)


# ---- ranks, packs, plans


def test_ranks_together_yield_one_processs_batches(make: Make, as_rank: AsRank) -> None:
    as_rank(0, 1)
    whole = list(make(**GIVEN))
    ranks = [make(**GIVEN, ranks=True) for _ in range(3)]
    for left, right in zip(whole, rounds(ranks, as_rank), strict=False):
        assert_same(left, right)


def test_a_pack_replays_them_and_is_found_by_them(data: Data, tmp_path: Path) -> None:
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    given = {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True}
    labor: dict[str, Any] = {**given, "sampling": "labor", "batch_dependency": 5}
    make_pack(store, labor)
    with (
        loader_of(store, labor) as replayed,
        loader_of(store, labor, strategy="gnndrive") as drawn,
    ):
        for left, right in zip(replayed, drawn, strict=True):
            assert_same_sample(left, right)
    for other in (given, {**labor, "batch_dependency": 6}):
        with pytest.raises(ConfigError, match="sampling was 'labor, batch_dependency 5'"):
            loader_of(store, other)


def test_batches_that_were_drawn_for_a_plan_are_kept_apart(make: Make) -> None:
    texts = {
        make(**given)._assembly().drawn_settings(16)
        for given in ({}, {"sampling": "labor"}, {"sampling": "labor", "batch_dependency": 2})
    }
    assert len(texts) == 3
    plain = make()._assembly().drawn_settings(16)
    assert plain.endswith("replace False"), "earlier entries are found again"


def test_a_plan_counts_the_lists(make: Make) -> None:
    plans = [make(memory="100MB", buffer=None, samplers=1, **more).plan() for more in ({}, GIVEN)]
    before, after = (
        next(item.nbytes for item in plan.lines if item.what == "sampler scratch") for plan in plans
    )
    assert after > before + (1 << 20)


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling": "ladies"}, "sampling='ladies': give 'neighbor' or 'labor'"),
        ({"batch_dependency": 4}, "batch_dependency=4 .*give sampling='labor', or leave it out"),
        ({"sampling": "labor", "batch_dependency": 0}, "must be a whole number of at least 1"),
        ({"sampling": "labor", "batch_dependency": 1.5}, "must be a whole number"),
        ({"sampling": "labor", "replace": True}, "leave replace=True out, or give sampling="),
        ({"sampling": "labor", "disjoint": True}, 'give sampling="neighbor"'),
        ({"sampling": "labor", "subgraph_type": "induced"}, 'give sampling="neighbor"'),
        ({"sampling": "labor", "subgraph_type": "bidirectional"}, 'give sampling="neighbor"'),
        ({"sampling": "labor", "weight_attr": "edge_attr"}, 'give sampling="neighbor"'),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Make, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**given)


def test_so_are_links_types_and_samplers_of_the_users(
    make: Make, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r'edges as seeds.*give sampling="neighbor"'):
        LinkNeighborLoader(store, [3], batch_size=9, sampling="labor")
    hetero = gnndrive.from_data(make_data(), tmp_path / "hetero.gnn")
    with pytest.raises(ConfigError, match=r'several types.*give sampling="neighbor"'):
        NeighborLoader(hetero, [3], hetero.node_types[0], sampling="labor")
    with pytest.raises(ConfigError, match='a sampler of your own give sampling="neighbor"'):
        make(sampling="labor", neighbor_sampler=NeighborSampler(store, [3]))


def test_so_are_samplers_that_share_nothing(make: Make, store: Store) -> None:
    mine = replace(strategy("gnndrive"), name="mine", sampler=Runs)
    with pytest.raises(ConfigError, match="sampler 'runs' of strategy='mine' draws for each node"):
        make(strategy=mine, sampling="labor")
    make(strategy=mine)


def test_data_in_memory_has_only_neighbour_sampling(data: Data) -> None:
    for given in ({"sampling": "labor"}, {"batch_dependency": 3}):
        with pytest.raises(ConfigError, match="is for a store"):
            NeighborLoader(data, [3], **given)  # type: ignore[arg-type]
    assert NeighborLoader(data, [3]).sampling == "neighbor"
    assert torch.is_tensor(data.x)
    assert data.num_nodes == NODES

"""`sampling="labor"` and `batch_dependency=` of a loader: fewer nodes, resumed epochs,
and refusals that say what to give."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, NeighborSampler
from gnndrive.loader.ranks import Ranks
from gnndrive.strategies import strategy
from tests.loader.batches import assert_same, check
from tests.loader.diskgnn.packs import assert_same_sample, loader_of, make_pack
from tests.loader.hetero.graph import make_data
from tests.second import Runs

GIVEN: dict[str, Any] = {"sampling": "labor", "batch_dependency": 5, "shuffle": True, "seed": 3}


def test_batches_have_fewer_nodes_and_dependent_ones_more_in_common(make):
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


def test_a_single_batch(make, data):
    loader = make(**GIVEN)
    check(loader([3, 1, 4]), data)
    assert_same(loader([3, 1, 4]), loader([3, 1, 4]))
    check(make(sampling="labor", batch_dependency=9)([3, 1, 4]), data)


# ---- resuming


def test_a_state_of_other_sampling_is_refused(make):
    state = make(**GIVEN).state_dict()
    for change, message in (
        ({"sampling": "neighbor", "batch_dependency": 1},
         "sampling was 'labor' and is 'neighbor', batch_dependency was 5 and is 1"),
        ({"batch_dependency": 6}, "batch_dependency was 5 and is 6"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            make(**GIVEN | change).load_state_dict(state)


def test_an_epoch_goes_on_with_the_same_batches_also_of_a_rank(make, monkeypatch):
    whole, first, second = list(make(**GIVEN)), make(**GIVEN), make(topology="direct", **GIVEN)
    batches = iter(first)
    for _ in range(7):
        next(batches)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for left, right in zip(whole[7:], second, strict=True):
        assert_same(left, right)
    monkeypatch.setattr("gnndrive.loader.assembly.resolve_ranks", lambda *_: Ranks(1, 3, "loader"))
    for left, right in zip(whole[1::3], make(**GIVEN, ranks=True), strict=False):
        assert_same(left, right)


def test_a_state_without_sampling_is_of_neighbour_sampling(make):
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


def test_a_pack_replays_them_and_is_found_by_them(data, tmp_path):
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


def test_batches_that_were_drawn_for_a_plan_are_kept_apart(make):
    texts = {
        make(**given)._assembly().drawn_settings(16)
        for given in ({}, {"sampling": "labor"}, {"sampling": "labor", "batch_dependency": 2})
    }
    assert len(texts) == 3
    plain = make()._assembly().drawn_settings(16)
    assert plain.endswith("replace False"), "earlier entries are found again"


def test_a_plan_counts_the_lists(make):
    plans = [make(memory="100MB", buffer=None, samplers=1, **more).plan() for more in ({}, GIVEN)]
    before, after = (
        next(item.nbytes for item in plan.lines if item.what == "sampler scratch") for plan in plans
    )
    assert after > before + (1 << 20)


# ---- what is refused


def test_so_are_links_types_and_samplers_of_the_users(make, store, tmp_path):
    with pytest.raises(ConfigError, match=r'edges as seeds.*give sampling="neighbor"'):
        LinkNeighborLoader(store, [3], batch_size=9, sampling="labor")
    hetero = gnndrive.from_data(make_data(), tmp_path / "hetero.gnn")
    with pytest.raises(ConfigError, match=r'several types.*give sampling="neighbor"'):
        NeighborLoader(hetero, [3], hetero.node_types[0], sampling="labor")
    with pytest.raises(ConfigError, match='a sampler of your own give sampling="neighbor"'):
        make(sampling="labor", neighbor_sampler=NeighborSampler(store, [3]))


def test_so_are_samplers_that_share_nothing(make, store):
    mine = replace(strategy("gnndrive"), name="mine", sampler=Runs)
    with pytest.raises(ConfigError, match="sampler 'runs' of strategy='mine' draws for each node"):
        make(strategy=mine, sampling="labor")
    make(strategy=mine)

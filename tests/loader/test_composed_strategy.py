"""A strategy composed of a second implementation of every kind (tests/second) loads and trains; the
package knows none of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ConfigError
from gnndrive.disk.tiers.base import Tier, TierContext
from gnndrive.sampling.schedules.base import ScheduleContext
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.strategies import STRATEGIES, Strategy
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES, Make
from tests.loader.hetero.graph import check as check_types
from tests.loader.hetero.graph import make_data
from tests.second import (
    SECOND,
    Copier,
    Dealt,
    Keeping,
    OneThread,
    Pairs,
    Reversed,
    Runs,
    Widened,
    used,
)

COMPOSED = Strategy("composed", "none", Dealt, Runs, (Widened,), Reversed, Pairs, (Keeping, "disk"))


@pytest.fixture(autouse=True)
def nothing_used() -> None:
    used.clear()
    Reversed.made.clear()


@pytest.fixture
def composed(make: Make) -> Make:
    """Makes loaders that use the second implementation of every kind."""

    def one(**arguments: Any) -> NeighborLoader:
        given = {"strategy": COMPOSED, "device": Copier, "engine": OneThread, "seed": 3}
        return make(**(given | {"shuffle": True} | arguments))

    return one


def test_batches_are_pieces_of_the_graph(composed, data, store):
    loader = composed()
    assert "widened, because it fits beside a batch" in str(loader.plan())
    assert not Reversed.made, "a plan opens no file"
    for _ in range(2):
        seeds = []
        for batch in loader:
            check(batch, data)
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
            assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
            seeds += batch.input_id.tolist()
        assert sorted(seeds) == list(range(NODES))
    assert used.keys() == SECOND.keys()
    assert Reversed.made == [store.table("x").path]


def test_the_layout_is_the_features_alone(composed, data, store):
    """What reads the adjacency on disk finds it as the store has it."""
    strategy = replace(COMPOSED, sampler="uniform")
    loader = composed(strategy=strategy, topology="direct", neighbour_cache=0)
    for batch in loader:
        check(batch, data)
    assert loader.stats()["topology_requests"] > 0
    assert Reversed.made == [store.table("x").path]


def test_what_does_not_decide_changes_no_batch_nor_its_state(composed):
    expected, first = list(composed()), composed()
    batches = iter(first)
    for _ in range(7):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    assert state["settings"]["strategy"] == "composed"
    for other in (
        {"samplers": 1, "extractors": 1, "extracting_queue": 1, "training_queue": 1},
        {"device": "cpu", "engine": "simulated", "policy": "lru", "buffer": "1MB"},
        {"strategy": replace(COMPOSED, layout="table", tiers=("disk",)), "topology": "resident"},
    ):
        loader = composed(**other)
        loader.load_state_dict(state)
        for one, batch in zip(expected[7:], loader, strict=True):
            assert_same(one, batch)


def test_closing_leaves_nothing_held(composed, store):
    loader = composed()
    batches = iter(loader)
    next(batches)
    runtime = loader._runtime
    (table,) = runtime._buffers._kept.tables.values()
    batches.close()
    runtime._buffers._kept.verify()
    stats = table.stats()
    assert stats["free"] + stats["standby"] == stats["slots"]
    assert list(store.path.parent.glob("*.reversed"))
    next(iter(loader))
    loader.close()
    assert all(memory.closed for memory in runtime.device.memories)
    assert not runtime.engine._active
    assert not list(store.path.parent.glob("*.reversed"))


def test_edges_are_seeds_too(store, data):
    """Samples around edges are in PyG's own form, which a sampler leaves to the package."""
    with LinkNeighborLoader(
        store, [1], batch_size=40, strategy=COMPOSED, device=Copier, engine=OneThread, seed=3,
        shuffle=True, buffer="43KB", neg_sampling="binary",
    ) as loader:  # fmt: skip
        seeds = []
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            ends = batch.n_id[batch.edge_label_index][:, batch.edge_label > 0]
            assert torch.equal(ends, data.edge_index[:, batch.input_id])
            seeds += batch.input_id.tolist()
    assert sorted(seeds) == list(range(data.num_edges))
    assert used.keys() == SECOND.keys() - {"samplers"}


def test_several_types_are_loaded_too(tmp_path):
    """Tables of several row sizes, of nodes and of edges, each with a layout and tiers of its
    own."""
    types = make_data()
    store = gnndrive.from_data(types, tmp_path / "types.gnn")
    with NeighborLoader(
        store, [3, 2], input_nodes="paper", batch_size=20, strategy=COMPOSED, device=Copier,
        engine=OneThread, buffer="60KB", seed=3,
    ) as loader:  # fmt: skip
        for batch in loader:
            check_types(batch, types)
        tables = loader._runtime.settings.tables
    assert sorted(Reversed.made) == sorted(table.file.path for table in tables)
    assert {table.of_edges for table in tables} == {False, True}


# ---- what cannot be composed


class Nameless(Policy):
    """A policy that lacks its name."""

    looks_ahead = False


Half = type("Half", (Tier,), {"name": "half"})
PLAIN = STRATEGIES["gnndrive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "ginx"}, r"no strategy is called 'ginx'; there are: .*gnndrive"),
        ({"strategy": []}, "no strategy is called"),
        *(
            ({"strategy": replace(PLAIN, **{part: named})}, "is called 'bottom-up'; there are")
            for part, named in [
                ("schedule", "bottom-up"), ("sampler", "bottom-up"), ("layout", "bottom-up"),
                ("policy", "bottom-up"), ("topologies", ("bottom-up",)), ("tiers", ("bottom-up",)),
            ]
        ),
        ({"device": Nameless}, "Nameless is not a device: derive it from gnndrive"),
        ({"engine": Nameless}, "Nameless is not a engine: derive it from gnndrive"),
        ({"topology": Nameless}, "Nameless is not a topology: derive it from gnndrive"),
        ({"strategy": replace(COMPOSED, policy=Nameless)}, "policy Nameless has no name"),
        ({"strategy": replace(COMPOSED, tiers=(Half,))}, "the tier Half lacks fetch, make"),
        ({"strategy": replace(COMPOSED, tiers=())}, "tiers=.*: give a tuple of at least one"),
        ({"strategy": replace(COMPOSED, tiers="disk")}, "tiers=.*: give a tuple of at least one"),
        ({"strategy": replace(PLAIN, tiers=("victim",))}, "'victim' needs one below it"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed_is_refused(make, arguments, message):
    with pytest.raises(ConfigError, match=message):
        next(iter(make(**arguments)))


class Unmakeable(Tier):
    """A tier that cannot be made."""

    name = "unmakeable"

    @classmethod
    def make(cls, context: TierContext) -> Tier:
        raise ConfigError("there is no room for this tier")

    def fetch(self, *arguments: Any) -> Any:
        raise NotImplementedError


def test_a_tier_that_cannot_be_made_leaves_no_memory_behind(composed, monkeypatch):
    allocated: list[Any] = []
    allocate = Copier.allocate

    def noted(device: Copier, slots: int, row_bytes: int) -> Any:
        allocated.append(allocate(device, slots, row_bytes))
        return allocated[-1]

    monkeypatch.setattr(Copier, "allocate", noted)
    loader = composed(strategy=replace(COMPOSED, tiers=(Unmakeable, "disk")))
    with pytest.raises(ConfigError, match="no room for this tier"):
        iter(loader)
    assert allocated
    assert all(memory.closed for memory in allocated)


class Halves(Shuffled):
    """Gives two batches of half as many seeds for each of the shuffled schedule's."""

    name = "halves"

    @classmethod
    def make(cls, context: ScheduleContext) -> Any:
        return super().make(replace(context, batch_size=(context.batch_size or 1) // 2))


def test_a_loader_is_as_long_as_its_schedule(make):
    loader = make(strategy=replace(PLAIN, schedule=Halves))
    assert len(loader) == len(list(loader)) == 50

"""A strategy of a second implementation of every kind (tests/second) loads and trains."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from gnndrive import NeighborLoader
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ConfigError
from gnndrive.disk.tiers.base import Tier, TierContext
from gnndrive.strategies import STRATEGIES, Strategy
from tests.loader.batches import assert_all_same, check
from tests.loader.conftest import NODES, Make
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

COMPOSED = Strategy(
    name="composed", schedule=Dealt, sampler=Runs, topologies=(Widened,), layout=Reversed,
    policy=Pairs, tiers=(Keeping, "disk"),
)  # fmt: skip


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
    """The layout is the features' alone: what reads the adjacency finds it as the store has it."""
    loader = composed()
    assert "widened, because it fits beside a batch" in str(loader.plan())
    assert not Reversed.made, "a plan opens no file"
    direct = composed(
        strategy=replace(COMPOSED, sampler="uniform"), topology="direct", neighbour_cache=0
    )
    for batches in (loader, loader, direct):
        seeds = []
        for batch in batches:
            check(batch, data)
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
            assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
            seeds += batch.input_id.tolist()
        assert sorted(seeds) == list(range(NODES))
    assert used.keys() == SECOND.keys()
    assert Reversed.made == [store.table("x").path] * 2
    assert direct.stats()["topology_requests"] > 0


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
        assert_all_same(expected[7:], loader)


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


# ---- what cannot be composed


class Nameless(Policy):
    """A policy that lacks its name."""

    looks_ahead = False


Half = type("Half", (Tier,), {"name": "half"})
PLAIN = STRATEGIES["gnndrive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "ginx"}, r"no strategy is called 'ginx' .*; there are: .*gnndrive"),
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

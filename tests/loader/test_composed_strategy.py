"""A strategy composed of a second implementation of every kind (tests/second) loads and trains; the
package knows none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.disk.tiers.base import Tier, TierContext
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window
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
CLASSES = 7


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


def test_batches_are_pieces_of_the_graph(composed: Make, data: Data, store: Store) -> None:
    loader = composed()
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


def test_the_layout_is_the_features_alone(composed: Make, data: Data, store: Store) -> None:
    """What reads the adjacency on disk finds it as the store has it."""
    strategy = replace(COMPOSED, sampler="uniform")
    loader = composed(strategy=strategy, topology="direct", neighbour_cache=0)
    for batch in loader:
        check(batch, data)
    assert loader.stats()["topology_requests"] > 0
    assert Reversed.made == [store.table("x").path]


def test_a_batch_trains(composed: Make) -> None:
    torch.manual_seed(0)
    convolution, last = SAGEConv(33, 16), torch.nn.Linear(16, CLASSES)
    parameters = [*convolution.parameters(), *last.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    before = [each.detach().clone() for each in parameters]
    batch = next(iter(composed()))
    out = last(convolution(batch.x, batch.edge_index).relu())[: batch.batch_size]
    loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert not any(map(torch.equal, before, parameters))


def test_a_transform_finds_the_rows(composed: Make, data: Data) -> None:
    """It runs before the batch is handed over, and the device's gather may still be under way."""

    def transform(batch: Data) -> Data:
        check(batch, data)
        return batch

    assert sum(batch.batch_size for batch in composed(transform=transform)) == NODES


@pytest.mark.parametrize(
    "other",
    [
        {"samplers": 1, "extractors": 1, "extracting_queue": 1, "training_queue": 1},
        {"device": "cpu", "engine": "simulated", "policy": "lru"},
        {"strategy": replace(COMPOSED, layout="table", tiers=("disk",))},
        {"topology": "resident", "buffer": "1MB"},
    ],
    ids=["one of each", "device, engine, policy", "layout, tiers", "all in memory"],
)
def test_what_does_not_decide_changes_no_batch(composed: Make, other: dict[str, Any]) -> None:
    for expected, batch in zip(composed(), composed(**other), strict=True):
        assert_same(expected, batch)


def test_its_plan_can_be_printed(composed: Make) -> None:
    plan = str(composed().plan())
    assert "widened, because it fits beside a batch" in plan
    assert not Reversed.made, "a plan opens no file"


@pytest.mark.parametrize("left_after", [0, 7, 25])
def test_it_is_resumed(composed: Make, left_after: int) -> None:
    whole, loader = list(composed()), composed()
    batches = iter(loader)
    given = [next(batches) for _ in range(left_after)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["settings"]["strategy"] == "composed"
    other = composed()
    other.load_state_dict(state)
    for expected, batch in zip(whole, [*given, *other], strict=True):
        assert_same(expected, batch)


def test_closing_leaves_nothing_held(composed: Make, store: Store) -> None:
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


def test_edges_are_seeds_too(store: Store, data: Data) -> None:
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


def test_several_types_are_loaded_too(tmp_path: Path) -> None:
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


def test_two_iterators_at_once(composed: Make, data: Data) -> None:
    loader = composed()
    for one, other in zip(loader, loader, strict=True):
        check(one, data)
        check(other, data)


def test_a_batch_without_the_pipeline(composed: Make, data: Data) -> None:
    batch = composed()([3, 399])
    check(batch, data)
    assert batch.n_id[:2].tolist() == [3, 399]


# ---- what cannot be composed


class Nameless(Policy):
    """A policy that lacks its name."""

    looks_ahead = False


NAMELESS = replace(COMPOSED, policy=Nameless)
UNKNOWN = {
    "schedule": "no schedule is called 'bottom-up'",
    "sampler": "no sampler is called 'bottom-up'",
    "topologies": "no topology is called 'bottom-up'",
    "layout": "no layout is called 'bottom-up'",
    "policy": "no policy is called 'bottom-up'",
    "tiers": "no tier is called 'bottom-up'",
}


@pytest.fixture
def attempt(store: Store) -> Iterator[Any]:
    """Makes a loader with some arguments and begins an epoch."""
    with ExitStack() as opened:

        def begin(**arguments: Any) -> None:
            given = {"batch_size": 16, "buffer": "40KB"} | arguments
            next(iter(opened.enter_context(NeighborLoader(store, [4, 3], **given))))

        yield begin


def test_an_unknown_strategy_is_refused(attempt: Any) -> None:
    with pytest.raises(ConfigError, match=r"no strategy is called 'ginx'; there are: .*gnndrive"):
        attempt(strategy="ginx")


@pytest.mark.parametrize("part", UNKNOWN)
def test_an_unknown_plug_in_is_refused(attempt: Any, part: str) -> None:
    """With the names that there are."""
    message = UNKNOWN[part]
    several = isinstance(getattr(COMPOSED, part), tuple)
    named: Any = ("bottom-up",) if several else "bottom-up"
    with pytest.raises(ConfigError, match=rf"{message}; there are: \w+"):
        attempt(strategy=replace(STRATEGIES["gnndrive"], **{part: named}))


@pytest.mark.parametrize("name", ["device", "engine", "topology"])
def test_an_argument_of_another_kind_is_refused(attempt: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Nameless is not a {name}: derive it from gnndrive"):
        attempt(**{name: Nameless})


@pytest.mark.parametrize("arguments", [{"policy": Nameless}, {"strategy": NAMELESS}])
def test_a_plug_in_without_a_name_is_refused(attempt: Any, arguments: Any) -> None:
    with pytest.raises(ConfigError, match="policy Nameless has no name: give the class a text"):
        attempt(**arguments)


def test_a_plug_in_that_lacks_methods_is_refused(attempt: Any) -> None:
    class Half(Tier):
        name = "half"

    with pytest.raises(ConfigError, match="the tier Half lacks fetch, make"):
        attempt(strategy=replace(COMPOSED, tiers=(Half,)))


@pytest.mark.parametrize("tiers", [(), "disk", None])
def test_a_strategy_has_a_tuple_of_tiers(attempt: Any, tiers: Any) -> None:
    with pytest.raises(ConfigError, match=r"tiers=.*: give a tuple of at least one"):
        attempt(strategy=replace(COMPOSED, tiers=tiers))


@pytest.mark.parametrize("strategy", [[], 3, None])
def test_a_strategy_of_another_type_is_refused(attempt: Any, strategy: Any) -> None:
    with pytest.raises(ConfigError, match="no strategy is called"):
        attempt(strategy=strategy)


def test_a_bad_part_is_found_before_anything_is_opened(store: Store) -> None:
    with pytest.raises(ConfigError, match="no tier is called 'ram'"):
        NeighborLoader(
            store, [4, 3], batch_size=16, strategy=replace(COMPOSED, tiers=("ram", "disk"))
        )


class Unmakeable(Tier):
    """A tier that cannot be made."""

    name = "unmakeable"

    @classmethod
    def make(cls, context: TierContext) -> Tier:
        raise ConfigError("there is no room for this tier")

    def fetch(self, *arguments: Any) -> Any:
        raise NotImplementedError


def test_a_tier_that_cannot_be_made_leaves_no_memory_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[Any] = []
    allocate = Copier.allocate

    def noted(device: Copier, slots: int, row_bytes: int) -> Any:
        allocated.append(allocate(device, slots, row_bytes))
        return allocated[-1]

    monkeypatch.setattr(Copier, "allocate", noted)
    strategy = replace(COMPOSED, tiers=(Unmakeable, "disk"))
    with NeighborLoader(
        store, [4, 3], batch_size=16, buffer="40KB", device=Copier, strategy=strategy
    ) as loader:
        for _ in range(2):
            with pytest.raises(ConfigError, match="no room for this tier"):
                iter(loader)
    assert all(memory.closed for memory in allocated)


class Halves(Schedule):
    """Gives two batches of half as many seeds for each of the shuffled schedule's."""

    name = "halves"

    def __init__(self, context: ScheduleContext) -> None:
        size = max((context.batch_size or 1) // 2, 1)
        self._below = find("schedules", "shuffled").make(replace(context, batch_size=size))

    @classmethod
    def make(cls, context: ScheduleContext) -> Schedule:
        return cls(context)

    def windows(self, epoch: int) -> Iterator[Window]:
        return self._below.windows(epoch)

    def __len__(self) -> int:
        return len(self._below)


def test_a_loader_is_as_long_as_its_schedule(store: Store) -> None:
    strategy = replace(STRATEGIES["gnndrive"], schedule=Halves)
    with NeighborLoader(store, [4, 3], batch_size=16, buffer="40KB", strategy=strategy) as loader:
        assert len(loader) == len(list(loader)) == 50
    with NeighborLoader(store, [4, 3], batch_size=16, buffer="40KB") as loader:
        assert len(loader) == len(list(loader)) == 25

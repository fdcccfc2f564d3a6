"""Batches that are larger than the plan counts: the loader plans again, within `memory=`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.memory import parse_size
from gnndrive.loader import drawing
from gnndrive.loader.ranks import Ranks
from gnndrive.plan import choice, drawn
from gnndrive.store import batch_sizes
from gnndrive.strategies import strategy as find_strategy
from tests.second import Runs

NODES, WIDTH, HUBS = 6_000, 16, 4
# Of the 40 batches, taken in order, the last four have a hub each, a larger one every time. The
# batches that are drawn for the plan lie before them.
SEEDS = torch.arange(400)
SEEDS[[365, 375, 385, 395]] = torch.arange(NODES - HUBS, NODES)
ROOM = 2_500_000  # bytes beyond the least with which the first batches can be loaded
Make = Callable[..., NeighborLoader]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """6,000 nodes with 3 neighbours each, and at the end 4 hubs with 1,000, 2,000, … of them."""
    random = np.random.default_rng(0)
    degrees = np.full(NODES, 3)
    degrees[-HUBS:] = 1_000 * np.arange(1, HUBS + 1)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return gnndrive.write_store(
        tmp_path_factory.mktemp("hubs") / "hubs.gnn",
        indptr=indptr,
        indices=random.integers(0, NODES - HUBS, indptr[-1]),
        nodes={"x": random.standard_normal((NODES, WIDTH)).astype(np.float32)},
    )


@pytest.fixture
def make(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes loaders that draw the first batches only, and know nothing of each other's."""
    monkeypatch.setattr(drawing, "SPREAD_MAX", 8)
    monkeypatch.setattr(batch_sizes, "_of_process", {})
    monkeypatch.setattr(drawn, "SMALL_SHARE", 10**9)
    monkeypatch.setattr(choice, "HARDLY_MORE", 0)
    monkeypatch.setattr(choice, "HARDLY_MORE_BYTES", 0)
    (store.path / batch_sizes.BATCHES_JSON).unlink(missing_ok=True)
    with ExitStack() as opened:

        def one(**arguments: Any) -> NeighborLoader:
            given = {"num_neighbors": [-1], "batch_size": 10, "io_depth": 1, "seed": 3} | arguments
            given = {"input_nodes": SEEDS} | given
            return opened.enter_context(NeighborLoader(given.pop("data", store), **given))

        yield one


def sizes(loader: NeighborLoader) -> list[int]:
    return [batch.num_nodes for batch in loader]


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(one[name], other[name]) for name in ("n_id", "edge_index", "x", "input_id")
    )


def least(make: Make, **arguments: Any) -> int:
    """The least `memory=` that the error names."""
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        make(memory=1, **arguments).plan()
    return parse_size(str(caught.value).split('memory="')[1].split('"')[0], "memory")


AHEAD: list[dict[str, Any]] = [{}, {"strategy": "ginex", "superbatch": 9, "phases": None}]


@pytest.mark.parametrize("given", [*AHEAD, AHEAD[1] | {"phases": "apart"}], ids=str)
def test_larger_batches_come_as_they_are_and_within_the_budget(
    make: Make, given: dict[str, Any]
) -> None:
    expected = list(make(buffer="10MB"))
    memory = least(make, **given) + ROOM
    loader = make(memory=memory, **given)
    first = loader.plan()
    assert first.batch_rows_max < 100, "hubs were not drawn"
    assert max(batch.num_nodes for batch in expected) > 2_000
    rows, totals = [], []
    for ours, theirs in zip(loader, expected, strict=True):
        assert same(ours, theirs)
        rows.append(loader.plan().batch_rows_max)
        totals.append(loader.plan().total_bytes)
        assert ours.num_nodes <= rows[-1]
    assert rows == sorted(rows)
    assert len(set(rows)) > 2, "it planned again more than once"
    assert max(totals) <= memory
    assert "later" in str(loader.plan())


def test_batches_are_drawn_in_free_memory_if_the_budget_is_too_small_for_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the error names what batches need, not the most that the fanout allows."""
    named = least(make)
    batch_sizes._of_process.clear()
    (make(buffer="1MB").data.path / batch_sizes.BATCHES_JSON).unlink()
    monkeypatch.setattr(drawing, "available_memory", lambda: 0)
    assert least(make) > named + 1_000_000


def test_sizes_of_larger_batches_are_kept_for_the_next_loader(make: Make) -> None:
    memory = least(make) + ROOM
    first = make(memory=memory)
    found = sizes(first)
    after = first.plan()
    again = make(memory=memory)
    assert again.plan().batch_rows_max == after.batch_rows_max
    assert sizes(again) == found


def test_the_iterator_of_an_event_loop_plans_again(make: Make) -> None:
    async def run() -> list[int]:
        return [batch.num_nodes async for batch in make(memory=memory)]

    memory = least(make) + ROOM
    assert asyncio.run(run()) == sizes(make(buffer="10MB"))


async def drain(batches: Any) -> None:
    async for _ in batches:
        pass


def test_a_refused_plan_does_not_finish_the_epoch_of_an_event_loop(make: Make) -> None:
    async def run() -> None:
        batches = aiter(loader)
        with pytest.raises(ConfigError, match="give at least memory="):
            await drain(batches)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    loader = make(memory=least(make) + 60_000)
    asyncio.run(run())
    state = loader.state_dict()
    assert state["batches"] in (36, 37, 38)
    assert not state["finished"]


def test_later_epochs_run_by_the_new_plan(make: Make) -> None:
    loader = make(memory=least(make) + ROOM)
    rows = []
    for _ in range(3):
        assert sum(batch.batch_size for batch in loader) == 400
        rows.append(loader.plan().batch_rows_max)
    assert len(set(rows)) == 1, "the first epoch had the largest batch"


def test_a_batch_too_large_for_the_budget_fails_at_its_turn_and_names_what_works(
    make: Make,
) -> None:
    loader = make(memory=least(make) + 60_000)
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        list(loader)
    assert loader.state_dict()["batches"] in (36, 37, 38)
    for _ in range(HUBS):  # a later hub may need more
        named = str(caught.value).split('memory="')[1].split('"')[0]
        try:
            found = sizes(make(memory=named))
            break
        except ConfigError as error:
            caught.value.args = error.args
    assert found == sizes(make(buffer="10MB"))


def test_a_sampler_that_gives_up_is_asked_again_with_more_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C sampler stops at the plan's limits, so the size is unknown until it is drawn alone."""
    asked: list[Any] = []
    original = drawn.doubled

    def noted(*given: Any) -> Any:
        asked.append(given)
        return original(*given)

    monkeypatch.setattr("gnndrive.loader.epoch_assembly.doubled", noted)
    assert sizes(make(memory=least(make) + ROOM)) == sizes(make(buffer="10MB"))
    assert asked


def test_a_second_iterator_keeps_the_plan_as_it_is(make: Make) -> None:
    loader = make(memory="60MB", buffer="330KB")
    one, other = iter(loader), iter(loader)
    with pytest.raises(ConfigError, match="close the other iterator"):
        list(zip(one, other, strict=True))
    other.close()
    one.close()
    assert sizes(loader) == sizes(make(buffer="10MB"))


def test_a_resumed_epoch_plans_again(make: Make) -> None:
    expected = sizes(make(buffer="10MB"))
    memory = least(make) + ROOM
    loader = make(memory=memory)
    batches = iter(loader)
    for _ in range(35):
        next(batches)
    state = loader.state_dict()
    loader.close()
    batch_sizes._of_process.clear()
    (loader.data.path / batch_sizes.BATCHES_JSON).unlink()
    resumed = make(memory=memory)
    resumed.load_state_dict(state)
    assert sizes(resumed) == expected[35:]
    assert resumed.state_dict()["batches"] == 40


def test_a_rank_plans_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, memory = list(make(buffer="10MB")), least(make) + ROOM
    loader = make(memory=memory, ranks=True)
    loader.load_state_dict(loader.state_dict() | {"batches": 30})
    monkeypatch.setattr("gnndrive.loader.assembly.resolve_ranks", lambda *_: Ranks(1, 2, "loader"))
    rows = set()
    for ours, theirs in zip(loader, expected[31::2], strict=True):
        assert same(ours, theirs)
        rows.add(loader.plan().batch_rows_max)
    assert len(rows) > 1
    assert loader.state_dict()["batches"] == 40


def test_in_any_order_the_plan_counts_the_bounds(make: Make) -> None:
    loader = make(memory="100MB", in_order=False)
    assert loader.plan().batch_rows_max == NODES
    assert sorted(sizes(loader)) == sorted(sizes(make(buffer="10MB")))


def test_links_plan_again(make: Make, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.stack([torch.arange(400), SEEDS])
    given: dict[str, Any] = {"edge_label_index": ends, "batch_size": 10, "seed": 3, "io_depth": 1}
    with LinkNeighborLoader(store, [-1, 2], buffer="10MB", **given) as loader:
        expected = [batch.num_nodes for batch in loader]
    with LinkNeighborLoader(store, [-1, 2], memory="12MB", **given) as loader:
        rows = loader.plan().batch_rows_max
        assert [batch.num_nodes for batch in loader] == expected
        assert rows < max(expected) <= loader.plan().batch_rows_max
        assert loader.plan().total_bytes <= 12_000_000


def test_a_folder_that_cannot_be_written_to_is_left_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    def refuse(path: Path, write: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(batch_sizes, "replace_file", refuse)
    memory = least(make) + ROOM
    first = make(memory=memory)
    found = sizes(first)
    assert not (store.path / batch_sizes.BATCHES_JSON).exists()
    assert make(memory=memory).plan().batch_rows_max == first.plan().batch_rows_max
    assert found == sizes(make(buffer="10MB"))


def test_a_damaged_batches_json_is_drawn_again(make: Make, store: Store) -> None:
    plan = str(make(memory="6MB").plan())
    file = store.path / batch_sizes.BATCHES_JSON
    good = file.read_bytes()
    for bad in (b"", b"[]", b"{", good.replace(b'"sizes": [[', b'"sizes": [[-'), b"\xff" * 9,
                good.replace(b'"version"', b'"versoin"'), b"[" * 100_000):  # fmt: skip
        file.write_bytes(bad)
        batch_sizes._of_process.clear()
        assert str(make(memory="6MB").plan()) == plan
        assert json.loads(file.read_bytes()).keys() == json.loads(good).keys()


def test_what_takes_hardly_more_memory_is_counted_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sizes(make(buffer="10MB"))
    least_of_drawn = least(make)
    monkeypatch.setattr(choice, "HARDLY_MORE_BYTES", 32 << 20)
    memory = least(make)
    assert memory > least_of_drawn + 1_000_000
    loader = make(memory=memory)
    first = loader.plan()
    assert sizes(loader) == expected
    assert loader.plan() == first
    assert max(expected) <= first.batch_rows_max


@pytest.mark.parametrize("more", [0, 32 << 20])
def test_seeds_given_twice_may_make_a_batch_larger_than_the_bounds(
    make: Make, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Each of them is expanded, so that a hub's edges are there twice."""
    monkeypatch.setattr(choice, "HARDLY_MORE_BYTES", more)
    hub = torch.full((10,), NODES - 1)
    seeds = torch.cat([torch.arange(390), hub])
    expected = sizes(make(buffer="10MB", input_nodes=seeds))
    loader = make(memory="60MB", input_nodes=seeds, buffer="300KB")
    assert sizes(loader) == expected


def test_a_sampler_without_limits_is_checked_after_its_samples(make: Make) -> None:
    strategy = replace(find_strategy("gnndrive"), sampler=Runs)
    given: dict[str, Any] = {"strategy": strategy, "topology": "mmap"}
    expected = sizes(make(buffer="10MB", **given))
    loader = make(memory=least(make, **given) + ROOM, **given)
    first = loader.plan().batch_rows_max
    assert sizes(loader) == expected
    assert first < max(expected) <= loader.plan().batch_rows_max


def test_of_a_hubs_edges_only_those_within_an_induced_sample_are_counted(
    make: Make, tmp_path: Path
) -> None:
    """The hub is a neighbour of every seed, and has far more edges than the plan counts."""
    random = np.random.default_rng(0)
    ends = torch.from_numpy(random.integers(0, NODES - 1, (2, 3 * NODES)))
    ends[0, ::3] = NODES - 1
    hub = torch.stack([torch.arange(NODES - 1), torch.full((NODES - 1,), NODES - 1)])
    data = Data(x=torch.randn(NODES, WIDTH), edge_index=torch.cat([ends, hub], dim=1))
    store = gnndrive.from_data(data, tmp_path / "induced.gnn")
    given: dict[str, Any] = {"num_neighbors": [3], "subgraph_type": "induced", "data": store}
    expected = list(make(buffer="10MB", **given))
    loader = make(memory=least(make, **given) + ROOM, **given)
    first = loader.plan()
    for ours, theirs in zip(loader, expected, strict=True):
        assert same(ours, theirs)
    assert loader.plan() == first, "no batch was larger than planned"
    assert max(batch.num_edges for batch in expected) < NODES - 1


def test_edges_drawn_twice_of_which_an_induced_sample_keeps_one(make: Make) -> None:
    """Drawing takes more memory than the plan, which counts the induced edges, has for it."""
    given: dict[str, Any] = {"num_neighbors": [300], "replace": True, "subgraph_type": "induced"}
    expected = list(make(buffer="10MB", **given))
    loader = make(memory=least(make, **given) + 4 * ROOM, **given)
    for ours, theirs in zip(loader, expected, strict=True):
        assert same(ours, theirs)


def test_the_size_of_a_batch_that_cannot_be_measured_is_not_kept(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the least for the most that the fanout allows, which works."""
    monkeypatch.setattr("gnndrive.loader.epoch_assembly.scratch_bytes", lambda size: 1 << 60)
    memory = least(make) + 60_000
    with pytest.raises(ConfigError, match="the most that num_neighbors allows") as caught:
        list(make(memory=memory))
    (entry,) = batch_sizes._of_process.values()
    assert entry["larger"] is None
    named = str(caught.value).split('memory="')[1].split('"')[0]
    assert sizes(make(memory=named)) == sizes(make(buffer="10MB"))
    (entry,) = batch_sizes._of_process.values()
    assert entry["larger"] is None


class Refuses(Runs):
    """Gives each batch up, and says that it is small."""

    def sample(self, seeds: Any, key: Any, topologies: Any) -> Any:
        sample = super().sample(seeds, key, topologies)
        if seeds.index > 20:
            raise BatchTooLarge("too large", drawn.size_of(sample, self.limits))
        return sample

    @classmethod
    def make(cls, context: Any) -> Any:
        sampler = super().make(context)
        sampler.limits = context.limits
        return sampler


def test_a_sampler_that_refuses_what_its_limits_allow_is_an_error(make: Make) -> None:
    strategy = replace(find_strategy("gnndrive"), sampler=Refuses)
    given: dict[str, Any] = {"strategy": strategy, "topology": "mmap"}
    with pytest.raises(ConfigError, match="no larger than its limits"):
        list(make(memory=least(make, **given) + ROOM, **given))

"""Batches larger than the plan counts: the loader plans again, within `memory=`."""

import asyncio
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.memory import parse_size
from gnndrive.loader import drawing
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.runtime import Runtime
from gnndrive.plan import choice, drawn
from gnndrive.store import cache
from gnndrive.strategies import strategy as find_strategy
from tests.given import moved
from tests.pipeline.traces import check_batches, read
from tests.second import Runs
from tests.store.test_store_added import add

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
def make(store: Store, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> Make:
    """Makes loaders that draw the first batches only, and know nothing of each other's."""
    monkeypatch.setattr(drawing, "SPREAD_MAX", 8)
    monkeypatch.setattr(cache, "_of_process", {})
    monkeypatch.setattr(drawn, "SMALL_SHARE", 10**9)
    monkeypatch.setattr(choice, "HARDLY_MORE", 0)
    monkeypatch.setattr(choice, "HARDLY_MORE_BYTES", 0)
    (store.path / cache.BATCHES_JSON).unlink(missing_ok=True)

    def one(**arguments: Any) -> NeighborLoader:
        given = {"num_neighbors": [-1], "batch_size": 10, "io_depth": 1, "seed": 3} | arguments
        given = {"input_nodes": SEEDS} | given
        return stack.enter_context(NeighborLoader(given.pop("data", store), **moved(given)))

    return one


def sizes(batches: Iterable[Any]) -> list[int]:
    return [batch.num_nodes for batch in batches]


@pytest.fixture(scope="module")
def expected(store: Store) -> list[Data]:
    """The batches, with memory for the largest."""
    with NeighborLoader(store, [-1], SEEDS, batch_size=10, seed=3, buffer="10MB") as loader:
        return list(loader)


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(one[name], other[name]) for name in ("n_id", "edge_index", "x", "input_id")
    )


def named_in(error: ConfigError) -> str:
    """The least `memory=` that an error names."""
    return str(error).split('at least memory="')[1].split('"')[0]


def least(make: Make, **arguments: Any) -> int:
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        make(memory=1, **arguments).plan()
    return parse_size(named_in(caught.value), "memory")


HOST_SLOTS = {"device": "simulated-cuda", "device_memory": 0}
APART = {"strategy": "ginex", "superbatch": 9, "phases": "apart"}


@pytest.mark.parametrize(
    "given",
    [{}, {"strategy": "ginex", "superbatch": 9}, APART, {"strategy": "pyg+"}, HOST_SLOTS],
    ids=str,
)
def test_larger_batches_come_as_they_are_and_within_the_budget(make, expected, tmp_path, given):
    """The timeline goes on behind the change."""
    path, memory = tmp_path / "epoch.json.gz", least(make, **given) + ROOM
    loader = make(memory=memory, trace=path, **given)
    first = loader.plan()
    assert first.batch_rows_max < 100, "hubs were not drawn"
    assert max(sizes(expected)) > 2_000
    rows, totals = [], []
    for ours, theirs in zip(loader, expected, strict=True):
        assert same(ours, theirs)
        rows.append(loader.plan().batch_rows_max)
        totals.append(loader.plan().total_bytes)
        assert ours.num_nodes <= rows[-1]
    assert rows == sorted(rows)
    assert len(set(rows)) > 2, "it planned again more than once"
    assert max(totals) <= memory
    assert "later" in loader.plan().details()
    assert loader.stats()["batches"] == 40
    loader.close()
    assert sorted(check_batches(read(path))) == [(0, batch, "") for batch in range(40)]


@pytest.mark.parametrize("read_only", [False, True])
def test_sizes_are_kept_for_the_next_loader(make, expected, store, monkeypatch, read_only):
    """In this process if the store's folder cannot be written to."""

    def refuse(*_: object) -> None:
        raise OSError("read-only")

    if read_only:
        monkeypatch.setattr(cache, "save_json", refuse)
    memory = least(make) + ROOM
    first, again = make(memory=memory), make(memory=memory)
    assert sizes(first) == sizes(expected)
    after = first.plan().batch_rows_max
    assert (store.path / cache.BATCHES_JSON).exists() != read_only
    for loader in (again, first):
        assert loader.plan().batch_rows_max == after
        assert read_only or sum(batch.batch_size for batch in loader) == 400
        assert loader.plan().batch_rows_max == after


def test_sizes_are_kept_for_each_choice_of_tables(make, store, tmp_path):
    """A loader with fewer attributes leaves what one with more has learnt."""
    shutil.copytree(store.path, tmp_path / "hubs.gnn")
    both = gnndrive.open(tmp_path / "hubs.gnn")
    add(both, torch.randn(NODES, WIDTH))
    both = gnndrive.open(both.path)
    memory = least(make, data=both) + ROOM
    both, few = (make(data=both, memory=memory, attrs=attrs) for attrs in (["x", "h"], ["x"]))
    small = both.plan().batch_rows_max, few.plan().batch_rows_max
    for loader in (both, few):
        for _ in loader:
            pass
    large = both.plan().batch_rows_max, few.plan().batch_rows_max
    assert min(large) > max(small)
    again = [make(data=loader.data, memory=memory, attrs=loader.attrs) for loader in (both, few)]
    assert tuple(loader.plan().batch_rows_max for loader in again) == large


async def test_a_batch_too_large_for_the_budget_fails_at_its_turn_and_names_what_works(
    make, expected
):
    """The epoch has not finished then; all is the same in an event loop."""
    loader = make(memory=least(make) + 60_000)
    batches = aiter(loader)
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        async for _ in batches:
            pass
    with pytest.raises(StopAsyncIteration):
        await anext(batches)
    state = loader.state_dict()
    assert state["batches"] in (36, 37, 38)
    assert not state["finished"]
    for _ in range(HUBS):  # a later hub may need more
        try:
            found = [each.num_nodes async for each in make(memory=named_in(caught.value))]
            break
        except ConfigError as error:
            caught.value.args = error.args
    assert found == sizes(expected)


def test_a_resumed_epoch_of_a_rank_plans_again(make, expected, monkeypatch):
    loader = make(memory=least(make) + ROOM, ranks=True)
    loader.load_state_dict(loader.state_dict() | {"batches": 30})
    monkeypatch.setattr("gnndrive.loader.assembly.resolve_ranks", lambda *_: Ranks(1, 2, "loader"))
    rows = set()
    for ours, theirs in zip(loader, expected[31::2], strict=True):
        assert same(ours, theirs)
        rows.add(loader.plan().batch_rows_max)
    assert len(rows) > 1
    assert loader.state_dict()["batches"] == 40


def test_a_damaged_batches_json_is_drawn_again(make, store):
    plan = str(make(memory="6MB").plan())
    file = store.path / cache.BATCHES_JSON
    good = file.read_bytes()
    for bad in (b"[]", good.replace(b'"sizes": [[', b'"sizes": [[-'), b"\xff" * 9, b"[" * 100_000,
                good.replace(b'"version"', b'"versoin"')):  # fmt: skip
        file.write_bytes(bad)
        cache._of_process.clear()
        assert str(make(memory="6MB").plan()) == plan
        assert json.loads(file.read_bytes()).keys() == json.loads(good).keys()


def test_what_takes_hardly_more_memory_or_comes_in_any_order_is_counted_at_once(
    make, expected, monkeypatch
):
    assert make(memory="100MB", in_order=False).plan().batch_rows_max == NODES
    least_of_drawn = least(make)
    monkeypatch.setattr(choice, "HARDLY_MORE_BYTES", 32 << 20)
    memory = least(make)
    assert memory > least_of_drawn + 1_000_000
    loader = make(memory=memory)
    first = loader.plan()
    assert sizes(loader) == sizes(expected)
    assert loader.plan() == first
    assert max(sizes(expected)) <= first.batch_rows_max


def test_seeds_given_twice_may_make_a_batch_larger_than_the_bounds(make):
    """Each of them is expanded, so that a hub's edges are there twice."""
    seeds = torch.cat([torch.arange(390), torch.full((10,), NODES - 1)])
    expected = sizes(make(buffer="10MB", input_nodes=seeds))
    assert sizes(make(memory="60MB", input_nodes=seeds, buffer="300KB")) == expected


def test_of_a_hubs_edges_only_those_within_an_induced_sample_are_counted(make, tmp_path):
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


def test_edges_drawn_twice_of_which_an_induced_sample_keeps_one(make):
    """Drawing takes more memory than the plan, which counts the induced edges, has for it."""
    given: dict[str, Any] = {"num_neighbors": [300], "replace": True, "subgraph_type": "induced"}
    expected = sizes(make(buffer="10MB", **given))
    assert sizes(make(memory=least(make, **given) + 4 * ROOM, **given)) == expected


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


def test_a_sampler_without_limits_is_checked_after_its_samples(make):
    """One that refuses what its limits allow is an error."""
    strategy = replace(find_strategy("gnndrive"), sampler=Runs)
    given: dict[str, Any] = {"strategy": strategy, "topology": "mmap"}
    expected = sizes(make(buffer="10MB", **given))
    memory = least(make, **given) + ROOM
    loader = make(memory=memory, **given)
    first = loader.plan().batch_rows_max
    assert sizes(loader) == expected
    assert first < max(expected) <= loader.plan().batch_rows_max
    given["strategy"] = replace(strategy, sampler=Refuses)
    with pytest.raises(ConfigError, match="no larger than its limits"):
        list(make(memory=memory, **given))


def test_an_iterator_that_begins_while_the_plan_changes_waits(make, expected, monkeypatch):
    """Else its buffer would be freed while it is lent."""
    loader = make(memory=2 * (least(make) + ROOM))
    waits, begun, threads = threading.Event(), list[Any](), list[threading.Thread]()
    settled, measure, close = Runtime._settled, EpochAssembly._measure, BufferPool._close_buffer

    def begin() -> None:
        begun.append(iter(loader))
        waits.set()

    async def noted(self: Runtime, change_ended: asyncio.Event) -> None:
        waits.set()
        await settled(self, change_ended)

    def measured(self: EpochAssembly, *given: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=begin))
            threads[0].start()
            waits.wait()
        return measure(self, *given)

    def closed(self: BufferPool, buffer: Any) -> Any:
        assert buffer not in self._lent
        return close(self, buffer)

    monkeypatch.setattr(Runtime, "_settled", noted)
    monkeypatch.setattr(EpochAssembly, "_measure", measured)
    monkeypatch.setattr(BufferPool, "_close_buffer", closed)
    batches = iter(loader)
    assert [next(batches).num_nodes for _ in range(37)] == sizes(expected)[:37]
    threads[0].join()
    batches.close()
    assert sizes(begun[0]) == sizes(expected)


def test_after_a_refusal_an_epoch_that_begins_alone_counts_the_larger_batch(make, expected):
    loader = make(memory="60MB", buffer="330KB")
    running, refused = iter(loader), iter(loader)
    with pytest.raises(ConfigError, match="close the other iterator"):
        list(refused)
    rows = loader.plan().batch_rows_max
    del running
    again, other = iter(loader), iter(loader)
    assert loader.plan().batch_rows_max > rows
    found = [next(other).num_nodes for _ in range(37)]
    assert found == sizes(expected)[:37], "the refused batch comes, beside another epoch"
    again.close()
    other.close()


def test_an_epoch_whose_iterator_was_dropped_is_waited_for(make, expected, monkeypatch):
    """It is ending, and uses its buffer no longer."""
    loader = make(memory="60MB", buffer="330KB")
    iterators, change = [iter(loader), iter(loader)], Runtime.changing_plan
    batches = iterators[1]

    def changing(self: Runtime) -> Any:
        del iterators[:]
        return change(self)

    monkeypatch.setattr(Runtime, "changing_plan", changing)
    assert sizes(batches) == sizes(expected)


def test_what_changes_the_plan_begins_no_epoch(make, monkeypatch):
    """A sampler that is asked for a batch's size may do this, and would wait for itself."""
    loader = make(memory=least(make) + ROOM)
    with monkeypatch.context() as patched:
        patched.setattr(EpochAssembly, "_measure", lambda *given: iter(loader))
        with pytest.raises(ConfigError, match="own threads"):
            list(loader)
    assert sum(batch.batch_size for batch in loader) == 400


REVERSED = 1016  # bidirectional: an edge type has no edges but those of its reverse


def drawn_graph(draw: random.Random) -> Data | HeteroData:
    """A graph with hubs, or one of two types."""
    if draw.random() < 0.4:
        hetero = HeteroData()
        counts = {"paper": draw.choice([90, 500]), "author": draw.choice([7, 300])}
        hetero["paper"].x = torch.randn(counts["paper"], draw.choice([1, 40]))
        hetero["author"].num_nodes = counts["author"]
        for source, target in (("author", "paper"), ("paper", "author"), ("paper", "paper")):
            ends = [torch.randint(0, counts[type], (800,)) for type in (source, target)]
            hetero[source, "to", target].edge_index = torch.stack(ends)
        return hetero
    nodes, each = draw.choice([50, 400, 2_000]), draw.choice([1, 4, 9])
    ends = torch.rand(2, nodes * each)
    dtype = draw.choice((torch.float32, torch.float16, torch.int8, torch.float64))
    data = Data(
        x=(10 * torch.randn(nodes, draw.choice([1, 7, 130]))).to(dtype),
        edge_index=torch.stack([ends[0] * nodes, ends[1] ** 4 * nodes]).long(),
    )
    if draw.random() < 0.4:
        data.edge_attr = torch.randn(nodes * each, draw.choice([1, 20]))
    return data


def drawn_settings(draw: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {
        "num_neighbors": [draw.choice([-1, 0, 1, 2, 5]) for _ in range(draw.choice([1, 2]))],
        "batch_size": draw.choice([1, 3, 32, 200]), "seed": 1,
        "shuffle": draw.random() < 0.6, "io_depth": draw.choice([1, 4, 128]),
    }  # fmt: skip
    for chance, name, values in (
        (0.3, "replace", [True]), (0.3, "disjoint", [True]), (0.3, "topology", ["direct", "mmap"]),
        (0.3, "sweep", [1, 2]), (0.3, "extracting_queue", [1, 9]), (0.3, "samplers", [1, 5]),
        (0.3, "training_queue", [1, 8]), (0.2, "in_order", [False]), (0.2, "policy", ["lru"]),
        (0.2, "feature_dtype", ["float32"]),
    ):  # fmt: skip
        if draw.random() < chance:
            given[name] = draw.choice(values)
    if not given.get("disjoint") and draw.random() < 0.3:
        given["subgraph_type"] = "bidirectional"
    return given


def test_the_least_memory_works_and_a_hair_less_is_refused(tmp_path, seeds):
    for seed in (REVERSED, *seeds(6)):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        store = gnndrive.from_data(drawn_graph(draw), tmp_path / f"{seed}.gnn")
        given, kind = drawn_settings(draw), NeighborLoader
        if draw.random() < 0.25:
            kind, given["neg_sampling"] = LinkNeighborLoader, draw.choice([None, "binary"])
            if store.is_hetero:
                given["edge_label_index"] = ("author", "to", "paper")
        elif store.is_hetero:
            given["input_nodes"] = "paper"
        with (
            kind(store, memory=1, **moved(given)) as loader,
            pytest.raises(ConfigError, match="give at least memory=") as caught,
        ):
            iter(loader)
        named = named_in(caught.value)
        least = parse_size(named, "memory")
        with pytest.raises(ConfigError, match="is too little"):
            kind(store, memory=int(0.995 * least), **moved(given)).plan()
        with kind(store, memory=named, **moved(given)) as loader:
            for _ in islice(loader, 20):
                assert loader.plan().total_bytes <= least

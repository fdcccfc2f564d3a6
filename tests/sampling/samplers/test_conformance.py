"""What every sampler that draws must do, and that a sampler which does not is found."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common import plugins
from gnndrive.common.errors import BatchTooLarge, ClosedError, ConfigError, StoreError
from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext, batch_key
from gnndrive.sampling.samplers.inside import Inside
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies.base import Topology
from tests.sampling.samplers.graphs import (
    DEPENDENT,
    Shared,
    assert_contract,
    graph_of_degrees,
    random_graph,
    star,
)
from tests.sampling.test_load_window import Whole, partitioned_graph, random_parts
from tests.second import Runs

# Samplers that draw from graphs of their own: a function makes theirs of a topology.
GRAPHS: dict[str, Callable[[Topology], Topology]] = {"inside": Whole}
REPLAYING = ("recorded",)
ALL = [each for each in (*plugins.names("samplers"), Runs, Shared) if each not in REPLAYING]


def made(kind: type[Sampler], num_neighbors: Any = (4, 3), **more: Any) -> Sampler:
    return kind.make(SamplerContext(list(num_neighbors), **more))


def drawn(sampler: Sampler, seeds: Any, key: int, topology: Topology) -> Sample:
    """A sample around node ids, as the pipeline asks for it."""
    node = np.array(seeds, np.int64)
    given = node.copy()
    sample = sampler.sample(Seeds(0, given, given.copy()), key, [topology])
    assert np.array_equal(given, node), "the seeds were changed"
    assert isinstance(sample, Sample)
    return sample


def sampled(sampler: Sampler, seeds: Any, key: int, topology: Topology) -> Sample:
    return drawn(sampler, seeds, key, GRAPHS.get(sampler.name, lambda whole: whole)(topology))


def told(sample: Sample) -> tuple[Any, ...]:
    arrays = (sample.node, sample.row, sample.colptr, sample.edge)
    return (*(each.tolist() for each in arrays), sample.num_sampled_nodes, sample.num_sampled_edges)


def samples_are_pieces_of_the_graph(kind: type[Sampler]) -> None:
    for dtype in (np.int32, np.int64):
        indptr, indices = random_graph(300, 12, seed=3, dtype=dtype)
        topology = over_arrays(indptr, indices)
        for fanout in ([5, 4], [-1, 2], [0, 5], [], [1, -1, 1]):
            for repeat in (False, True):
                sampler = made(kind, fanout, replace=repeat)
                for seeds in (range(40), [7, 7, 3, 299, 7], []):
                    sample = sampled(sampler, seeds, 5, topology)
                    assert_contract(sample, indptr, indices, seeds, fanout, repeat)


def a_sample_depends_on_its_key_alone(kind: type[Sampler]) -> None:
    """On no other call before it, and on no thread beside it."""
    topology = over_arrays(*random_graph(1000, 15, seed=2, dtype=np.int32))
    batches = [np.arange(10 * batch, 10 * batch + 7 + batch**2) for batch in range(20)]
    keys = [batch_key(1, 0, batch) for batch in range(20)]

    def one(sampler: Sampler, batch: int) -> tuple[Any, ...]:
        return told(sampled(sampler, batches[batch], keys[batch], topology))

    expected = [one(made(kind), batch) for batch in range(20)]
    shared = made(kind)
    mixed = np.random.default_rng(0).permutation(np.tile(np.arange(20), 3)).tolist()
    with ThreadPoolExecutor(4) as threads:
        for batch, got in zip(mixed, threads.map(partial(one, shared), mixed), strict=True):
            assert got == expected[batch], "a sample differs from thread to thread or call to call"


@st.composite
def small_graphs(draw: st.DrawFn) -> tuple[list[int], int, list[int], list[int], bool]:
    """Degrees, a key, distinct seeds, a fanout and whether to replace."""
    degrees = draw(st.lists(st.integers(0, 9), min_size=1, max_size=20))
    seeds = st.lists(st.integers(0, len(degrees) - 1), unique=True, max_size=6)
    fanout = st.lists(st.integers(-1, 5), max_size=3)
    return degrees, draw(st.integers(0, 2**64 - 1)), draw(seeds), draw(fanout), draw(st.booleans())


def a_sample_is_within_its_bounds(kind: type[Sampler], case: Any) -> None:
    degrees, key, seeds, fanout, repeat = case
    indptr, indices = graph_of_degrees(degrees, key % 2**32)
    sampler = made(kind, fanout, replace=repeat)
    bounds = sampler.bounds(len(seeds), {None: len(degrees)}, {None: len(indices)})
    sample = sampled(sampler, seeds, key, over_arrays(indptr, indices))
    assert_contract(sample, indptr, indices, seeds, fanout, repeat)
    assert len(sample.node) <= bounds.nodes[None] <= bounds.entries[None]
    assert len(sample.edge) <= bounds.edges[None]


@pytest.mark.parametrize("sampler", ALL, ids=plugins.name_of)
@settings(max_examples=25)
@given(case=small_graphs())
def test_no_sample_exceeds_its_bounds(sampler, case):
    a_sample_is_within_its_bounds(plugins.find("samplers", sampler), case)


def stopping_ends_later_calls(kind: type[Sampler]) -> None:
    sampler, topology = made(kind), star(20)
    sampled(sampler, [0], 0, topology)
    for _ in range(2):
        sampler.stop()
        with pytest.raises(ClosedError):
            sampled(sampler, [0], 0, topology)
    sampled(made(kind), [0], 0, topology)  # the next epoch's is another


def stopping_ends_a_call_under_way(kind: type[Sampler]) -> None:
    """The topology is asked for the graph once the call has begun."""
    sampler, topology = made(kind), star(20)
    csc = topology.csc
    topology.csc = lambda: (sampler.stop(), csc())[1]  # type: ignore[method-assign]
    with pytest.raises(ClosedError):
        sampled(sampler, [0], 0, topology)


def what_cannot_be_is_an_error(kind: type[Sampler]) -> None:
    for bad in (-1, 6, 2**31 - 1):
        indices = np.array([1, 2, bad, 4, 5], np.int32)
        topology = over_arrays(np.array([0, 5, 5, 5, 5, 5, 5]), indices, "damaged")
        with pytest.raises(StoreError, match="damaged"):
            sampled(made(kind, [-1]), [0], 0, topology)
    for bad in (-(2**63), -1, 8, 2**63 - 1):
        topology = over_arrays(np.array([0, bad, 4, 7]), np.arange(7) % 3, "damaged")
        for node in (0, 1):
            with pytest.raises(StoreError, match="damaged"):
                sampled(made(kind, [-1]), [node], 0, topology)
    for bad in (-1, 21, 2**40):
        with pytest.raises(ConfigError, match=f"seed {bad} "):
            sampled(made(kind), [0, bad], 0, star(19))
    for fanout in ([-2], [3, 2.5], ["10"], [None], [2**63]):
        with pytest.raises(ConfigError, match="num_neighbors"):
            kind.make(SamplerContext(fanout))


def arrays_come_from_the_loaders_memory(kind: type[Sampler]) -> None:
    """Which recycles them."""
    given: list[int] = []

    def empty(shape: Any, dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        given.append(array.ctypes.data)
        return array

    sample = sampled(made(kind, empty=empty), range(5), 1, star(20))
    arrays = (sample.node, sample.row, sample.edge)
    assert {each.ctypes.data for each in arrays} <= {*given}, "an array is of its own"


CONTRACT = (
    samples_are_pieces_of_the_graph,
    a_sample_depends_on_its_key_alone,
    stopping_ends_later_calls,
    stopping_ends_a_call_under_way,
    what_cannot_be_is_an_error,
    arrays_come_from_the_loaders_memory,
)


@pytest.mark.parametrize("check", CONTRACT)
@pytest.mark.parametrize("sampler", ALL, ids=plugins.name_of)
def test_a_sampler_keeps_its_contract(sampler, check):
    check(plugins.find("samplers", sampler))


# ---- a broken one is found


def broken(**methods: Callable[..., Any]) -> type[Sampler]:
    return type("Broken", (Runs,), {"calls": 0, **methods})


def changed(**change: Callable[[Sample], Any]) -> type[Sampler]:
    def sample(*given: Any) -> Sample:
        found = Runs.sample(*given)
        return replace(found, **{name: changed(found) for name, changed in change.items()})

    return broken(sample=sample)


def counting(self: Any, seeds: Seeds, key: int, graphs: Any) -> Sample:
    self.calls += 1
    return Runs.sample(self, seeds, key + self.calls, graphs)


def without_edges_of_error(self: Any, seeds: Seeds, *given: Any) -> Sample:
    try:
        return Runs.sample(self, seeds, *given)
    except StoreError:
        return Runs.sample(self, replace(seeds, node=seeds.node[:0]), *given)


BROKEN: list[tuple[type[Sampler], Callable[[type[Sampler]], None], str]] = [
    (changed(node=lambda found: found.node[::-1].copy()),
     samples_are_pieces_of_the_graph, "the seeds come first"),
    (changed(edge=lambda found: found.edge[::-1].copy()),
     samples_are_pieces_of_the_graph, "an edge has another"),
    (broken(sample=counting), a_sample_depends_on_its_key_alone, "differs from thread to thread"),
    (broken(bounds=lambda *_: Bounds({None: 2}, {None: 99}, {None: 2})),
     lambda kind: a_sample_is_within_its_bounds(kind, ([3] * 9, 1, [1, 2], [3], False)), "<= 2"),
    (broken(stop=lambda self: None), stopping_ends_a_call_under_way, "DID NOT RAISE"),
    (broken(sample=without_edges_of_error), what_cannot_be_is_an_error, "DID NOT RAISE"),
    (changed(row=lambda found: found.row.copy()),
     arrays_come_from_the_loaders_memory, "of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "check", "message"), BROKEN)
def test_a_broken_sampler_is_found(sampler, check, message):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        check(sampler)


# ---- inside a window: ids are the store's, draws do not depend on the window's numbering

NODES, PARTS = 600, 11
GRAPH = random_graph(NODES, 14, seed=5)


def in_partitions(folder: Path, seed: int = 1, parts: int = PARTS) -> Any:
    folder.mkdir(exist_ok=True)
    return partitioned_graph(folder, *GRAPH, random_parts(NODES, parts, seed), parts, 0.1)


@pytest.mark.parametrize("replace", [False, True])
def test_ids_positions_and_rows_are_the_stores(tmp_path, replace):
    made = in_partitions(tmp_path)
    targets = np.repeat(np.arange(NODES), np.diff(GRAPH[0]))
    edges = 0
    for partitions, k in (([1, 4, 5, 9], 30), ([2, 3], 60)):
        graph = load_window(made, GRAPH[0], np.array(partitions, np.int32), k)
        members = graph.store_ids[k:].astype(np.int64)
        for batch in range(5):
            seeds = np.random.default_rng(batch).choice(members, 25)  # some of them twice
            sample = drawn(Inside([4, -1, 3], replace), seeds, batch, graph)
            assert np.array_equal(GRAPH[1][sample.edge], sample.node[sample.row])
            assert np.array_equal(targets[sample.edge], sample.node[sample.col])
            assert np.isin(sample.node, graph.store_ids).all()
            assert list(sample.rows or {}) == ["nodes/x"]
            assert np.array_equal(made.order[sample.rows["nodes/x"]], sample.node)  # type: ignore
            assert (sample.edge.dtype, sample.node.dtype) == (np.int32, np.int64)
            assert not sample.numbered
            edges += sample.num_edges
    assert edges > 1_000


@pytest.mark.parametrize("replace", [False, True])
def test_a_window_of_all_nodes_gives_the_batches_of_the_whole_graph(tmp_path, replace, seeds):
    """Whatever its partitions are and however many static nodes it has."""
    whole = over_arrays(*GRAPH)
    for parts in (1, PARTS):
        made = in_partitions(tmp_path / str(parts), parts, parts)
        for k in (0, 1, 60):
            graph = load_window(made, GRAPH[0], np.arange(parts, dtype=np.int32), k)
            for seed in seeds(2):
                node = np.random.default_rng(seed).integers(0, NODES, 30)
                for options in (
                    {"num_neighbors": [5, 4], "replace": replace},
                    {"num_neighbors": [40, -1], "replace": replace},
                    {"num_neighbors": [5, 4], "sampling": DEPENDENT},
                ):
                    one = drawn(Inside(**options), node, seed, graph)
                    assert told(one) == told(drawn(Uniform(**options), node, seed, whole))


def test_what_is_refused_bounded_or_left_to_the_context(tmp_path):
    made = in_partitions(tmp_path)
    graph = load_window(made, GRAPH[0], np.array([0, 1], np.int32), 10)
    outside = int(np.setdiff1d(np.arange(NODES), graph.store_ids)[0])
    with pytest.raises(StoreError, match=f"seed {outside} is not in the window"):
        drawn(Inside([2]), [int(graph.store_ids[0]), outside], 0, graph)
    with pytest.raises(ConfigError, match="draws inside windows, and papers is a whole graph"):
        drawn(Inside([2]), [0], 0, over_arrays(*GRAPH, "papers"))
    other: Any = object()
    assert Inside.make(SamplerContext([2], subgraphs=lambda: other, window_nodes=9)) is other
    with pytest.raises(ConfigError, match="inside windows, and the strategy has none"):
        Inside.make(SamplerContext([2], subgraphs=lambda: other))
    nodes, edges = {None: 1000}, {None: 10_000}
    for window, expected in ((None, 1000), (5000, 1000), (300, 300)):
        sampler = Inside.make(SamplerContext([10, 10], window_nodes=window))
        assert sampler.bounds(100, nodes, edges).nodes == {None: expected}
    graph = load_window(in_partitions(tmp_path), GRAPH[0], np.arange(PARTS, dtype=np.int32), 0)
    limits = Bounds({None: 20}, {None: 100}, {None: 20})
    with pytest.raises(BatchTooLarge):
        drawn(Inside.make(SamplerContext([10, 10], limits=limits)), range(20), 0, graph)

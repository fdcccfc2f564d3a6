"""What every sampler that draws must do, and that a sampler which does not is found.

What PyG's users rely on beyond that is in `test_uniform.py`, for uniform sampling. A sampler that
replays reads no graph, so its contract is another: `test_recorded.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common import plugins
from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.records import Int64Array, Sample, Seeds
from gnndrive.sampling.samplers.base import (
    Bounds,
    Sampler,
    SamplerContext,
    batch_key,
    position_dtype,
)
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies.base import Topology
from tests.sampling.samplers.graphs import Index, Shared, graph_of_degrees, random_graph, star
from tests.sampling.windows import Whole
from tests.second import Runs

# Samplers that draw from graphs of their own: a function makes theirs of a topology.
GRAPHS: dict[str, Callable[[Topology], Topology]] = {"inside": Whole}
REPLAYING = ("recorded",)
ALL = [each for each in (*plugins.names("samplers"), Runs, Shared) if each not in REPLAYING]


def made(kind: type[Sampler], num_neighbors: Any = (4, 3), **more: Any) -> Sampler:
    """A sampler of that kind for a graph of one type."""
    return kind.make(SamplerContext(list(num_neighbors), **more))


def sampled(sampler: Sampler, seeds: Sequence[int], key: int, topology: Topology) -> Sample:
    """A sample around node ids, as the pipeline asks for it."""
    node = np.array(seeds, np.int64)
    given = node.copy()
    graph = GRAPHS.get(sampler.name, lambda whole: whole)(topology)
    sample = sampler.sample(Seeds(0, given, given.copy()), key, [graph])
    assert np.array_equal(given, node), "the seeds were changed"
    assert isinstance(sample, Sample)
    return sample


def told(sample: Sample) -> tuple[Any, ...]:
    """Everything that a sample says."""
    arrays = (sample.node, sample.row, sample.colptr, sample.edge)
    return (*(each.tolist() for each in arrays), sample.num_sampled_nodes, sample.num_sampled_edges)


def assert_well_formed(
    sample: Sample, seeds: Sequence[int], hops: int, indptr: Int64Array, indices: Index
) -> None:
    """Hold a sample against its graph and against what the pipeline makes of it."""
    node, row, colptr, edge = sample.node, sample.row, sample.colptr, sample.edge
    assert (node.dtype, row.dtype, colptr.dtype) == (np.int64, np.int32, np.int32)
    assert edge.dtype == position_dtype(len(indices))
    assert len(sample.num_sampled_nodes) == hops + 1
    assert len(sample.num_sampled_edges) == hops
    assert sum(sample.num_sampled_nodes) == len(node)
    assert sum(sample.num_sampled_edges) == len(row) == len(edge)
    assert sample.num_sampled_nodes[0] == len(seeds), "the seeds are miscounted"
    assert node[: len(seeds)].tolist() == list(seeds), "the seeds come first and in order"
    later = node[len(seeds) :].tolist()
    assert len(set(later) - set(seeds)) == len(later), "a node comes twice"
    assert colptr[0] == 0
    assert colptr[-1] == len(row)
    assert (np.diff(colptr) >= 0).all()
    assert len(colptr) <= len(node) + 1
    if len(row):
        assert row.min() >= 0
        assert row.max() < len(node)
        assert edge.min() >= 0
        assert edge.max() < len(indices)
        assert np.array_equal(indices[edge], node[row]), "an edge has another source"
        target = node[sample.col]
        within = (indptr[target] <= edge) & (edge < indptr[target + 1])
        assert within.all(), "an edge has another target"
    reached = 0
    for hop in range(hops):
        reached += sample.num_sampled_nodes[hop]
        drawn = sum(sample.num_sampled_edges[: hop + 1])
        assert (sample.col[drawn:] >= reached).all(), "an edge is counted in a later hop"
        assert (row[:drawn] < reached + sample.num_sampled_nodes[hop + 1]).all()


# ---- the contract


def samples_are_pieces_of_the_graph(kind: type[Sampler]) -> None:
    for dtype in (np.int32, np.int64):
        indptr, indices = random_graph(300, 12, seed=3, dtype=dtype)
        topology = over_arrays(indptr, indices)
        for fanout in ([5, 4], [-1, 2], [0, 5], [], [1, -1, 1]):
            for repeat in (False, True):
                sampler = made(kind, fanout, replace=repeat)
                for seeds in (range(40), [7, 7, 3, 299, 7], []):
                    sample = sampled(sampler, seeds, 5, topology)
                    assert_well_formed(sample, list(seeds), len(fanout), indptr, indices)


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


def another_key_is_another_sample(kind: type[Sampler]) -> None:
    topology = star(300)
    samples = {
        tuple(sampled(made(kind, [3]), [0], batch_key(0, 0, batch), topology).edge.tolist())
        for batch in range(30)
    }
    assert len(samples) > 20


@st.composite
def small_graphs(draw: st.DrawFn) -> tuple[list[int], int, list[int], list[int], bool]:
    """Degrees, a key, distinct seeds, a fanout and whether to replace."""
    degrees = draw(st.lists(st.integers(0, 9), min_size=1, max_size=20))
    seeds = st.lists(st.integers(0, len(degrees) - 1), unique=True, max_size=6)
    fanout = st.lists(st.integers(-1, 5), max_size=3)
    return degrees, draw(st.integers(0, 2**64 - 1)), draw(seeds), draw(fanout), draw(st.booleans())


def a_sample_is_within_its_bounds(kind: type[Sampler], case: Any) -> None:
    """The plan counts memory for so many."""
    degrees, key, seeds, fanout, repeat = case
    indptr, indices = graph_of_degrees(degrees, key % 2**32)
    sampler = made(kind, fanout, replace=repeat)
    bounds = sampler.bounds(len(seeds), {None: len(degrees)}, {None: len(indices)})
    sample = sampled(sampler, seeds, key, over_arrays(indptr, indices))
    assert_well_formed(sample, seeds, len(fanout), indptr, indices)
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


def plain_sampling_leaves_all_else_to_the_context(kind: type[Sampler]) -> None:
    other = SimpleNamespace()
    context = SamplerContext([3], subgraphs=lambda: other)  # type: ignore[arg-type, return-value]
    assert kind.make(context) is other, "it samples plainly"


CONTRACT = (
    samples_are_pieces_of_the_graph,
    a_sample_depends_on_its_key_alone,
    another_key_is_another_sample,
    stopping_ends_later_calls,
    stopping_ends_a_call_under_way,
    what_cannot_be_is_an_error,
    arrays_come_from_the_loaders_memory,
    plain_sampling_leaves_all_else_to_the_context,
)


# `inside` leaves the rest to the context only if there are windows: see `test_inside.py`.
PROMISES = [
    pytest.param(sampler, check, id=f"{plugins.name_of(sampler)}-{check.__name__}")
    for sampler in ALL
    for check in CONTRACT
    if (sampler, check) != ("inside", plain_sampling_leaves_all_else_to_the_context)
]


@pytest.mark.parametrize(("sampler", "check"), PROMISES)
def test_a_sampler_keeps_its_contract(sampler, check):
    check(plugins.find("samplers", sampler))


# ---- a broken one is found


def broken(**methods: Callable[..., Any]) -> type[Sampler]:
    return type("Broken", (Runs,), {"calls": 0, **methods})


def changed(**change: Callable[[Sample], Any]) -> type[Sampler]:
    """A sampler that changes attributes of its samples."""

    def sample(*given: Any) -> Sample:
        found = Runs.sample(*given)
        return replace(found, **{name: changed(found) for name, changed in change.items()})

    return broken(sample=sample)


def counting(self: Any, seeds: Seeds, key: int, graphs: Any) -> Sample:
    """Draws from how often it was called."""
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
    (broken(sample=lambda self, seeds, key, graphs: Runs.sample(self, seeds, 0, graphs)),
     another_key_is_another_sample, "> 20"),
    (broken(bounds=lambda *_: Bounds({None: 2}, {None: 99}, {None: 2})),
     lambda kind: a_sample_is_within_its_bounds(kind, ([3] * 9, 1, [1, 2], [3], False)), "<= 2"),
    (broken(stop=lambda self: None), stopping_ends_later_calls, "DID NOT RAISE"),
    (broken(stop=lambda self: None), stopping_ends_a_call_under_way, "DID NOT RAISE"),
    (broken(sample=without_edges_of_error), what_cannot_be_is_an_error, "DID NOT RAISE"),
    (changed(row=lambda found: found.row.copy()),
     arrays_come_from_the_loaders_memory, "of its own"),
    (broken(make=classmethod(lambda kind, given: kind(given.num_neighbors))),
     plain_sampling_leaves_all_else_to_the_context, "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "check", "message"), BROKEN)
def test_a_broken_sampler_is_found(sampler, check, message):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        check(sampler)

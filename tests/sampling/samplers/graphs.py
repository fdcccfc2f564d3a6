"""Graphs for the samplers' tests; what a sample must be, and LABOR-0, in plain numpy."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int64Array, Sample
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.samplers._native import Relation, SamplingOptions, SeedGroup, SharedNumbers
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap

Index = npt.NDArray[Any]


def graph_of_degrees(
    degrees: Sequence[int], seed: int = 0, dtype: type = np.int64
) -> tuple[Int64Array, Index]:
    """A CSC graph whose node i has `degrees[i]` in-neighbours drawn at random (multi-edges too)."""
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    random = np.random.default_rng(seed)
    return indptr, random.integers(0, max(len(degrees), 1), indptr[-1]).astype(dtype)


def random_graph(
    nodes: int, mean_degree: float, seed: int = 0, dtype: type = np.int64
) -> tuple[Int64Array, Index]:
    """A CSC graph with some hubs and some nodes without in-neighbours."""
    random = np.random.default_rng(seed)
    degrees = (random.pareto(1.5, nodes) * mean_degree / 2).astype(np.int64)
    return graph_of_degrees(np.minimum(degrees, nodes).tolist(), seed, dtype)


def star(degree: int, dtype: type = np.int64) -> Mmap:
    """Node 0 has the in-neighbours 1 … degree, in order, so that position p holds node p + 1."""
    indptr = np.full(degree + 2, degree, np.int64)
    indptr[0] = 0
    return Mmap(indptr, np.arange(1, degree + 1, dtype=dtype), "star")


class Scratch:
    """Calls the C sampler directly, for one node type and one edge type."""

    def __init__(self) -> None:
        self.handle = ffi.gc(lib.gd_sampler_new(), lib.gd_sampler_free)

    def sample(
        self, csc: Any, seeds: Sequence[int], fanout: Sequence[int], key: int = 0, **more: int
    ) -> int:
        """Return `gd_sample`'s result; `more`: fields of `gd_sampling` or the seeds' `count`."""
        self._arrays = [np.array(values, np.int64) for values in (seeds, fanout, [csc.nodes])]
        node, hops, nodes = map(pointer, self._arrays)
        count = more.pop("count", len(seeds))
        self._edge_types = ffi.new("gd_edge_type[1]", [{"csc": csc, "fanout": hops}])
        self._seeds = ffi.new("gd_seeds[1]", [{"node": node, "count": count}])
        job = {"edge_types": self._edge_types, "nodes": nodes, "seeds": self._seeds, "key": key}
        counts = {"edge_type_count": 1, "node_type_count": 1, "seeds_count": 1}
        self._job = ffi.new("gd_sampling *", {**job, **counts, "hops": len(fanout), **more})
        return int(lib.gd_sample(self.handle, self._job))

    def sources(self) -> Int64Array:
        """The source of each edge, global ids, int64 [edges]."""
        node = np.empty(lib.gd_sampler_nodes(self.handle, 0), np.int64)
        row = np.empty(lib.gd_sampler_edges(self.handle, 0), np.int32)
        null = ffi.NULL
        lib.gd_sampler_found(self.handle, 0, pointer(node), null, null)
        lib.gd_sampler_drawn(self.handle, 0, pointer(row), null, null, 8, null)
        return node[row]


# ---- the contract: what each option means, for any number of types


@dataclass
class Edges:
    source: int
    target: int
    indptr: np.ndarray
    indices: np.ndarray
    edge_time: np.ndarray | None = None
    node_time: np.ndarray | None = None
    numbers: list[int] | None = None  # those that all targets share, by source

    def relation(self, fanout: list[int]) -> Relation:
        topology = Mmap(self.indptr, self.indices, "graph")
        ends = np.array(fanout), self.source, self.target
        return Relation(topology, *ends, self.node_time, self.edge_time)

    def existing(self, node: int, time: int | None) -> list[int]:
        """The positions of a node's in-edges that exist at `time`."""
        positions = range(self.indptr[node], self.indptr[node + 1])
        return [p for p in positions if time is None or self.since(p) <= time]

    def since(self, position: int) -> int:
        """The time from which an edge exists."""
        if self.edge_time is not None:
            return int(self.edge_time[position])
        if self.node_time is not None:
            return int(self.node_time[self.indices[position]])
        return -(1 << 62)


@dataclass
class Case:
    counts: list[int]
    edges: list[Edges]
    fanouts: list[list[int]]
    seeds: list[SeedGroup]
    options: SamplingOptions


@dataclass
class Found:
    """Nodes as (tree, id) by type; edges as (source, target, position) by edge type, with the ends
    as indexes into the nodes; and the numbers of both in each hop."""

    nodes: list[list[tuple[int, int]]]
    nodes_per_hop: list[tuple[int, ...]]
    edges: list[list[tuple[int, int, int]]]
    edges_per_hop: list[tuple[int, ...]]


def assert_contract(
    sample: Sample, indptr: Int64Array, indices: Index, seeds: Sequence[int],
    fanout: Sequence[int], replace: bool, numbers: list[int] | None = None,
) -> None:  # fmt: skip
    """Check a sample of one type against everything that users of PyG's NeighborLoader rely on."""
    node, row, col, edge = sample.node, sample.row, sample.col, sample.edge
    assert (node.dtype, row.dtype, col.dtype) == (np.int64, np.int32, np.int32)
    assert edge.dtype == np.int32  # a position among few edges
    case = Case(
        [len(indptr) - 1], [Edges(0, 0, indptr, indices, numbers=numbers)], [list(fanout)],
        [SeedGroup(np.array(seeds, np.int64))], SamplingOptions(0, replace),
    )  # fmt: skip
    edges = list(zip(row.tolist(), col.tolist(), edge.tolist(), strict=True))
    nodes = [(0, each) for each in node.tolist()]
    check(case, Found([nodes], [sample.num_sampled_nodes], [edges], [sample.num_sampled_edges]))


def check(case: Case, found: Found) -> None:
    """Check a sample of any types, trees and times against the graph."""
    times = [t for s in case.seeds for t in ([None] * len(s.node) if s.time is None else s.time)]
    expanded, tree = [0] * len(case.counts), 0
    reached = [len(group.node) for group in case.seeds]
    for kind, group in enumerate(case.seeds):
        trees = [tree + at if case.options.disjoint else 0 for at in range(len(group.node))]
        seeds = list(zip(trees, group.node.tolist(), strict=True))
        assert found.nodes[kind][: len(seeds)] == seeds, "the seeds come first and in order"
        later = found.nodes[kind][len(seeds) :]
        assert len(set(later) - set(seeds)) == len(later)
        assert sum(found.nodes_per_hop[kind]) == len(found.nodes[kind])
        tree += len(group.node)
    places: list[dict[tuple[int, int], int]] = [{} for _ in found.nodes]
    for first_place, nodes in zip(places, found.nodes, strict=True):
        for at, node in enumerate(nodes):
            first_place.setdefault(node, at)
    hops, used = len(case.fanouts[0]) if case.fanouts else 0, [0] * len(case.edges)
    assert {len(each) for each in found.edges_per_hop} <= {hops}
    assert {len(each) for each in found.nodes_per_hop} == {hops + 1}
    for hop in range(hops):
        sources: list[dict[tuple[int, int], None]] = [{} for _ in case.counts]
        for number, edges in enumerate(case.edges):
            first, used[number] = used[number], used[number] + found.edges_per_hop[number][hop]
            targets, drawn = range(expanded[edges.target], reached[edges.target]), defaultdict(list)
            for row, col, position in found.edges[number][first : used[number]]:
                assert col in targets
                source = found.nodes[edges.target][col][0], int(edges.indices[position])
                assert row == places[edges.source].get(source), "an edge has another source"
                sources[edges.source][source] = None
                drawn[col].append(position)
            for col in targets:
                of_tree, node = found.nodes[edges.target][col]
                time = times[of_tree] if case.options.disjoint and times else None
                fanout = case.fanouts[number][hop]
                check_draw(edges, node, time, fanout, case.options, drawn[col])
        expanded, of_hop = reached, [per_hop[hop + 1] for per_hop in found.nodes_per_hop]
        reached = [*map(int.__add__, expanded, of_hop)]
        for kind, nodes in enumerate(found.nodes):
            fresh = [node for node in sources[kind] if places[kind][node] >= expanded[kind]]
            assert nodes[expanded[kind] : reached[kind]] == fresh, "nodes are in another order"
    assert used == [len(edges) for edges in found.edges]
    assert reached == [len(nodes) for nodes in found.nodes]


def check_draw(
    edges: Edges, node: int, time: Any, fanout: int, options: SamplingOptions, drawn: list[int]
) -> None:
    """Check the edges that were drawn for one node against those that exist."""
    there = edges.existing(node, time)
    timed = edges.edge_time is not None or edges.node_time is not None
    if edges.numbers is not None and fanout >= 0:
        number = edges.numbers
        there = sorted(there, key=lambda p: (number[edges.indices[p]], p))[:fanout]
    elif options.latest and timed and 0 <= fanout < len(there):
        there = sorted(there, key=lambda p: (edges.since(p), p))[len(there) - fanout :]
    assert set(drawn) <= set(there)
    if fanout < 0 or (not options.replace and len(there) <= fanout):
        assert (sorted(drawn) if options.latest else drawn) == sorted(there)
    else:
        assert len(drawn) == (fanout if there else 0)
        assert options.replace or len(set(drawn)) == len(drawn)


# ---- LABOR-0: the nodes' numbers

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LABOR, DEPENDENT = Sampling("labor"), Sampling("labor", 3)


class Shared(Uniform):
    """The uniform sampler with shared numbers, where these are possible."""

    name = "shared"

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        if context.subgraphs is not None:
            return context.subgraphs()
        sampling = DRAWN_APART if context.replace else DEPENDENT
        return cls(context.num_neighbors, context.replace, context.empty, context.limits, sampling)


def bits_of(key: int, ids: Int64Array) -> npt.NDArray[np.uint64]:
    x = np.uint64(key) + ids.astype(np.uint64) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def numbers_of(shared: SharedNumbers, ids: Int64Array) -> npt.NDArray[np.uint64]:
    def nearly_normal(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return bits.view(np.uint16).reshape(-1, 4).sum(1, dtype=np.uint64)

    bits, later = bits_of(shared.key, ids), bits_of(shared.next_key, ids)
    total = np.uint64(shared.weight) * nearly_normal(bits)
    total += np.uint64(shared.next_weight) * nearly_normal(later)
    return (total << np.uint64(14)) | (bits & np.uint64(0x3FFF))

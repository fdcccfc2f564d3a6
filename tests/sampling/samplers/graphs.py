"""Graphs for the samplers' tests; the contract of uniform sampling, and LABOR-0, in plain numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int64Array, Sample
from gnndrive.sampling.labor import DRAWN_APART, Sampling, SharedNumbers
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


def assert_contract(
    sample: Sample, indptr: Int64Array, indices: Index, seeds: Sequence[int],
    fanout: Sequence[int], replace: bool,
) -> None:  # fmt: skip
    """Check a sample against everything that users of PyG's NeighborLoader rely on."""
    node, row, col, edge = sample.node, sample.row, sample.col, sample.edge
    assert (node.dtype, row.dtype, col.dtype) == (np.int64, np.int32, np.int32)
    assert edge.dtype == np.int32  # a position among few edges
    of_hop, drawn_of_hop = sample.num_sampled_nodes, sample.num_sampled_edges
    assert (len(of_hop), len(drawn_of_hop)) == (len(fanout) + 1, len(fanout))
    assert sum(of_hop) == len(node)
    assert sum(drawn_of_hop) == len(row) == len(col) == len(edge)
    assert node[: len(seeds)].tolist() == list(seeds), "the seeds come first and in order"
    later = node[len(seeds) :].tolist()
    assert len(set(later) - set(seeds)) == len(later)
    first_place: dict[int, int] = {}
    for place, value in enumerate(node.tolist()):
        first_place.setdefault(value, place)
    places = [first_place.get(value) for value in indices[edge].tolist()]
    assert row.tolist() == places, "an edge has another source"
    first, drawn, known = 0, 0, set(seeds)
    for hop, count in enumerate(fanout):
        last, end = first + of_hop[hop], drawn + drawn_of_hop[hop]
        expected_col: list[int] = []
        for place in range(first, last):
            begin, degree = indptr[node[place]], indptr[node[place] + 1] - indptr[node[place]]
            all_of_them = count < 0 or (not replace and degree <= count)
            times = int(degree) if all_of_them or degree == 0 else count
            mine = edge[drawn + len(expected_col) : drawn + len(expected_col) + times]
            assert ((mine >= begin) & (mine < begin + degree)).all()
            if all_of_them:
                assert mine.tolist() == list(range(begin, begin + degree))
            assert replace or len(set(mine.tolist())) == times
            expected_col += [place] * times
        assert col[drawn:end].tolist() == expected_col
        found = dict.fromkeys(indices[edge[drawn:end]].tolist())
        fresh = [value for value in found if value not in known]
        assert node[last : last + of_hop[hop + 1]].tolist() == fresh
        known |= set(fresh)
        first, drawn = last, end


# ---- LABOR-0: the nodes' numbers, and a whole sample by brute force

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


def brute_force(
    shared: SharedNumbers, indptr: Int64Array, indices: npt.NDArray[Any], seeds: Sequence[int],
    fanout: Sequence[int],
) -> tuple[list[int], list[int]]:  # fmt: skip
    nodes, edges, known, frontier = list(seeds), list[int](), set(seeds), list(seeds)
    number = numbers_of(shared, np.arange(len(indptr) - 1))
    for count in fanout:
        found: list[int] = []
        for node in frontier:
            position = np.arange(indptr[node], indptr[node + 1])
            if 0 <= count < len(position):
                first = np.lexsort((position, number[indices[position]]))[:count]
                position = np.sort(position[first])
            edges += position.tolist()
            for neighbour in indices[position].tolist():
                if neighbour not in known:
                    known.add(neighbour)
                    found.append(neighbour)
        nodes += found
        frontier = found
    return nodes, edges

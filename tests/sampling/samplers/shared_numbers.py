"""LABOR-0 in plain numpy: the nodes' numbers, and a whole sample by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int64Array
from gnndrive.sampling.labor import DRAWN_APART, Sampling, SharedNumbers
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.samplers.uniform import Uniform

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LABOR, DEPENDENT = Sampling("labor"), Sampling("labor", 3)


class Shared(Uniform):
    """The uniform sampler with shared numbers, where these are possible."""

    name = "shared"

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`."""
        if context.subgraphs is not None:
            return context.subgraphs()
        sampling = DRAWN_APART if context.replace else DEPENDENT
        return cls(context.num_neighbors, context.replace, context.empty, context.limits, sampling)


def bits_of(key: int, ids: Int64Array) -> npt.NDArray[np.uint64]:
    """64 random bits of each node."""
    x = np.uint64(key) + ids.astype(np.uint64) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def numbers_of(shared: SharedNumbers, ids: Int64Array) -> npt.NDArray[np.uint64]:
    """The number of each node."""

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
    """The nodes and the CSC positions of the edges of a sample."""
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

"""A synthetic graph with planted communities, for the demo and for tests that need a task to learn.

Each node belongs to one of `classes` communities, drawn at random, so that its id does not tell its
community and its neighbours are spread over the whole file. Most in-neighbours of a node are of its
own community. Degrees are skewed as in real graphs: in-degrees follow a power law, and a few
popular nodes are neighbours of very many nodes, so that a feature buffer has hits. A row of
features is a weak signal of the community under strong noise, and the mean over sampled neighbours
tells it well, so a model that learns from neighbours is far better than one without them.

Indices and features are computed block by block when they are sliced, so that writing a graph far
larger than memory needs little memory. The same arguments give the same store with the same version
of numpy. When not to use it: to measure accuracy, because the task is artificial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array
from gnndrive.store.format import index_dtype
from gnndrive.store.writer import StoreWriter

Array = npt.NDArray[Any]

IN_COMMUNITY = 0.8  # share of in-neighbours drawn from the node's community, others from anywhere
POPULARITY = 3.0  # a neighbour's rank in its community is size * u ** POPULARITY, u uniform
DEGREE_TAIL = 2.5  # in-degrees follow a Pareto law with this exponent,
DEGREE_CUT = 50  # cut at this many times the mean
SIGNAL = 1.0  # length of a community's mean row; each element's noise has deviation 1
BLOCK_ROWS = 1 << 14
BLOCK_EDGES = 1 << 20


class Computed:
    """An array whose rows are computed, block by block, when they are sliced.

    It keeps one block at most. The same slice always gives the same rows. `compute` is called with
    the number of a block of `block` rows, its first row and the row after its last.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        block: int,
        compute: Callable[[int, int, int], Array],
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._block = block
        self._compute = compute
        self._held: tuple[int, Array] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """The rows of a slice of step 1, as a new array."""
        if not isinstance(rows, slice):
            raise TypeError("a computed array gives slices of rows, not single rows")
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("a computed array gives slices of step 1")
        out = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        at = start
        while at < stop:
            number, place = divmod(at, self._block)
            found = self._rows(number)[place : place + stop - at]
            out[at - start : at - start + len(found)] = found
            at += len(found)
        return out

    def blocks(self) -> Iterator[Array]:
        """All rows in order, a block at a time."""
        for first in range(0, len(self), self._block):
            yield self._rows(first // self._block)

    def _rows(self, number: int) -> Array:
        if self._held is None or self._held[0] != number:
            first = number * self._block
            rows = self._compute(number, first, min(first + self._block, len(self)))
            self._held = number, rows
        return self._held[1]


@dataclass(frozen=True, slots=True)
class Planted:
    """The graph that `planted_communities` writes."""

    indptr: Int64Array  # [nodes + 1]
    indices: Computed  # in-neighbours, int32 (int64 from 2³¹ nodes on) [edges]
    x: Computed  # features, float32 [nodes, dim]
    y: Int64Array  # communities [nodes]
    splits: dict[str, Int64Array]  # node ids by name, sorted


def _random(seed: int, stream: int, block: int = 0) -> np.random.Generator:
    """A generator of the random numbers of one block of one stream, the same at every call."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, block, 0]))


def _degrees(num_nodes: int, mean: float, seed: int) -> Int64Array:
    """In-degrees [num_nodes], at least 1, by a Pareto law; their mean is about `mean`."""
    u = _random(seed, 0).random(num_nodes)
    mean_raw = (DEGREE_TAIL - 1) / (DEGREE_TAIL - 2)  # mean of the law before the cut
    raw = np.minimum((1 - u) ** (-1 / (DEGREE_TAIL - 1)), DEGREE_CUT * mean_raw)
    degrees: Int64Array = np.maximum(np.rint(raw * (mean / raw.mean())), 1).astype(np.int64)
    return degrees


class _Neighbours:
    """Draws the in-neighbours of a block of edges."""

    def __init__(self, indptr: Int64Array, y: Int64Array, classes: int, seed: int) -> None:
        # Without a permutation the popular nodes would have small ids.
        order = _random(seed, 1).permutation(len(y))
        by_community = order[np.argsort(y[order], kind="stable")]
        self._members = by_community.astype(index_dtype(len(y)))
        self._sizes = np.bincount(y, minlength=classes)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._indptr, self._y, self._seed = indptr, y, seed
        self.dtype = self._members.dtype

    def __call__(self, block: int, start: int, stop: int) -> Array:
        first = int(np.searchsorted(self._indptr, start, side="right")) - 1
        last = int(np.searchsorted(self._indptr, stop, side="left"))
        bounds = np.clip(self._indptr[first : last + 1], start, stop)
        community = np.repeat(self._y[first:last], np.diff(bounds))
        random = _random(self._seed, 2, block)
        stray = random.random(stop - start, np.float32) >= IN_COMMUNITY
        community[stray] = random.integers(0, len(self._sizes), int(stray.sum()))
        # An empty community has no members: draw from the whole graph instead.
        sizes = np.where(self._sizes > 0, self._sizes, len(self._y))
        starts = np.where(self._sizes > 0, self._starts, 0)
        rank = random.random(stop - start) ** POPULARITY * sizes[community]
        neighbours: Array = self._members[starts[community] + rank.astype(np.int64)]
        return neighbours


class _Features:
    """Draws the features of a block of nodes."""

    def __init__(self, y: Int64Array, classes: int, dim: int, seed: int) -> None:
        means = _random(seed, 3).standard_normal((classes, dim), np.float32)
        self._means = means * (SIGNAL / np.linalg.norm(means, axis=1, keepdims=True))
        self._y, self._dim, self._seed = y, dim, seed

    def __call__(self, block: int, start: int, stop: int) -> Array:
        shape = (stop - start, self._dim)
        x = _random(self._seed, 4, block).standard_normal(shape, np.float32)
        x += self._means[self._y[start:stop]]
        return x


def _splits(num_nodes: int, fractions: Mapping[str, float], seed: int) -> dict[str, Int64Array]:
    order = _random(seed, 5).permutation(num_nodes)
    splits, at = {}, 0
    for name, fraction in fractions.items():
        count = round(num_nodes * fraction)
        splits[name] = np.sort(order[at : at + count])
        at += count
    return splits


def planted(
    num_nodes: int = 2_000_000,
    dim: int = 128,
    classes: int = 16,
    degree: float = 15,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Planted:
    """Make the graph; its indices and features are computed when they are sliced.

    Args:
        num_nodes: number of nodes.
        dim: elements of a row of features.
        classes: number of communities, which are about equal in size.
        degree: mean in-degree.
        fractions: the share of the nodes in each split; None: train 0.1, val 0.05, test 0.05.
        seed: the same seed gives the same graph.

    Raises:
        ConfigError: a number is out of range.
    """
    fractions = {"train": 0.1, "val": 0.05, "test": 0.05} if fractions is None else fractions
    if min(num_nodes, dim, classes) < 1 or classes > num_nodes:
        raise ConfigError("planted communities need dim >= 1 and num_nodes >= classes >= 1")
    if degree < 1:
        raise ConfigError(f"degree={degree}: give a mean in-degree of at least 1")
    if min(fractions.values(), default=0) < 0 or sum(fractions.values()) > 1 + 1e-9:
        raise ConfigError("fractions: give shares of at least 0 that add up to 1 or less")
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed={seed}: give a number from 0 to 2**64 - 1")
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(_degrees(num_nodes, degree, seed), out=indptr[1:])
    y = _random(seed, 6).integers(0, classes, num_nodes)
    neighbours = _Neighbours(indptr, y, classes, seed)
    indices = Computed((int(indptr[-1]),), neighbours.dtype, BLOCK_EDGES, neighbours)
    features = _Features(y, classes, dim, seed)
    x = Computed((num_nodes, dim), np.float32, BLOCK_ROWS, features)
    return Planted(indptr, indices, x, y, _splits(num_nodes, fractions, seed))


def planted_communities(
    path: str | os.PathLike[str],
    num_nodes: int = 2_000_000,
    dim: int = 128,
    classes: int = 16,
    degree: float = 15,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write the graph of `planted` as a store: `x` float32, `y` int64, splits train, val and test.

    The defaults write 1.02 GB of features and 30 M edges and use about 0.3 GB of memory. Arguments
    and errors are those of `planted` and of `StoreWriter`.
    """
    graph = planted(num_nodes, dim, classes, degree, fractions, seed)
    made_by = (
        f"planted_communities(num_nodes={num_nodes}, dim={dim}, classes={classes}, "
        f"degree={degree}, seed={seed})"
    )
    edges = len(graph.indices)
    with StoreWriter(
        path, num_nodes, edges, made_by=made_by, overwrite=overwrite, progress=progress
    ) as writer:
        writer.reserve(num_nodes * (dim * 4 + 16) + edges * graph.indices.dtype.itemsize)
        writer.write("graph/indptr", graph.indptr)
        writer.write("nodes/y", graph.y)
        for name, nodes in graph.splits.items():
            writer.split(name, nodes)
        for name, rows in {"graph/indices": graph.indices, "nodes/x": graph.x}.items():
            array = writer.array(name, rows.dtype, rows.shape)
            total = rows.dtype.itemsize * int(np.prod(rows.shape))
            for block in rows.blocks():
                array.write(block)
                if progress is not None:
                    progress(name, array.rows_written * array.info.row_bytes, total)

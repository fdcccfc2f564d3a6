"""Write the parts of a split: three graphs, their labelled edges, and what they were made of."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.distinct import distinct
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.small_files import fsync_folder, write_durable
from gnndrive.common.records import EdgeKey, Int64Array, ends_of
from gnndrive.store.derived_writer import DerivedWriter
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, index_dtype, npy_header
from gnndrive.store.link_split.classes import (
    CHUNK,
    DISJOINT,
    TEST,
    TRAIN,
    VAL,
    PairHash,
    Thresholds,
    TimeOrder,
    chunks,
    count_edges,
    numbers_of,
    smallest,
)
from gnndrive.store.link_split.opened import (
    EDGES,
    LABELS,
    LINKS,
    LINKS_JSON,
    PARTS,
    QUERIES,
    labels_folder,
)
from gnndrive.store.reader import Store
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.views import Chunk, StoredEdges

_RATIO_MAX = 1000
_GRAPHS = {"train": (TRAIN,), "val": (TRAIN, DISJOINT), "test": (TRAIN, DISJOINT, VAL)}
_ROWS_BYTES = 1 << 20  # rows of an attribute that are looked at together
_ROUNDS = 50  # of rejection, for one chunk

Keep = Callable[[Chunk], npt.NDArray[np.bool_]]
"""Takes edges and says which are kept."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a split depends on, beside the store: PyG's arguments of these names, checked."""

    num_val: int | float
    num_test: int | float
    is_undirected: bool
    key: str
    add_negative_train_samples: bool
    neg_sampling_ratio: float
    disjoint_train_ratio: int | float
    seed: int
    time: str | None = None

    def __post_init__(self) -> None:
        for name in ("num_val", "num_test", "disjoint_train_ratio"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value <= (1 if isinstance(value, float) else value):
                raise ConfigError(
                    f"{name}={value!r}: give a share from 0.0 to 1.0, or a number of edges"
                )
        ratio: Any = self.neg_sampling_ratio
        if not isinstance(ratio, int | float) or not 0 <= ratio <= _RATIO_MAX:
            raise ConfigError(
                f"neg_sampling_ratio={ratio!r}: give a number from 0 (no pairs) to {_RATIO_MAX}"
            )
        if type(self.seed) is not int or self.seed < 0:
            raise ConfigError(f"seed={self.seed!r}: give a whole number from 0")


@dataclass(frozen=True, slots=True)
class TypeSplit:
    """The split of an edge type, and of that of its reverses."""

    type: EdgeKey
    counted: Int64Array  # how many edges that get labels are in each class
    sizes: Mapping[EdgeKey, Int64Array]  # how many edges of either type are in each class
    by_type: Mapping[EdgeKey, Thresholds]

    @property
    def labelled(self) -> dict[str, int]:
        """The class of edges that have labels, by part."""
        train = DISJOINT if self.counted[DISJOINT] else TRAIN
        return {"train": train, "val": VAL, "test": TEST}


def split_type(
    store: Store, type: EdgeKey, reverse: EdgeKey, options: Options, place: int
) -> TypeSplit:
    """Decide which edges of a type are in which class. `reverse` is the type of its reverses, or
    None; `place` the type's place among those that are split.

    Raises:
        ConfigError: no edges would be left for training.
    """
    edges = store.edges(type)
    undirected = options.is_undirected and not edges.is_bipartite() and reverse is None
    hash, hash_of_reverse = (
        PairHash((options.seed, place), *each) for each in ((undirected,), (False, True))
    )
    if options.time is not None:
        times = _times(store, edges, options.time)
        span = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        hash = TimeOrder(edges, times, undirected, *span)
        if reverse is not None:
            others = store.edges(reverse)
            hash_of_reverse = TimeOrder(others, _times(store, others, options.time), False, *span)
    count = count_edges(edges, hash)
    val, test = _number(options.num_val, count), _number(options.num_test, count)
    train = count - val - test
    disjoint = _number(options.disjoint_train_ratio, max(0, train))
    if train <= 0 or train - disjoint <= 0:
        of_type = "" if type is None else f" of {type}"
        raise ConfigError(
            f"of {count} edges{of_type} {val} are for validation, {test} for tests and {disjoint} "
            "to supervise with alone: give fewer, so that edges are left that pass messages"
        )
    limits = smallest(edges, hash, [test, test + val, test + val + disjoint])
    found = {type: Thresholds(hash, *limits)}
    if reverse is not None:
        found[reverse] = replace(found[type], hash=hash_of_reverse)
    counted = np.zeros(4, np.int64)
    sizes: dict[EdgeKey, Int64Array] = {}
    for each, thresholds in found.items():
        sizes[each] = np.zeros(4, np.int64)
        for chunk in chunks(store.edges(each)):
            classes = thresholds.classes(chunk)
            sizes[each] += np.bincount(classes, minlength=4)
            if each == type:
                has_label = hash.counted(chunk)
                counted += np.bincount(classes[has_label], minlength=4)
    wanted = {DISJOINT: disjoint, VAL: val, TEST: test}
    if options.time is not None and any(
        count and not counted[each] for each, count in wanted.items()
    ):
        raise ConfigError(
            f"time={options.time!r}: edges of one time are in one part, and so many have the same "
            "that a part would have none: give larger parts, num_val= and num_test=, or leave "
            "out time= to split at random"
        )
    return TypeSplit(type, counted, sizes, found)


def _times(store: Store, edges: StoredEdges, name: str) -> Int64Array:
    """The times of a type's edges, mapped."""
    full = edges.name_of(name)
    if full not in store.info.arrays:
        there = ", ".join(edges.names) or "no attribute"
        raise ConfigError(f"time={name!r}: {full} is not there; the edges have {there}")
    times = store.array(full)
    if times.ndim != 1 or times.dtype.kind not in "iu" or times.dtype == np.uint64:
        raise ConfigError(
            f"time={name!r}: {full} is {times.dtype} {list(times.shape)}: times are one "
            "whole number for each edge, as an import keeps those of its time="
        )
    return times


def _number(share: int | float, count: int) -> int:
    return int(share * count) if isinstance(share, float) else share


def write_parts(
    store: Store,
    path: Path,
    splits: list[TypeSplit],
    options: Options,
    settings: Mapping[str, Any],
    overwrite: bool,
    tell: Callable[[int], None],
) -> None:
    """Write all parts, whole or not at all; errors as for `StoreWriter`. `settings` are what
    links.json is to hold; `tell` is called with the number of parts that are written."""
    disjoint = any(split.counted[DISJOINT] for split in splits)
    with _writer(store, path, splits, "train", overwrite) as writer:
        _fill(writer, store, splits, "train", options.key)
        for done, part in enumerate(("val", "test") if disjoint else ("test",)):
            tell(done + 1)
            with _writer(store, writer.folder / part, splits, part, False) as inner:
                _fill(inner, store, splits, part, options.key)
        for place, split in enumerate(splits):
            random = np.random.default_rng((options.seed, place))
            _write_labels(store, writer.folder, split, options, random)
        finish_links(writer.folder / LINKS, settings)


def finish_links(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write links.json and make durable what is in `folder`."""
    write_durable(folder / LINKS_JSON, json.dumps(settings, indent=1).encode())
    for root, _, _ in os.walk(folder):
        fsync_folder(Path(root))


def _writer(
    store: Store, path: Path, splits: list[TypeSplit], part: str, overwrite: bool
) -> DerivedWriter:
    types = store.info.types
    nodes: Any = {type: each.num_nodes for type, each in types.nodes.items()}
    edges: Any = dict(types.edges)
    for split in splits:
        for type, sizes in split.sizes.items():
            edges[type] = int(sizes[list(_GRAPHS[part])].sum())
    if not types.hetero:
        nodes, edges = nodes[None], edges[None]
    made_by = f"gnndrive.split_links({store.path}), {part}"
    return DerivedWriter(path, nodes, edges, made_by=made_by, overwrite=overwrite)


def _fill(
    writer: DerivedWriter, store: Store, splits: list[TypeSplit], part: str, key: str
) -> None:
    """Write the arrays of a part: its edges anew, all else as the store has it."""
    chosen = np.isin(np.arange(4), _GRAPHS[part])
    folders: set[str] = set()  # of arrays that are not taken over
    for split in splits:
        for type, thresholds in split.by_type.items():

            def keep(chunk: Chunk, of: Thresholds = thresholds) -> Any:
                return chosen[of.classes(chunk)]

            _write_kept(writer, store, store.edges(type), keep, key)
            folders |= {array_name("graph", type, ""), array_name("edges", type, "")}
    for name in store.info.arrays:
        if name.rpartition("/")[0] not in folders:
            writer.take(store, name)
    writer.values = store.info.values


def _write_labels(
    store: Store, root: Path, split: TypeSplit, options: Options, random: np.random.Generator
) -> None:
    """Write the labelled edges of a type in all parts."""
    edges = store.edges(split.type)
    given = edges.name_of(options.key)
    labels = store.array(given) if given in store.info.arrays else None
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iub"):
        raise ConfigError(
            f"{given} is {labels.dtype} {list(labels.shape)}: labels are one whole number for each "
            "edge; name another attribute with key=, or none"
        )
    ratio = options.neg_sampling_ratio
    wanted = {part: int(split.counted[split.labelled[part]] * ratio) for part in PARTS}
    if not options.add_negative_train_samples:
        wanted["train"] = 0
    writers = {
        part: LabelWriter(root / labels_folder(part, split.type), labels is not None)
        for part in PARTS
    }
    with writers["train"], writers["val"], writers["test"]:
        for part, chunk_edges, number in _labelled(edges, split):
            value: Any = 1.0
            if labels is not None:
                value = np.asarray(labels[number], np.int64) + (wanted[part] > 0)
            writers[part].write(*chunk_edges, value)
        positive = {part: writers[part].count for part in PARTS}
        for drawn in negatives(edges, list(wanted.values()), random):
            for part, pairs in zip(PARTS, drawn, strict=True):
                writers[part].write(*pairs, 0)
    for part in PARTS:
        found = writers[part].count - positive[part]
        if found < wanted[part]:
            warnings.warn(
                f"the {part} part has {found} pairs of nodes without an edge instead of "
                f"{wanted[part]}, because the graph has no more",
                stacklevel=6,
            )


def _labelled(
    edges: StoredEdges, split: TypeSplit
) -> Iterator[tuple[str, tuple[Int64Array, Int64Array], Int64Array]]:
    """The edges that get labels, chunk by chunk: their part, their ends, their numbers."""
    thresholds = split.by_type[split.type]
    for chunk in chunks(edges):
        classes = thresholds.classes(chunk)
        counted = thresholds.hash.counted(chunk)
        for part in PARTS:
            mask = counted & (classes == split.labelled[part])
            number = numbers_of(chunk, edges.edge_id)[mask]
            yield part, (chunk.source[mask], chunk.target[mask]), number


# ---- the edges of a part: CSC, their numbers, their attributes


class KeptEdges:
    """The set of edges that are kept, by their numbers; says how many come before each. It takes
    one bit for each of the store's `num_edges` edges, and one 64-bit count for 64 of them."""

    def __init__(self, num_edges: int) -> None:
        self._bytes = np.zeros(-(-num_edges // 64) * 8 + 8, np.uint8)
        self._before: Int64Array | None = None

    def add(self, number: Int64Array) -> None:
        """Add edges; none twice."""
        np.bitwise_or.at(self._bytes, number >> 3, np.left_shift(1, number & 7).astype(np.uint8))

    def part(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether the edges `start` to `stop` - 1 are in the set; `start` is a multiple of 8."""
        bits = np.unpackbits(self._bytes[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[: stop - start].astype(bool)

    def rank(self, number: Int64Array) -> Int64Array:
        """How many edges of the set have a smaller number, int64 [n]."""
        words = self._bytes.view(np.dtype("<u8")).astype(np.uint64, copy=False)
        if self._before is None:
            self._before = np.zeros(len(words), np.int64)
            for start in range(0, len(words) - 1, CHUNK):
                part = _ones(words[start : min(start + CHUNK, len(words) - 1)])
                self._before[start + 1 : start + 1 + len(part)] = part
            np.cumsum(self._before, out=self._before)
        word = number >> 6
        below = (np.uint64(1) << (number & 63).astype(np.uint64)) - np.uint64(1)
        before: Int64Array = self._before[word]
        return before + _ones(words[word] & below)


def _ones(words: npt.NDArray[np.uint64]) -> Int64Array:
    """The number of ones in each word, int64 [n]."""
    one, two, four = (
        np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
    )
    words = words - ((words >> np.uint64(1)) & one)
    words = (words & two) + ((words >> np.uint64(2)) & two)
    words = (words + (words >> np.uint64(4))) & four
    return ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


def _write_kept(
    writer: DerivedWriter, store: Store, edges: StoredEdges, keep: Keep, left_out: str
) -> None:
    """Write the edges of a type that are kept, without the attribute `left_out`. They keep their
    order in CSC, and in the list that their numbers refer to; all passes in chunks."""
    type = edges.type
    count = writer.types.edges[type]
    source, target = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    names = [array_name("graph", type, leaf) for leaf in GRAPH]
    leaves = store.info.leaves.get(array_name("edges", type, ""), ())
    attributes = [name for name in leaves if name != left_out]
    numbers = edges.edge_id
    kept = KeptEdges(edges.num_edges if numbers is not None or attributes else 0)
    indptr = np.zeros(target + 1, np.int64)
    indices = writer.array(names[1], index_dtype(source), (count,))
    for chunk in chunks(edges):
        mask = keep(chunk)
        indices.write(chunk.source[mask])
        indptr[chunk.low + 1 : chunk.high + 1] = np.bincount(
            chunk.target[mask] - chunk.low, minlength=chunk.high - chunk.low
        )
        if numbers is not None or attributes:
            kept.add(numbers_of(chunk, numbers)[mask])
    writer.write(names[0], np.cumsum(indptr, out=indptr))
    if numbers is not None:
        edge_id = writer.array(names[2], index_dtype(count), (count,))
        for chunk in chunks(edges):
            mask = keep(chunk)
            edge_id.write(kept.rank(numbers_of(chunk, numbers)[mask]))
    for name in attributes:
        _write_attribute(writer, store, edges, name, kept)


def _write_attribute(
    writer: DerivedWriter, store: Store, edges: StoredEdges, name: str, kept: KeptEdges
) -> None:
    full = edges.name_of(name)
    info, rows = store.info.arrays[full], store.tensor(full)
    array = writer.array(full, info.dtype, (writer.types.edges[edges.type], *info.shape[1:]))
    step = max(8, _ROWS_BYTES // max(1, info.row_bytes) // 8 * 8)
    for start in range(0, edges.num_edges, step):
        stop = min(start + step, edges.num_edges)
        array.write(rows[start:stop][torch.from_numpy(kept.part(start, stop))])


# ---- labelled edges


class LabelWriter:
    """Writes the labelled edges of a part, row after row; a context manager. The files have no
    checksums: they are checked when a loader gets them.

    Args:
        folder: where to write, made if it is not there.
        whole: whether labels are whole numbers, int64; else they are float32, as in PyG.
        queries: whether each edge has a query.
    """

    def __init__(self, folder: Path, whole: bool, queries: bool = False) -> None:
        self.count, self._folder = 0, folder  # edges written so far
        self._dtypes = {EDGES: "int64", LABELS: "int64" if whole else "float32"}
        if queries:
            self._dtypes[QUERIES] = "int64"
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> LabelWriter:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in self._dtypes:
                self._files[name] = open(self._folder / name, "xb")
                self._files[name].write(bytes(DATA_OFFSET))
        except OSError as error:
            raise self._failure(error) from error
        return self

    def write(
        self, source: Int64Array, target: Int64Array, labels: Any, queries: Int64Array | None = None
    ) -> None:
        """Write edges: their ends, int64 [n], their labels [n], or one for all, and, if there are
        any, their queries [n]."""
        labels = np.broadcast_to(labels, source.shape).astype(self._dtypes[LABELS])
        try:
            self._files[EDGES].write(np.stack([source, target], 1).astype("<i8").data)
            self._files[LABELS].write(labels.data)
            if queries is not None:
                self._files[QUERIES].write(queries.astype("<i8").data)
        except OSError as error:
            raise self._failure(error) from error
        self.count += len(source)

    def __exit__(self, *raised: object) -> None:
        try:
            for name, file in self._files.items():
                with file:
                    if raised[0] is None:
                        shape = (self.count, 2) if name == EDGES else (self.count,)
                        file.seek(0)
                        file.write(npy_header(ArrayInfo(name, self._dtypes[name], shape, "")))
                        file.flush()
                        os.fsync(file.fileno())
        except OSError as failure:
            raise self._failure(failure) from failure

    def _failure(self, error: OSError) -> StoreError:
        return StoreError(
            f"writing {self._folder} failed ({error.strerror or error}): check the disk, and that "
            "it has room"
        )


# ---- pairs of nodes without an edge


def negatives(
    edges: StoredEdges, counts: list[int], random: np.random.Generator
) -> Iterator[list[tuple[Int64Array, Int64Array]]]:
    """Draw pairs of nodes that are joined by no edge, uniformly, in one pass over the adjacency; no
    two are alike, and loops are left out.

    The number of pairs that end in a chunk's nodes is binomial in its share of all such pairs;
    within the chunk they are drawn by rejection, or by enumeration if it has few pairs.

    Args:
        edges: the edges of a type.
        counts: how many pairs to draw for each of several purposes.

    Yields:
        Sources and targets, int64 [n] each, for each purpose; several times. Fewer than `counts` in
        all if the graph has not so many pairs without an edge.
    """
    sources, square = edges.source.num_nodes, edges.source.type == edges.target.type
    free = _free(0, edges.target.num_nodes, edges.num_edges, sources, square)
    left = list(counts)
    for chunk in chunks(edges):
        mine = _free(chunk.low, chunk.high, len(chunk.source), sources, square)
        share = 1.0 if free <= mine else mine / free
        free -= mine
        wanted = [int(random.binomial(count, share)) for count in left]
        if not sum(wanted):
            continue
        drawn = _draw(chunk, sum(wanted), sources, square, random)
        out, start = [], 0
        for each, count in enumerate(wanted):
            pairs = drawn[start : start + count]
            start += count
            left[each] -= len(pairs)
            out.append((pairs % sources, pairs // sources + chunk.low))
        yield out


def _free(low: int, high: int, num_edges: int, sources: int, square: bool) -> int:
    """How many pairs that end in the nodes `low` to `high` - 1 have no edge, if none is double."""
    return max(0, (high - low) * (sources - square) - num_edges)


def _draw(
    chunk: Chunk, count: int, sources: int, square: bool, random: np.random.Generator
) -> Int64Array:
    """Draw pairs that end in a chunk's nodes: (target - chunk.low) * sources + source of each,
    int64 [count] in random order; fewer if there are not so many."""
    rows = chunk.high - chunk.low
    taken = (chunk.target - chunk.low) * sources + chunk.source
    if square:
        loops = np.arange(rows) * sources + np.arange(chunk.low, chunk.high)
        taken = np.concatenate([taken, loops])
    taken = distinct(taken)
    if rows * sources <= 8 * CHUNK:
        free = np.setdiff1d(np.arange(rows * sources), taken, assume_unique=True)
        return random.permutation(free)[:count]
    found = np.empty(0, np.int64)
    for _ in range(_ROUNDS):
        if len(found) >= count:
            break
        tries = random.integers(rows * sources, size=(count - len(found)) * 9 // 8 + 16)
        found = distinct(np.concatenate([found, tries]))
        found = found[~np.isin(found, taken, assume_unique=True)]
    return random.permutation(found)[:count]

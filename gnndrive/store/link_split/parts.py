"""Write the parts of a split: three graphs, their labelled edges, and what they were made of."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import fsync_folder
from gnndrive.common.records import EdgeKey, Int64Array
from gnndrive.store.derived_writer import DerivedWriter
from gnndrive.store.link_split.classes import (
    DISJOINT,
    TEST,
    TRAIN,
    VAL,
    PairHash,
    Thresholds,
    chunks,
    count_edges,
    smallest,
)
from gnndrive.store.link_split.graph import numbers_of, write_kept
from gnndrive.store.link_split.labels import LabelWriter
from gnndrive.store.link_split.negatives import negatives
from gnndrive.store.link_split.opened import LINKS, LINKS_JSON, PARTS, labels_folder
from gnndrive.store.link_split.options import Options
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name
from gnndrive.store.views import StoredEdges

_GRAPHS = {"train": (TRAIN,), "val": (TRAIN, DISJOINT), "test": (TRAIN, DISJOINT, VAL)}


@dataclass(frozen=True, slots=True)
class TypeSplit:
    """The split of an edge type.

    Attributes:
        type: the edge type.
        counted: how many edges that get labels are in each class.
        sizes: by edge type (this one, and that of its reverses), how many edges are in each class.
        by_type: by edge type, which edges are in which class.
    """

    type: EdgeKey
    counted: Int64Array
    sizes: Mapping[EdgeKey, Int64Array]
    by_type: Mapping[EdgeKey, Thresholds]

    @property
    def labelled(self) -> dict[str, int]:
        """The class of edges that have labels, by part."""
        train = DISJOINT if self.counted[DISJOINT] else TRAIN
        return {"train": train, "val": VAL, "test": TEST}


def split_type(
    store: Store, type: EdgeKey, reverse: EdgeKey, options: Options, place: int
) -> TypeSplit:
    """Decide which edges of a type are in which class.

    Args:
        store: the store.
        type: the edge type.
        reverse: the edge type of its reverses, or None.
        options: the arguments.
        place: the type's place among those that are split.

    Raises:
        ConfigError: no edges would be left for training.
    """
    edges = store.edges(type)
    undirected = options.is_undirected and not edges.is_bipartite() and reverse is None
    hash = PairHash((options.seed, place), undirected)
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
        found[reverse] = replace(found[type], hash=PairHash((options.seed, place), False, True))
    counted = np.zeros(4, np.int64)
    sizes: dict[EdgeKey, Int64Array] = {}
    for each, thresholds in found.items():
        sizes[each] = np.zeros(4, np.int64)
        for chunk in chunks(store.edges(each)):
            classes = thresholds.classes(chunk.source, chunk.target)
            sizes[each] += np.bincount(classes, minlength=4)
            if each == type:
                has_label = hash.counted(chunk.source, chunk.target)
                counted += np.bincount(classes[has_label], minlength=4)
    return TypeSplit(type, counted, sizes, found)


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
    """Write all parts, whole or not at all.

    Args:
        store: the store that is split.
        path: the folder to make.
        splits: the split of each edge type.
        options: the arguments.
        settings: what links.json is to hold.
        overwrite: whether to replace a store at `path`.
        tell: called with the number of parts that are written.

    Raises:
        ConfigError: `path` exists.
        StoreError: the disk is full, or writing failed.
    """
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
        with open(writer.folder / LINKS / LINKS_JSON, "x", encoding="utf-8") as file:
            json.dump(settings, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for root, _, _ in os.walk(writer.folder / LINKS):
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
    written: set[str] = set()
    for split in splits:
        for type, thresholds in split.by_type.items():

            def keep(source: Int64Array, target: Int64Array, of: Thresholds = thresholds) -> Any:
                return chosen[of.classes(source, target)]

            write_kept(writer, store, store.edges(type), keep, (key,))
            for group in ("graph", "edges"):
                leaves = store.info.leaves.get(array_name(group, type, ""), ())
                written |= {array_name(group, type, leaf) for leaf in leaves}
    for name in store.info.arrays:
        if name not in written:
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
        classes = thresholds.classes(chunk.source, chunk.target)
        counted = thresholds.hash.counted(chunk.source, chunk.target)
        for part in PARTS:
            mask = counted & (classes == split.labelled[part])
            number = numbers_of(chunk, edges.edge_id)[mask]
            yield part, (chunk.source[mask], chunk.target[mask]), number

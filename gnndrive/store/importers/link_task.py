"""A dataset's task of links: labelled pairs of nodes, written where `open_links` finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.records import EdgeKey, Int64Array
from gnndrive.store.checks import Bounds, Check
from gnndrive.store.importers.ends import CHUNK
from gnndrive.store.importers.features import Features, as_numpy, flat
from gnndrive.store.link_split.opened import PARTS, labels_folder
from gnndrive.store.link_split.parts import LabelWriter, finish_links

Links: TypeAlias = "tuple[Int64Array, Int64Array, Any, Int64Array | None]"
"""Sources and targets [n], labels [n] or one for all, queries [n] or None."""


@dataclass(frozen=True, slots=True)
class LinkSet:
    """Pairs of nodes of an edge type in a part, in files. First come the pairs that are given, then
    those without an edge: `negatives` for each of them, with the same query.

    Attributes:
        pairs: whole numbers [n, 2].
        limits: numbers of nodes of the types that the edges come from and go to.
        files: the names of the files of the pairs, the negative sources, the negative targets, the
            labels and the queries.
        labels: [n] or [n, 1]; None: all are 1.
        queries: whole numbers [n]; None: none, or the pairs' places if there are negatives.
        sources, targets: negative sources and targets, whole numbers [n, negatives].
    """

    pairs: Features
    limits: tuple[int, int]
    files: tuple[str, ...]
    labels: Features | None = None
    queries: Features | None = None
    sources: Features | None = None
    targets: Features | None = None

    @property
    def whole(self) -> bool:
        """Whether the labels are whole numbers."""
        return self.labels is not None and self.labels.dtype.kind in "iu"

    @property
    def has_queries(self) -> bool:
        """Whether the pairs have queries."""
        return any(each is not None for each in (self.queries, self.sources, self.targets))

    @property
    def negatives(self) -> int:
        """The number of pairs without an edge for each pair that is given."""
        drawn = (self.sources, self.targets)
        return max((each.shape[1] for each in drawn if each is not None), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are written."""
        each = 16 + (8 if self.whole else 4) + 8 * self.has_queries
        return self.pairs.shape[0] * (1 + self.negatives) * each

    def chunks(self) -> Iterator[Links]:
        """Read the pairs; StoreError: one names a node that does not exist."""
        labels = None if self.labels is None else flat(self.labels)
        for source, target, query, label in self._given(labels, CHUNK):
            yield source, target, 1.0 if label is None else label, query
        if self.sources is None and self.targets is None:
            return
        step = max(1, CHUNK // max(1, self.negatives))
        checks = [
            Bounds(file, "entry", limit, "nodes")
            for file, limit in zip(self.files[1:3], self.limits, strict=True)
        ]
        drawn = [
            None if each is None else each.chunks(step) for each in (self.sources, self.targets)
        ]
        for source, target, query, _ in self._given(None, step):
            ends = []
            for given, chunks, check in zip((source, target), drawn, checks, strict=True):
                if chunks is None:
                    ends.append(np.repeat(given, self.negatives))
                else:
                    ends.append(_whole(next(chunks).reshape(-1), check))
            yield ends[0], ends[1], 0.0, None if query is None else np.repeat(query, self.negatives)

    def _given(
        self, labels: Features | None, step: int
    ) -> Iterator[tuple[Int64Array, Int64Array, Int64Array | None, npt.NDArray[Any] | None]]:
        """The pairs that are given, checked, with their queries and labels."""
        queries = None if self.queries is None else self.queries.chunks(step)
        of_labels = None if labels is None else labels.chunks(step)
        checks = [Bounds(self.files[0], "row", limit, "nodes") for limit in self.limits]
        of_label, of_query = (_Fits(self.files[3], self.whole), _Fits(self.files[4], True))
        first = 0
        for chunk in self.pairs.chunks(step):
            pairs = as_numpy(chunk)
            query = label = None
            if queries is not None:
                query = _whole(next(queries), of_query)
            elif self.has_queries:
                query = np.arange(first, first + len(pairs))
            if of_labels is not None:
                label = as_numpy(next(of_labels))
                of_label.feed(label)
            source, target = map(_whole, pairs.T, checks)
            yield source, target, query, label
            first += len(pairs)


class _Fits(Check):
    """Checks that `LabelWriter` can write numbers: whole ones as int64, others as float32."""

    def __init__(self, where: str, whole: bool) -> None:
        super().__init__(where)
        self._dtype = np.dtype(np.int64 if whole else np.float32)

    def feed(self, chunk: npt.NDArray[Any]) -> None:
        """See `Check.feed`."""
        with np.errstate(over="ignore"):
            stored = chunk.astype(self._dtype)
        if self._dtype.kind == "f":
            bad = np.isinf(stored) & np.isfinite(chunk)
        else:
            bad = (stored < 0) != (chunk < 0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise StoreError(
                f"{self.where}: row {self.position + row} is {chunk[row]}, which does not fit "
                f"{self._dtype.name}; correct it"
            )
        super().feed(chunk)


LinkTask: TypeAlias = Mapping[EdgeKey, Mapping[str, LinkSet]]
"""The sets of a task by edge type and part: "train", "val" or "test"."""


def _whole(chunk: Any, check: Check) -> Int64Array:
    """Whole numbers as int64. They are checked before, because uint64 would become negative."""
    values = as_numpy(chunk)
    check.feed(values)
    return values.astype(np.int64)


def write_task(folder: Path, name: str, task: LinkTask) -> None:
    """Write a task into a new folder of a store that is being written. A set that the task does not
    have is empty."""
    for type, sets in task.items():
        for part in PARTS:
            given = sets.get(part)
            kinds = (False, False) if given is None else (given.whole, given.has_queries)
            with LabelWriter(folder / labels_folder(part, type, ""), *kinds) as writer:
                for links in () if given is None else given.chunks():
                    writer.write(*links)
    finish_links(folder, {"task": name, "edge_types": [list(type or ()) for type in task]})

"""Read a whole partitioned folder and check it against its store: every checksum, every id, every
list through the codes, and every row through the new order.

It reads the store's lists twice, its x once, and the folder's lists and rows at most twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, DirectReader, page_buffer
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.format import DATA_OFFSET, storage_dtype
from gnndrive.store.layout.arrays import Ids, Maps, StoredIds, checksums
from gnndrive.store.layout.rows import Output, verify_rows
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned import lists
from gnndrive.store.partitioned.arrays import zeros
from gnndrive.store.partitioned.format import ARRAYS, MEND, PartitionInfo
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.partitioned.renumbering import hottest, out_edges
from gnndrive.store.reader import Store

IDS = "ids"
MEMORY = 256 << 20
_PART_BYTES = 32 << 20
_STEP = 1 << 20


def verify_partition(
    path: str | os.PathLike[str], store: Store, progress: Progress | None = None
) -> PartitionInfo:
    """Check a whole partitioned folder, which may come from a stranger; `progress` is called as
    progress(what, done, total).

    Raises:
        StoreError: it is damaged, or belongs to another store; the message says which file, which
            node or which rows, and what to do.
        ReadError: a file cannot be read.
    """
    opened = open_partitioned(path, store)
    with store.unchanged(), opened.unchanged():
        _Check(opened, store, progress or (lambda *_: None)).run()
    return opened.info


class _Check:
    """Checks an opened folder."""

    def __init__(self, opened: Partitioned, store: Store, told: Progress) -> None:
        self._opened, self._store, self._told = opened, store, told
        self._order, self._home = opened.order, opened.home
        self._place: Ids = np.asarray(opened.place)

    def run(self) -> None:
        """Check everything; each step relies on those before it."""
        self._checksums()
        self._ids()
        place = zeros(self._opened.num_nodes, self._opened.place.dtype)
        place[:] = self._opened.place
        self._place = place
        self._static_nodes()
        self._lists()
        self._static_lists()
        self._rows()
        info = self._opened.info
        if self._shares.found() != (info.share_inside, info.share_hot):
            raise self._damaged("partition.json", "says other shares of in-edges than there are")

    def _damaged(self, file: str, why: str) -> StoreError:
        return self._opened.damaged(file, why)

    def _checksums(self) -> None:
        arrays, opened = self._opened.info.arrays, self._opened
        hashed = [arrays[name] for name in ARRAYS if name != "x"]
        codes = storage_dtype(opened.indices.dtype)
        self._shares = shares = lists.Shares(
            self._home, opened.bounds, opened.edge_bounds, opened.num_nodes, codes
        )
        told = partial(self._told, "checksums")
        for name, found in checksums(opened.path, hashed, MEND, told, shares.each):
            if found != arrays[name].checksum:
                raise self._damaged(f"{name}.npy", "has another checksum than partition.json says")

    def _ids(self) -> None:
        """Check that `order` is a permutation and then has the static nodes, and that `place` and
        `home` are its inverse."""
        opened, before = self._opened, -1
        for start in range(0, opened.num_nodes, _STEP):
            ids = opened.store_ids(start, min(start + _STEP, opened.num_nodes))
            new = np.arange(start, start + len(ids))
            other = np.flatnonzero(opened.new_ids(ids) != new)
            if len(other):
                at = int(other[0])
                raise self._damaged(
                    "place.npy",
                    f"gives node {ids[at]} another new id than {start + at}, where order.npy has "
                    "it, or order.npy has it twice",
                )
            falling = new[np.diff(ids, prepend=ids.dtype.type(before)) <= 0]
            starts = opened.bounds[np.searchsorted(opened.bounds, falling)]
            wrong = falling[starts != falling]
            if len(wrong):
                raise self._damaged(
                    "order.npy", f"has node {self._order[wrong[0]]} behind a larger one"
                )
            before = int(ids[-1])
            self._told(IDS, start + len(ids), opened.num_nodes)
        static = self._order[self._home]
        wrong = np.flatnonzero(self._place[static] != np.arange(opened.num_static))
        if len(wrong):
            raise self._damaged("home.npy", f"has a node of another rank at {wrong[0]}")
        wrong = np.flatnonzero(self._order[opened.num_nodes :] != static)
        if len(wrong):
            raise self._damaged("order.npy", f"has another node as static node {wrong[0]}")

    def _static_nodes(self) -> None:
        """Check that the static nodes have the most out-edges, and where lists begin."""
        opened = self._opened
        nodes = hottest(out_edges(self._store, self._told), opened.num_static)
        wrong = np.flatnonzero(self._order[self._home] != nodes)
        if len(wrong):
            rank = int(wrong[0])
            raise self._damaged(
                "home.npy",
                f"does not have node {nodes[rank]}, by its out-edges, as static node {rank}",
            )
        pointers = self._store.index_pointers
        degrees = pointers[nodes + 1].astype(np.int64) - pointers[nodes]
        self._same_sizes("static_bounds.npy", "rank", np.diff(opened.static_bounds), degrees)
        ends = self._new_lists(opened.num_edges).begins
        found = np.diff(opened.edge_bounds)
        self._same_sizes("edge_bounds.npy", "partition", found, ends - opened.edge_bounds[:-1])

    def _same_sizes(self, file: str, what: str, found: Int64Array, wanted: Int64Array) -> None:
        wrong = np.flatnonzero(found != wanted)
        if len(wrong):
            at = wrong[0]
            raise self._damaged(
                file, f"gives {what} {at} {found[at]} in-edges, and the store {wanted[at]}"
            )

    def _new_lists(self, first: int = 0) -> lists.NewLists:
        opened = self._opened
        return lists.NewLists(
            self._store, self._order, self._place, opened.bounds, opened.edge_bounds,
            opened.num_nodes + opened.num_static, first,
        )  # fmt: skip

    def _lists(self) -> None:
        new_lists = self._new_lists()
        file, codes = self._store.edges().indices_file, self._opened.indices
        wanted = np.empty(_STEP, storage_dtype(codes.dtype))
        with (
            closing(TableParts(file, _PART_BYTES).parts(0, file.row_count)) as parts,
            _Codes(codes) as written,
        ):
            for part in parts:
                for each in new_lists.slices(part):
                    for done, found in written.blocks(each.first, each.count):
                        expected = wanted[: len(found)]
                        new_lists.fill(done, len(found), expected.view(np.uint8))
                        self._same_list(each, done, found, expected)
                self._told(lists.LISTS, part.first + part.count, file.row_count)

    def _same_list(self, each: lists.Slice, done: int, found: Ids, expected: Ids) -> None:
        if np.array_equal(found, expected):
            return
        at = each.first + done + int(np.flatnonzero(found != expected)[0])
        degrees = np.diff(self._store.index_pointers.astype(np.int64))[
            self._order[each.target : self._opened.bounds[each.partition + 1]]
        ]
        start = self._opened.edge_bounds[each.partition + 1] - degrees.sum()
        new = each.target + int(np.searchsorted(np.cumsum(degrees), at - start, "right"))
        raise self._damaged(
            "indices.npy",
            f"has another list of node {self._order[new]} (new id {new}, partition "
            f"{each.partition}) than {self._store.path}",
        )

    def _static_lists(self) -> None:
        opened = self._opened
        starts = lists.list_starts(self._store, self._order, self._place, opened.num_static)
        done, total = 0, opened.num_edges

        def told(count: int) -> None:
            nonlocal done
            done += count
            self._told(lists.STATIC_LISTS, min(done % (total + 1), total), total)

        bounds = opened.static_bounds
        with _Codes(opened.static_indices) as written:
            for first, codes in lists.static_windows(opened.indices, starts, bounds, MEMORY, told):
                for start, found in written.blocks(first, len(codes)):
                    wrong = np.flatnonzero(codes[start : start + len(found)] != found)
                    if len(wrong):
                        at = first + start + int(wrong[0])
                        rank = int(np.searchsorted(bounds, at, "right")) - 1
                        node = self._order[self._home[rank]]
                        raise self._damaged(
                            "static_indices.npy",
                            f"has another list of node {node} (rank {rank}) than indices.npy",
                        )
        self._told(lists.STATIC_LISTS, total, total)

    def _rows(self) -> None:
        opened, array = self._opened, self._opened.info.arrays["x"]
        ids = StoredIds(
            Maps(), opened.path / "order.npy", 0, len(opened.order), np.dtype(opened.order.dtype)
        )
        width, file = opened.x.row_bytes, opened.path / array.file
        bounds = [*opened.bounds.tolist(), len(opened.order)]  # the static rows come last
        outputs = [
            Output(file, DATA_OFFSET + low * width, ids.part(low, high))
            for low, high in pairwise(bounds)
        ]
        found = verify_rows(
            self._store.table("x"), outputs, opened.path, MEMORY, partial(self._told, "rows x"),
            MEND,
        )  # fmt: skip
        if f"sum64:{found:016x}" != array.checksum:
            raise self._damaged(array.file, "has another checksum than partition.json says")


class _Codes:
    """A file of codes, read past the page cache; a context manager."""

    def __init__(self, file: TableFile) -> None:
        self._file, self._dtype = file, storage_dtype(file.dtype)
        self._buffer = page_buffer(_STEP * file.row_bytes + 2 * PAGE_BYTES)
        self._reader = DirectReader(Path(file.path))

    def __enter__(self) -> _Codes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._reader.close()

    def blocks(self, first: int, count: int) -> Iterator[tuple[int, Ids]]:
        """Codes from position `first` on: how many came before, and the next ones, valid until
        those that follow."""
        width = self._file.row_bytes
        for done in range(0, count, _STEP):
            taken = min(_STEP, count - done)
            at = self._file.data_offset + (first + done) * width
            yield done, self._reader.read(at, taken * width, self._buffer).view(self._dtype)

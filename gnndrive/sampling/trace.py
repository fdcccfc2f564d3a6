"""`Trace`: the samples of a superbatch on disk, with the next use of each of their rows.

A superbatch is sampled before the first of its batches is extracted (Ginex §3.1), and its samples
wait in a file. `strategies/superbatches/feed.py` writes them in any order, makes a pass over them
from the last to the first with `add_next_uses`, and reads each once, in order. A record is

    node (int64), row, colptr (int32), edge (int32 or int64), input_id (int64)   then, on a page,
    code (uint16), the next use of each node

and starts on a page, because it is written and read past the page cache: dirty pages count in a
control group. The file has no name, so that the kernel frees it whatever happens to the process,
and each record's blocks are given back when it was read.

When not to use it: for samples in PyG's own form (`Subgraph`), which hold tensors of many kinds.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import check, lib, pointer
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, unnamed_file, whole_pages
from gnndrive.common.io.write_errors import FULL
from gnndrive.common.records import Codes, Int64Array, NextUses, Sample, Seeds

_NONE, _NO_INDEX, _NO_CODES = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint16)
WORD_BYTES = 8  # each array of a record starts on a multiple
CODE_BYTES = 2


@dataclass(slots=True)
class _Record:
    """Where a sample is, and what of it is in memory.

    Attributes:
        sample, seeds: whole, if the disk had no room for them, else without arrays.
        offset: where the record starts, in bytes.
        lengths: the numbers of elements of its arrays, nodes first.
        near: see `NextUses`.
        edge_dtype: that of positions of edges; None: the record is not in the file.
        codes: those that are not in the file; None: they are, or are not known.
    """

    sample: Sample
    seeds: Seeds
    offset: int
    lengths: Sequence[int]
    near: Int64Array
    edge_dtype: np.dtype[Any] | None = None
    codes: Codes | None = None

    @property
    def code_offset(self) -> int:
        """Where the codes start, from the start of the record."""
        return whole_pages(sum(_padded(each) for each in self.array_bytes))

    @property
    def array_bytes(self) -> tuple[int, ...]:
        """Bytes of each array but the codes."""
        assert self.edge_dtype is not None
        widths = (8, 4, 4, self.edge_dtype.itemsize, 8)
        return tuple(count * width for count, width in zip(self.lengths, widths, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole record, in pages."""
        return self.code_offset + whole_pages(CODE_BYTES * self.lengths[0])


def record_bytes(nodes: int, expanded: int, edges: int, seeds: int, position_bytes: int) -> int:
    """The most bytes of a record with so many nodes, expanded nodes, edges and seeds."""
    arrays = (8 * nodes, 4 * edges, 4 * (expanded + 1), position_bytes * edges, 8 * seeds)
    return whole_pages(sum(map(_padded, arrays))) + whole_pages(CODE_BYTES * nodes)


class Trace:
    """The samples of the batches of one superbatch; several threads may write at once.

    Attributes:
        nbytes: bytes of the records that were written.
    """

    def __init__(self, folder: Path, rows: int, empty: Allocate = np.empty) -> None:
        self._folder, self._rows, self._empty = folder, rows, empty
        self._records: dict[int, _Record] = {}
        self._lock, self.nbytes = threading.Lock(), 0
        try:
            self._file = unnamed_file(folder)
            self._close = weakref.finalize(self, self._file.close)
        except OSError as error:
            raise StoreError(
                f"no file for sampled batches can be made in {folder} ({error.strerror}): give "
                "another folder with folder="
            ) from error

    def write(self, seeds: Seeds, sample: Sample) -> bool:
        """Write the sample of a batch, and return True; if the disk has no room for it, keep it in
        memory, and return False."""
        assert sample.rows is None
        assert sample.replayed is None
        if self._put_record(seeds, sample):
            return True
        near = np.zeros(lib.GD_NEAR, np.int64)
        self._records[seeds.index] = _Record(sample, seeds, 0, (len(sample.node),), near)
        return False

    def _put_record(self, seeds: Seeds, sample: Sample) -> bool:
        """Write a sample to the end of the file; return whether the disk has room for it."""
        arrays = (sample.node, sample.row, sample.colptr, sample.edge, seeds.input_id)
        record = _Record(
            replace(sample, node=_NONE, row=_NO_INDEX, colptr=_NO_INDEX, edge=_NO_INDEX),
            replace(seeds, node=_NONE, input_id=_NONE, given=None),
            0, tuple(map(len, arrays)), np.zeros(lib.GD_NEAR, np.int64), sample.edge.dtype,
        )  # fmt: skip
        memory, start = _pages(self._empty, record.nbytes), 0
        for array, nbytes in zip(arrays, record.array_bytes, strict=True):
            memory[start : start + nbytes] = np.ascontiguousarray(array).view(np.uint8)
            start += _padded(nbytes)
        memory[start:] = 0  # the codes come later; their blocks are taken now
        with self._lock:
            record.offset = self.nbytes
            self.nbytes += len(memory)
        try:
            self._put(memory, record.offset)
        except OSError as error:
            if error.errno in FULL:
                return False
            raise self._failure(error) from error
        self._records[seeds.index] = record
        return True

    def add_next_uses(self, index: int, last: Codes) -> None:
        """Find when the rows of batch `index` are needed next, and make it their next use; called
        for the batches from the last to the first. `last` has the code of the next use of each row,
        uint16 [rows]; `GD_NO_CODE` at first."""
        record = self._records[index]
        count = record.lengths[0]
        codes = _pages(self._empty, whole_pages(CODE_BYTES * count)).view(np.uint16)
        node = record.sample.node
        if record.edge_dtype is not None:
            whole = _pages(self._empty, whole_pages(8 * count))
            self._get(whole, record.offset)
            node = whole.view(np.int64)[:count]
        code = index % lib.GD_NO_CODE
        near, known = record.near, pointer(last)
        error = lib.gd_trace_codes(
            known, self._rows, pointer(node), count, code, pointer(codes), pointer(near)
        )
        check(error, "next uses")
        codes[count:] = 0
        if record.edge_dtype is None:
            record.codes = codes[:count]
            return
        try:
            self._put(codes.view(np.uint8), record.offset + record.code_offset)
        except OSError as error:
            if error.errno not in FULL:
                raise self._failure(error) from error
            record.codes = codes[:count]  # a file system that writes no block in place is full

    def take(self, index: int) -> tuple[Seeds, Sample, NextUses]:
        """Read the sample of batch `index` and give its blocks back; once for each batch."""
        record = self._records.pop(index)
        if record.edge_dtype is None:
            codes = _NO_CODES if record.codes is None else record.codes
            return record.seeds, record.sample, NextUses(codes, record.near)
        memory = _pages(self._empty, record.nbytes)
        self._get(memory, record.offset)
        # Where the file system has no holes, closing gives the blocks back.
        lib.gd_punch_hole(self._file.fd, record.offset, record.nbytes)
        parts, start = [], 0
        for nbytes in record.array_bytes:
            parts.append(memory[start : start + nbytes])
            start += _padded(nbytes)
        node, row, colptr, edge, input_id = parts
        sample = replace(
            record.sample, node=node.view(np.int64), row=row.view(np.int32),
            colptr=colptr.view(np.int32), edge=edge.view(record.edge_dtype),
        )  # fmt: skip
        seed = sample.node[: record.lengths[4]].copy()
        seeds = replace(record.seeds, node=seed, input_id=input_id.view(np.int64).copy())
        codes = memory[record.code_offset :].view(np.uint16)[: record.lengths[0]]
        if record.codes is not None:
            codes = record.codes
        return seeds, sample, NextUses(codes, record.near)

    def close(self) -> None:
        """Free the file and everything in it; idempotent."""
        self._records.clear()
        self._close()

    def _put(self, memory: Bytes, offset: int) -> None:
        self._file.write(memory.data, offset)
        if not self._file.direct:
            self._file.drop(offset, len(memory))

    def _get(self, memory: Bytes, offset: int) -> None:
        try:
            got = self._file.read(memory.data, offset, len(memory))
        except OSError as error:
            raise ReadError(self._folder, offset, error.errno or 0) from error
        if got < len(memory):
            raise StoreError(
                f"a file of sampled batches in {self._folder} was cut short: check the disk"
            )

    def _failure(self, error: OSError) -> StoreError:
        return StoreError(
            f"writing sampled batches in {self._folder} failed ({error.strerror}): check the disk, "
            "or give another folder with folder="
        )


def _pages(empty: Allocate, nbytes: int) -> Bytes:
    """Memory of `nbytes` that starts on a page."""
    memory: Bytes = empty(nbytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + nbytes]


def _padded(nbytes: int) -> int:
    return -(-nbytes // WORD_BYTES) * WORD_BYTES

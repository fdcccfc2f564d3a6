"""`Trace`: the samples of a superbatch on disk, with the next use of each of their rows.

A superbatch is sampled before the first of its batches is extracted (Ginex §4), and its samples
wait in a file. `pipeline/superbatches.py` writes them in any order, makes a pass over them from the
last to the first with `add_next_uses`, and reads each once, in order. A record is

    node (int64), row, colptr (int32), edge (int32 or int64), input_id (int64)   then, on a page,
    code (uint16), the next use of each node

and starts on a page, because it is written and read past the page cache: dirty pages count in a
control group. The file has no name, so that the kernel frees it whatever happens to the process,
and each record's blocks are given back when it was read.

When not to use it: for samples in PyG's own form (`Subgraph`), which hold tensors of many kinds.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.direct_file import PAGE_BYTES, whole_pages
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import check, lib, pointer
from gnndrive.common.records import Codes, Int64Array, NextUses, Sample, Seeds

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_CODES = np.empty(0, np.uint16)
WORD_BYTES = 8  # each array of a record starts on a multiple
CODE_BYTES = 2

Bytes = npt.NDArray[np.uint8]


class TraceFull(Exception):
    """The disk has no room for a record."""


@dataclass(slots=True)
class _Record:
    """Where a sample is, and what of it is in memory.

    Attributes:
        sample: the sample itself, if the disk had no room for it, else one without arrays.
        seeds: likewise.
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

    Args:
        folder: where the file is made.
        rows: how many nodes the graph has.
        empty: allocates the memory of records.

    Attributes:
        nbytes: bytes of the records that were written.

    Raises:
        StoreError: no file can be made there.
    """

    def __init__(self, folder: Path, rows: int, empty: Allocate = np.empty) -> None:
        self._folder, self._rows, self._empty = folder, rows, empty
        self._records: dict[int, _Record] = {}
        self._lock, self.nbytes = threading.Lock(), 0
        try:
            self._fd, self._direct = self._open(folder)
            self._close = weakref.finalize(self, os.close, self._fd)
        except OSError as error:
            raise StoreError(
                f"no file for sampled batches can be made in {folder} ({error.strerror}): give "
                "another folder with folder="
            ) from error

    @staticmethod
    def _open(folder: Path) -> tuple[int, bool]:
        """A new file without a name, and whether it is open past the page cache."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE
        for direct in (os.O_DIRECT, 0):
            try:
                return os.open(folder, flags | direct, 0o600), bool(direct)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR):
                    raise
        fd, path = tempfile.mkstemp(prefix=".superbatch-", dir=folder)  # no unnamed files there
        os.unlink(path)
        return fd, False

    def write(self, seeds: Seeds, sample: Sample) -> bool:
        """Write the sample of a batch; if the disk has no room for it, keep it in memory.

        Returns:
            Whether it was written.

        Raises:
            StoreError: writing failed.
        """
        assert sample.rows is None
        assert sample.replayed is None
        try:
            self._put_record(seeds, sample)
        except TraceFull:
            near = np.zeros(lib.GD_NEAR, np.int64)
            self._records[seeds.index] = _Record(sample, seeds, 0, (len(sample.node),), near)
            return False
        return True

    def _put_record(self, seeds: Seeds, sample: Sample) -> None:
        """Write a sample to the end of the file.

        Raises:
            TraceFull: the disk has no room for it.
            StoreError: writing failed.
        """
        arrays = (sample.node, sample.row, sample.colptr, sample.edge, seeds.input_id)
        record = _Record(
            _without_arrays(sample), _without_ids(seeds), 0, tuple(map(len, arrays)),
            np.zeros(lib.GD_NEAR, np.int64), sample.edge.dtype,
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
                raise TraceFull from None
            raise self._failure(error) from error
        self._records[seeds.index] = record

    def add_next_uses(self, index: int, last: Codes) -> None:
        """Find when the rows of batch `index` are needed next, and make it their next use; called
        for the batches from the last to the first.

        Args:
            index: the batch's.
            last: the code of the next use of each row, uint16 [rows]; `GD_NO_CODE` at first.

        Raises:
            ReadError, StoreError: the file cannot be read or written.
        """
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
        """Read the sample of batch `index` and give its blocks back; once for each batch.

        Raises:
            ReadError: the disk failed.
        """
        record = self._records.pop(index)
        if record.edge_dtype is None:
            codes = _NO_CODES if record.codes is None else record.codes
            return record.seeds, record.sample, NextUses(codes, record.near)
        memory = _pages(self._empty, record.nbytes)
        self._get(memory, record.offset)
        lib.gd_punch_hole(self._fd, record.offset, record.nbytes)  # else closing gives them back
        parts, start = [], 0
        for nbytes in record.array_bytes:
            parts.append(memory[start : start + nbytes])
            start += _padded(nbytes)
        node, row, colptr, edge, input_id = parts
        sample = Sample(
            node.view(np.int64), row.view(np.int32), colptr.view(np.int32),
            edge.view(record.edge_dtype), record.sample.num_sampled_nodes,
            record.sample.num_sampled_edges, record.sample.numbered,
        )  # fmt: skip
        seeds = Seeds(
            index, sample.node[: record.lengths[4]].copy(), input_id.view(np.int64).copy(),
            type=record.seeds.type, dealt=record.seeds.dealt,
        )  # fmt: skip
        codes = memory[record.code_offset :].view(np.uint16)[: record.lengths[0]]
        if record.codes is not None:
            codes = record.codes
        return seeds, sample, NextUses(codes, record.near)

    def close(self) -> None:
        """Free the file and everything in it; idempotent."""
        self._records.clear()
        self._close()

    def _put(self, memory: Bytes, offset: int) -> None:
        done = 0
        while done < len(memory):
            direct = self._direct  # another thread may reopen the file meanwhile
            try:
                done += os.pwrite(self._fd, memory[done:].data, offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not direct:
                    raise
                self._reopen()
        self._drop(offset, len(memory))

    def _get(self, memory: Bytes, offset: int) -> None:
        done = 0
        while done < len(memory):
            direct = self._direct
            try:
                got = os.preadv(self._fd, [memory[done:].data], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and direct:
                    self._reopen()
                    continue
                raise ReadError(self._folder, offset + done, error.errno or 0) from error
            if not got:
                raise StoreError(
                    f"a file of sampled batches in {self._folder} was cut short: check the disk"
                )
            done += got
        self._drop(offset, len(memory))

    def _drop(self, offset: int, length: int) -> None:
        if not self._direct:
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def _reopen(self) -> None:
        """Go on without O_DIRECT: the file system accepts the flag, but refuses the requests."""
        with self._lock:
            if self._direct:
                buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
                os.dup2(buffered, self._fd, inheritable=False)
                os.close(buffered)
                self._direct = False

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


def _without_arrays(sample: Sample) -> Sample:
    """What of a sample is kept in memory."""
    none = np.empty(0, np.int32)
    return Sample(
        np.empty(0, np.int64), none, none, none, sample.num_sampled_nodes, sample.num_sampled_edges,
        sample.numbered,
    )  # fmt: skip


def _without_ids(seeds: Seeds) -> Seeds:
    none = np.empty(0, np.int64)
    return Seeds(seeds.index, none, none, type=seeds.type, dealt=seeds.dealt)

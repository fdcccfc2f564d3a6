"""`RowCache`: the rows of one node type that the present block needs, and how the next ones come.

Each row of a block has a slot. While the batches of a block are computed, rows that had their last
use leave, and rows that the next block needs are read into their slots, in the order of the file:
so the disk reads for the next block while the processor works on this one, in one pass over the
file, without memory of its own. The feature buffer (`gnndrive/buffer/`) does this for batches whose
rows become known as they are sampled. Here a block's rows are known exactly before its first read,
so there is nothing to admit and nothing to evict.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ReadError
from gnndrive.common.loop_thread import in_loop_thread
from gnndrive.common.records import EngineSettings, Int32Array, Landing, TableFile
from gnndrive.common.threads import Outcome
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts import open_array
from gnndrive.disk.layouts.base import Layout, LayoutContext, block_bytes
from gnndrive.inference.blocks import TableChange
from gnndrive.store.format import torch_dtype

PARTS = 16  # the next block's rows are read in about as many parts, each when its slots are free
SLOT_BYTES = 72  # beside a row: its entries in the lists of two blocks, its slot, its read's plan
ROW_BYTES = 9  # for each node, in memory or not: its slot, its last use, a mark

Rows = npt.NDArray[Any]


class RowReads:
    """An engine in a loop thread of its own, which reads rows of files into given memory. No read
    is longer than `block_bytes`; rows may be as long as that permits."""

    def __init__(self, engine: Any, io_depth: int, row_bytes: int, gap: int) -> None:
        self.block_bytes, self._gap = block_bytes(row_bytes), gap
        settings = EngineSettings(io_depth, self.block_bytes)
        self._loop_thread, self._engine = in_loop_thread(lambda: choose(engine).make(settings))
        self._layouts: list[Layout] = []

    def open(self, file: TableFile) -> Layout:
        """Open a file of rows; `close` closes it."""
        gap = min(self._gap, self.block_bytes)
        self._layouts.append(open_array(LayoutContext(file, self.block_bytes, gap)))
        return self._layouts[-1]

    def start(
        self, layout: Layout, rows: Rows, slots: Int32Array, into: torch.Tensor
    ) -> Outcome[None]:
        """Begin to read rows, each at most once [n], into the `slots` [n] of `into` [slots, *row],
        on the host; the result says when all have landed."""
        return self._loop_thread.begin(self._read(layout, rows, slots, into))

    async def _read(
        self, layout: Layout, rows: Rows, slots: Int32Array, into: torch.Tensor
    ) -> None:
        stride = into.stride(0) * into.element_size()
        job = layout.locate(rows, slots, Landing(into.data_ptr(), stride, False, into))
        failed = None
        async for stretch in self._engine.read(job):
            for failure in stretch.failures[:1]:
                failed = failed or failure
        if failed is not None:
            raise ReadError(layout.path, int(failed["offset"]), int(failed["error"]))

    def stats(self) -> dict[str, int]:
        """The engine's counters: at least requests, bytes, retries."""
        return self._engine.stats()

    def close_files(self) -> None:
        """Close the files, none of which is being read."""
        while self._layouts:
            self._layouts.pop().close()

    def close(self) -> None:
        """Wait for reads under way, close the files, end the thread."""
        self._loop_thread.call(self._engine.aclose())
        self.close_files()
        self._loop_thread.close()


class RowCache:
    """The rows of one type in memory, `slots` at once.

    Attributes:
        memory: the rows in memory, [slots, *row].
        slot_of: the slot of each row that is in memory, int32 [rows]; other entries mean nothing.
    """

    def __init__(self, reads: RowReads, file: TableFile, slots: int) -> None:
        self._reads, self._layout, self._wide = reads, reads.open(file), file.row_bytes > 0
        self.memory = torch.empty((slots, *file.row_shape), dtype=torch_dtype(file.dtype))
        self.slot_of = np.empty(file.row_count, np.int32)
        self._free = np.arange(slots, dtype=np.int32)
        self._free_count = slots
        self._coming: Rows = np.empty(0, np.int32)
        self._part, self._done = 1, 0
        self._pending = deque[Outcome[None]]()

    def expect(self, change: TableChange) -> None:
        """Begin to read what the next block needs, into the slots that are free."""
        assert self._done == len(self._coming)
        self._coming, self._done = change.misses, 0
        self._part = -(-len(change.misses) // PARTS)
        self._load()

    def leave(self, rows: Rows) -> None:
        """Free the slots of rows that are not needed any more, and read on."""
        count = self._free_count
        self._free[count : count + len(rows)] = self.slot_of[rows]
        self._free_count += len(rows)
        self._load()

    def settle(self) -> None:
        """Wait until all rows of the next block are in memory; all that leave must have left."""
        assert self._done == len(self._coming), "a block has more rows than slots"
        while self._pending:
            self._pending[0].result()
            self._pending.popleft()

    def drain(self) -> None:
        """Wait until no row is being read, whether or not reads succeeded."""
        while self._pending:
            self._pending[0].wait()
            self._pending.popleft()

    def _load(self) -> None:
        """Read the next rows of the file for which there are slots, if they are a part or all."""
        count = min(self._free_count, len(self._coming) - self._done)
        if count == 0 or (count < self._part and self._done + count < len(self._coming)):
            return
        rows = self._coming[self._done : self._done + count]
        slots = self._free[self._free_count - count : self._free_count].copy()
        self.slot_of[rows] = slots
        self._free_count -= count
        self._done += count
        if self._wide:
            self._pending.append(self._reads.start(self._layout, rows, slots, self.memory))

"""`RowReader`: reads rows of a store's arrays on demand, from any thread or event loop.

It plans reads and carries them out with its own engine in its own loop thread. For lookups outside
of a loader: PyG's FeatureStore interface (`gnndrive/pyg/stores.py`), evaluation, a server. It keeps
no rows between two calls; for an epoch over a graph use a loader, whose feature buffer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ClosedError, ConfigError, ReadError
from gnndrive.common.forks import ProcessGuard, keep_until_exit
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.limits import named_limit
from gnndrive.common.loop_thread import CLOSED, close_from_finalizer, in_loop_thread
from gnndrive.common.records import EngineSettings, Int64Array, Landing
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts import open_array
from gnndrive.disk.layouts.base import Layout, LayoutContext, block_bytes
from gnndrive.store.calibration import checked_gap
from gnndrive.store.format import torch_dtype
from gnndrive.store.reader import Store

RowRequest = tuple[str, Int64Array]


class RowReader:
    """Reads rows of a store's arrays; the thread and the engine start at the first read.

    A copy in another process (by fork or pickle) starts its own.

    Args:
        engine: "uring", "threads" or "auto".
        gap: rows at most this far apart on disk are read as one, as bytes or a size such as "8KB";
            None: as the disk's calibration says.
    """

    def __init__(
        self,
        store: Store,
        engine: str = "auto",
        io_depth: int = 128,
        gap: str | int | None = None,
    ) -> None:
        self._store, self._kind, self._depth, self._gap = store, engine, io_depth, gap
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._starting, self._guard = threading.Lock(), ProcessGuard()
        self._reader: _Reader | None = None

    def read(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """Read rows of several arrays, all at the same time; blocks.

        Args:
            requests: for each array its name, such as "nodes/x", and row numbers, int64 [n],
                duplicates allowed.

        Returns:
            For each request its rows, [n, *row], in the array's dtype.

        Raises:
            ReadError: a row could not be read.
            ConfigError: a row is out of range, or there is no such array.
            ClosedError: this object was closed.
        """
        reader = self._start()
        return reader.loop_thread.call(reader.read([self._checked(*each) for each in requests]))

    async def aread(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """Read rows as `read` does, awaited in the caller's event loop."""
        reader = await asyncio.to_thread(self._start)
        work = reader.read([self._checked(*each) for each in requests])
        return await asyncio.wrap_future(reader.loop_thread.start(work))

    def close(self) -> None:
        """Wait for reads under way and free everything; idempotent."""
        self._reset_after_fork()
        with self._starting:
            self._closed = True
            if self._reader is not None:
                self._reader.close()

    def _checked(self, name: str, rows: Int64Array) -> tuple[str, Int64Array]:
        count = self._store.table(name).row_count
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise ConfigError(
                f"row {rows.min()} … {rows.max()} of {name}, which has {count} rows: "
                f"give row numbers below {count}"
            )
        return name, rows

    def _reset_after_fork(self) -> None:
        """In a forked child: put the parent's reader aside, without freeing it, and start anew."""
        if self._guard.forked:
            if self._reader is not None:
                keep_until_exit(self._reader)
            self._reset()

    def _start(self) -> _Reader:
        self._reset_after_fork()
        with self._starting, deferred_interrupts():
            if self._closed:
                raise ClosedError(CLOSED)
            if self._reader is None:
                with named_limit():
                    self._reader = _Reader(self._store, self._kind, self._depth, self._gap)
                weakref.finalize(self, close_from_finalizer, self._reader.close, self._guard)
            return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_starting": None, "_reader": None}  # a copy makes its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


class _Reader:
    """What a started `RowReader` holds: a loop thread, an engine in it, and open files."""

    def __init__(self, store: Store, kind: str, depth: int, gap: str | int | None) -> None:
        self._store, self._gap = store, gap
        self._layouts: dict[str, Layout] = {}
        arrays = store.info.arrays.values()
        rows = [each.row_bytes for each in arrays if each.name.startswith(("nodes/", "edges/"))]
        self._block = block_bytes(max(rows, default=1))
        settings = EngineSettings(depth, self._block)
        self.loop_thread, self._engine = in_loop_thread(lambda: choose(kind).make(settings))

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            gap = checked_gap(self._gap, self._store, self._block)
            context = LayoutContext(self._store.table(name), self._block, gap, repeats=True)
            with self._store.unchanged():
                self._layouts[name] = open_array(context)
        return self._layouts[name]

    async def read(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """Read all requests at the same time, in the loop thread."""
        return list(await asyncio.gather(*(self._read(*each) for each in requests)))

    async def _read(self, name: str, rows: Int64Array) -> torch.Tensor:
        file, layout = self._store.table(name), self._layout(name)
        landed = torch.empty((len(rows), *file.row_shape), dtype=torch_dtype(file.dtype))
        if len(rows) == 0 or file.row_bytes == 0:
            return landed
        landing = Landing(landed.data_ptr(), file.row_bytes, False, landed)
        job = layout.locate(rows, np.arange(len(rows), dtype=np.int32), landing)
        async for stretch in self._engine.read(job):
            for failure in stretch.failures[:1]:
                raise ReadError(file.path, int(failure["offset"]), int(failure["error"]))
        return landed

    def close(self) -> None:
        """Wait for reads in flight, close the files, end the thread."""

        async def end() -> None:
            await self._engine.aclose()
            for layout in self._layouts.values():
                layout.close()

        with contextlib.suppress(ClosedError):
            self.loop_thread.call(end())
            self.loop_thread.close()

"""Rows of a store's arrays on demand: planned reads through a ring of its own, from any thread or
event loop.

For lookups outside of a loader: PyG's FeatureStore interface, evaluation, a server. Nothing is kept
between two calls; an epoch over a graph wants a loader, whose feature buffer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ClosedError, ConfigError, ReadError
from gnndrive.common.loop_thread import CLOSED, close_from_finalizer, in_loop_thread
from gnndrive.common.records import EngineSettings, Int64Array, Landing
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts import open_array
from gnndrive.disk.layouts.base import Layout, LayoutContext, block_bytes
from gnndrive.store.calibration import checked_gap
from gnndrive.store.format import torch_dtype
from gnndrive.store.reader import Store

RowRequest = tuple[str, Int64Array]
_PARENTS: list[_Parts | None] = []  # kept, for their ends would free what is not there


class RowReader:
    """Reads rows of a store's arrays; threads and rings start at the first read.

    Args:
        store: whose.
        engine: "uring", "threads" or "auto".
        io_depth: reads in flight at once.
        gap: rows at most so far apart on disk are read as one; None: by the disk's calibration.
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
        self._begin()

    def _begin(self) -> None:
        self._starting, self._process = threading.Lock(), os.getpid()
        self._parts: _Parts | None = None

    def read(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """Rows of several arrays, all read at once; blocking.

        Args:
            wanted: an array's name, such as "nodes/x", and row numbers, int64 [n], duplicates
                allowed.

        Returns:
            For each of them its rows, [n, *row].

        Raises:
            ReadError: a row could not be read.
            ConfigError: a row is out of range, or there is no such array.
            ClosedError: this was closed.
        """
        parts = self._start()
        return parts.loop_thread.call(parts.read([self._planned(*each) for each in requests]))

    async def aread(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """The same, awaited in the caller's event loop."""
        parts = await asyncio.to_thread(self._start)
        work = parts.read([self._planned(*each) for each in requests])
        return await asyncio.wrap_future(parts.loop_thread.start(work))

    def close(self) -> None:
        """Wait for reads under way and free everything; idempotent."""
        self._forget_the_parent()
        with self._starting:
            self._closed = True
            if self._parts is not None:
                self._parts.close()

    def _planned(self, name: str, rows: Int64Array) -> tuple[str, Int64Array]:
        count = self._store.table(name).row_count
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise ConfigError(f"row {rows.min()} … {rows.max()} of {name}, which has {count} rows")
        return name, rows

    def _forget_the_parent(self) -> None:
        """In a forked child: threads and rings were the parent's, and are not to be freed here."""
        if self._process != os.getpid():
            _PARENTS.append(self._parts)
            self._begin()

    def _start(self) -> _Parts:
        self._forget_the_parent()
        with self._starting:
            if self._closed:
                raise ClosedError(CLOSED)
            if self._parts is None:
                self._parts = _Parts(self._store, self._kind, self._depth, self._gap)
                weakref.finalize(self, close_from_finalizer, self._parts.close, self._process)
            return self._parts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_starting": None, "_parts": None}  # a copy has its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class _Parts:
    """A service's thread, an engine in it, and open files."""

    def __init__(self, store: Store, kind: str, depth: int, gap: str | int | None) -> None:
        self._store, self._gap = store, gap
        self._layouts: dict[str, Layout] = {}
        rows = [
            each
            for each in store.info.arrays.values()
            if each.name.startswith(("nodes/", "edges/"))
        ]
        widest = max((each.row_bytes for each in rows), default=1)
        self._block = block_bytes(widest)
        settings = EngineSettings(depth, self._block)
        self.loop_thread, self._engine = in_loop_thread(lambda: choose(kind).make(settings))

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            gap = checked_gap(self._gap, self._store, self._block)
            context = LayoutContext(self._store.table(name), self._block, gap, repeats=True)
            self._layouts[name] = open_array(context)
        return self._layouts[name]

    async def read(self, requests: Sequence[RowRequest]) -> list[torch.Tensor]:
        """In the service's loop."""
        return list(await asyncio.gather(*(self._read(*each) for each in requests)))

    async def _read(self, name: str, rows: Int64Array) -> torch.Tensor:
        file, layout = self._store.table(name), self._layout(name)
        landed = torch.empty((len(rows), *file.row_shape), dtype=torch_dtype(file.dtype))
        if len(rows) == 0 or file.row_bytes == 0:
            return landed
        landing = Landing(landed.data_ptr(), file.row_bytes, False, landed)
        reads = layout.locate(rows, np.arange(len(rows), dtype=np.int32), landing)
        async for stretch in self._engine.read(reads):
            for failure in stretch.failures[:1]:
                raise ReadError(file.path, int(failure["offset"]), int(failure["error"]))
        return landed

    def close(self) -> None:
        """Wait for the kernel, close files, end the thread."""

        async def end() -> None:
            await self._engine.aclose()
            for layout in self._layouts.values():
                layout.close()

        with contextlib.suppress(ClosedError):
            self.loop_thread.call(end())
            self.loop_thread.close()

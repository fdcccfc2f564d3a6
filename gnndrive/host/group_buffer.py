"""`GroupBuffer`: a feature buffer whose slots lie in shared memory, and what reads its rows.

The service opens one for each group; it is what `loader/runtime.py` and `loader/buffer_pool.py`
make for a loader without a service.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.base import PolicyContext
from gnndrive.buffer.policy_classes import policy_classes
from gnndrive.buffer.row_table import RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import EngineSettings
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.disk.engines import choose, make_engine
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.disk.tiers import make_chain
from gnndrive.disk.tiers.base import TierContext
from gnndrive.host.hello import BufferSettings, Hello
from gnndrive.host.messages import ProtocolError
from gnndrive.host.window_graphs import LIVE_MAX, window_of
from gnndrive.sampling.load_window import load_window, window_bytes_max
from gnndrive.sampling.rounds import StopToken
from gnndrive.store.feature_tables import FeatureTable, feature_tables
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store
from gnndrive.store.row_classes import Classes
from gnndrive.store.striped.striped import Stripes, stripes_of


def check_share(store: Store, hello: Hello) -> None:
    """Check what a loader says of its feature buffer: its tables are those of the store, and its
    share is not less than its slots and its staging. The store has the newest added arrays then.
    StoreError: a table was replaced since the loader's process opened the store, or the record of
    an added array is damaged."""
    settings = hello.buffer
    if settings is None:
        return
    own = {name for name, array in store.info.arrays.items() if not array.folder}
    if not own.issuperset(settings.tables):
        store.find_added()  # `gnndrive.infer` may have added or replaced one meanwhile
    known = {table.name: table for table in feature_tables(store)}
    least, source = settings.staging_bytes, partitioned_of(store, settings)
    told = zip(settings.tables, settings.slots, settings.files, settings.row_bytes, strict=True)
    for name, slots, file, row_bytes in told:
        table = known.get(name)
        if table is None or slots > (table.file if source is None else source.x).row_count:
            raise ProtocolError(f"the store has no table {name!r}, or not {slots:,} rows of it")
        if (file, row_bytes) != (table.file_in(store.path), table.file.row_bytes):
            raise StoreError(
                f"{name} of {store.path} was replaced since this process opened the store: open it "
                "again, and make a new loader"
            )
        least += slots * row_bytes
    if hello.share < least:
        raise ProtocolError(f"a buffer of {least:,} bytes has a share of {hello.share:,}")


def partitioned_of(store: Store, settings: BufferSettings) -> Partitioned | None:
    """The partitioned folder whose rows are read, opened; None: the store's rows are. ConfigError
    if there is none, StoreError if it is damaged, or of another store."""
    return open_partitioned(Path(settings.folder), store) if settings.folder else None


def table_classes(store: Store, settings: BufferSettings) -> dict[str, Classes]:
    """The classes of the rows that the policy ranks, by the tables' names. The first time for a
    store this reads its graph, so the event loop must not call it."""
    slots = dict(zip(settings.tables, settings.slots, strict=True))
    leaving = [
        table for table in feature_tables(store)
        if slots.get(table.name, table.file.row_count) < table.file.row_count
    ]  # fmt: skip
    return policy_classes(settings.policy, store, leaving)


class GroupBuffer:
    """A group's feature buffer and what it needs; `open` makes it, in the service's event loop.
    `slots` has the shared memory of each table's slots, in the order of the tables, `graphs` the
    places for graphs of windows, if its rows come from a partitioned folder.

    Raises:
        ProtocolError: the store has no such table for a feature buffer.
        ConfigError: no plug-in has such a name, or there is not enough memory.
        StoreError: the store was replaced, or a file cannot be opened.
    """

    def __init__(
        self, store: Store, settings: BufferSettings, engine: Engine,
        classes: Mapping[str, Classes], stripes: Stripes | None = None,
    ) -> None:  # fmt: skip
        self._stripes = {} if stripes is None else stripes.tables
        self._source = partitioned_of(store, settings)
        self.slots: list[SharedMemory] = []
        self.graphs: list[SharedMemory] = []
        self._store = store
        self._classes = classes
        self._pool, self._layouts, self._engine = ArrayPool(), list[Layout](), engine
        with contextlib.ExitStack() as undo:
            undo.callback(self._pool.close)
            undo.callback(self._close_shared)
            self._device = self._open_device(settings.device)
            undo.callback(self._device.close)
            self.buffer = FeatureBuffer(self._make_tables(store, settings, undo))
            if self._source is not None:
                nbytes = window_bytes_max(self._source)
                for _ in range(LIVE_MAX):
                    self.graphs.append(SharedMemory.create(nbytes, "window", sparse=True))
            undo.pop_all()

    @classmethod
    async def open(
        cls, store: Store, settings: BufferSettings, classes: Mapping[str, Classes]
    ) -> GroupBuffer:
        """Make one, with an engine of its own."""
        staging_bytes = settings.staging_bytes
        if staging_bytes > (available := available_memory()):
            raise MemoryError(
                f"no memory for {format_size(staging_bytes)} of staging ({format_size(available)} "
                "are available): give less in tuning=Tuning(io_depth=…)"
            )
        stripes = stripes_of(store) if settings.stripes else None
        folders = () if stripes is None else stripes.folders
        own = EngineSettings(settings.io_depth, settings.block_bytes)
        engine = make_engine(choose(settings.engine), own, store.path, folders)
        try:
            return cls(store, settings, engine, classes, stripes)
        except BaseException:
            await engine.aclose()
            raise

    def _open_device(self, name: str) -> Device:
        kind: type[Device] = find("devices", name)
        if not kind.shares_slots:
            raise ProtocolError(f"slots of the device {name!r} cannot be shared")
        return kind.make(DeviceContext(self._pool.empty, map=self._new_slots))

    def _make_tables(
        self, store: Store, settings: BufferSettings, undo: contextlib.ExitStack
    ) -> dict[str, RowTable]:
        known = {table.name: table for table in feature_tables(store)}
        tables: dict[str, RowTable] = {}
        unchanged = store if self._source is None else self._source
        with unchanged.unchanged():
            for number, name in enumerate(settings.tables):
                if name not in known or name in tables:
                    raise ProtocolError(f"the store has no table {name!r}, or it is asked twice")
                layout = self._open_layout(store, known[name], settings)
                undo.callback(layout.close)
                tables[name] = self._make_table(store, known[name], layout, settings, number)
                undo.callback(tables[name].memory.close)
        return tables

    def _open_layout(self, store: Store, table: FeatureTable, settings: BufferSettings) -> Layout:
        kind: type[Layout] = find("layouts", settings.layout)
        context = LayoutContext(
            table.file, settings.block_bytes, settings.gap_bytes, store=store,
            derived=None if self._source is None else self._source.file(table.name),
            stripes=self._stripes.get(table.name),
        )  # fmt: skip
        layout = kind.make(context)
        self._layouts.append(layout)
        return layout

    def _make_table(
        self, store: Store, table: FeatureTable, layout: Layout, settings: BufferSettings,
        number: int,
    ) -> SlotTable:  # fmt: skip
        file = table.file if self._source is None else self._source.file(table.name)
        slots = max(settings.slots[number], 1)
        context = TierContext(layout, self._engine, None, file.row_count, file.row_bytes)
        tier, policy = make_chain(settings.tiers, context), None
        if settings.policy is not None:
            kind = find("policies", settings.policy)
            batch_rows = settings.batch_rows_max[number]
            policy = kind.make(PolicyContext(table.name, file.row_count, slots, store, batch_rows))
        memory = self._device.allocate(slots, file.row_bytes)
        try:
            return SlotTable(
                file.row_count, slots, file.row_bytes, memory, tier, policy,
                settings.batch_rows_max[number], self._pool.empty, self._classes.get(table.name),
            )  # fmt: skip
        except BaseException:
            memory.close()
            raise

    def _new_slots(self, nbytes: int) -> mmap.mmap:
        self.slots.append(SharedMemory.create(nbytes, "slots", huge=True))
        return self.slots[-1].map

    def _close_shared(self) -> None:
        for memory in (*self.slots, *self.graphs):
            memory.close()

    async def load_graph(self, place: int, rows: Sequence[range], stop: StopToken) -> Sequence[int]:
        """Load the graph of the window with these rows into a place, in a thread; returns its
        sizes. Raises as `load_window` and `window_of`."""
        return await asyncio.to_thread(self._load_graph, place, rows, stop)

    def _load_graph(self, place: int, rows: Sequence[range], stop: StopToken) -> Sequence[int]:
        assert self._source is not None
        partitions, static = window_of(self._source, rows)
        pointers, memory = self._store.edges().index_pointers, self.graphs[place].array
        return load_window(self._source, pointers, partitions, static, stop, memory).sizes

    def counters(self) -> dict[str, int]:
        """What the slot tables and the engine have counted; see `arena.COUNTERS`."""
        return {**self.buffer.stats(), **self._engine.stats()}

    async def aclose(self) -> None:
        """Free everything, in the order of `Runtime.close` (rule 13); no batch may be admitted."""
        await self.buffer.drain()
        await self.buffer.close_tiers()
        await self._engine.aclose()
        # The kernel takes a second to free a few gigabytes, and other groups must not wait for it.
        # The thread ends here, because it would refer to this object until its next work.
        with ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, self._free)

    def _free(self) -> None:
        self.buffer.verify()
        self.buffer.free_slots()
        for layout in self._layouts:
            layout.close()
        self._device.close()
        self._close_shared()
        self._pool.close()

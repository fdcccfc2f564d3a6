"""`HostBuffers`: lends a runtime's epochs the feature buffer of the host service.

`Runtime` has it in place of a `BufferPool` if a service has the loader's buffer. It attaches
the memory that came with the service's welcome and frees it at the end.
"""

from __future__ import annotations

import asyncio
import mmap
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.plugins import find
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.host.arena import Arena
from gnndrive.host.connection import Connection
from gnndrive.host.hello import Hello
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.leases import BatchBuffer
from gnndrive.store.reader import Store

ANSWER_S = 1.0  # how long the service is asked why a batch is late


def _map_of(memory: SharedMemory, nbytes: int) -> mmap.mmap:
    return memory.map


class HostBuffers:
    """The service's feature buffer, for one epoch at a time; see `loader.buffers.Buffers`.

    Args:
        store: has the tables.
        settings: the runtime's settings.
        hello: what the service was asked for, a feature buffer in any case.
        connection: to the service; this object closes it.
        empty: allocates the tensors that rows are gathered into.

    Attributes:
        settings: the runtime's settings, with the service's numbers of slots.
        facts: see `Buffers.facts`.

    Raises:
        ConfigError: the memory cannot be mapped.
        HostServiceError: the service sent less than it should.
    """

    def __init__(
        self, store: Store, settings: RuntimeSettings, hello: Hello, connection: Connection,
        empty: Allocate,
    ) -> None:  # fmt: skip
        self._connection, self._lent, self._rank = connection, False, hello.rank
        self.facts = {"engine": "host service"}
        assert hello.buffer is not None
        plans = [
            replace(plan, slots=slots)
            for plan, slots in zip(settings.plan.tables, connection.welcome.slots, strict=True)
        ]
        self.settings = replace(settings, plan=replace(settings.plan, tables=tuple(plans)))
        with ExitStack() as undo:
            tables: dict[str, RemoteTable] = {}
            kind: type[Device] = find("devices", settings.request.device[0])
            for plan in plans:
                slots, row_bytes = max(plan.slots, 1), plan.row_bytes
                shared_slots = SharedMemory.attach(
                    connection.take_fd(), slots * row_bytes, huge=True
                )
                undo.callback(shared_slots.close)
                context = DeviceContext(empty, map=partial(_map_of, shared_slots))
                memory = kind.make(context).allocate(slots, row_bytes)
                undo.callback(memory.close)
                tables[plan.name] = RemoteTable(row_bytes, memory)
            shape = hello.buffer.arena_shape(store)
            arena = SharedMemory.attach(connection.take_fd(), shape.nbytes, writable=True)
            undo.callback(arena.close)
            self._buffer = RemoteBuffer(tables, Arena(shape, arena.array), connection.send)
            self._memory = undo.pop_all()

    async def start(self) -> None:
        """From now on the loop thread gets the service's messages."""
        await self._connection.start(self._buffer.receive, self._buffer.fail)

    def take(self) -> BatchBuffer:
        """See `Buffers.take`.

        Raises:
            ConfigError: another iterator has it.
        """
        if self._lent:
            raise ConfigError(
                "the host service has one feature buffer for this loader, which another iterator "
                "uses: close that one first, or give the loader host_service=False"
            )
        self._lent = True
        self._buffer.begin_epoch()
        return self._buffer

    def give(self, buffer: BatchBuffer) -> None:
        """See `Buffers.give`; the other ranks do not wait for this one any more."""
        assert buffer is self._buffer
        self._lent = False
        self._buffer.end_epoch()

    async def grow(self) -> None:
        """See `Buffers.grow`; a buffer in host memory has no warm-up."""

    async def replace_plan(self, settings: RuntimeSettings) -> None:
        """See `Buffers.replace_plan`; the plan of a shared buffer never changes."""
        raise NotImplementedError("a shared feature buffer has one plan")

    def stats(self) -> Counter[str]:
        """See `Buffers.stats`; of all ranks of this host together, with requests and bytes."""
        return self._buffer.stats()

    async def late_reason(self) -> str:
        """See `Buffers.late_reason`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                rank = await self._buffer.awaited()
        except TimeoutError:
            return "the host service does not answer; it may be stopped, or short of memory"
        except GNNDriveError:
            return ""
        if rank in (-1, self._rank):
            return ""
        return (
            f"rank {rank} has not taken its turn; it may be stopped or slow, or take batches of "
            "another loader, which all ranks have to do in the same order"
        )

    def retire(self) -> None:
        """See `Buffers.retire`; the service is told at the end of the epoch."""

    async def drain(self) -> None:
        """See `Buffers.drain`; the service waits for its reads."""

    async def closed(self) -> None:
        """See `Buffers.closed`."""

    async def close_tiers(self) -> None:
        """See `Buffers.close_tiers`; they are the service's."""

    async def close(self) -> None:
        """See `Buffers.close`; the rank leaves its group."""
        assert not self._lent, "its memory is in use"
        await self._connection.aclose()
        self._buffer.close()
        self._memory.close()

"""`HostService`: what a loader's ranks of one host share, and how they come together for it.

At its first epoch, `StoreLoader` has all ranks tell each other where they run and what they need.
The first rank of each host starts a service (`host/`), and all ranks of that host connect to it.
Whatever goes wrong on one rank is an error on all of them, because the others would wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import name_of
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.connection import Connection
from gnndrive.host.hello import Hello
from gnndrive.host.start import host_identity, start_service
from gnndrive.loader.buffers import Buffers
from gnndrive.loader.host_buffers import HostBuffers
from gnndrive.loader.ranks import Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import is_known
from gnndrive.plan.request import batch_entries_max
from gnndrive.pyg.shared_store import AttachedArrays, attach
from gnndrive.store.reader import Store

Result = TypeVar("Result")
SPARE_PLACES = 4  # batches that are being gathered, or that the service gives back


class HostService:
    """A rank's part of what the ranks of its host share.

    Args:
        name: the service's.
        hello: what this rank asks for.
        store: the store; it uses the shared index pointers from now on.

    Attributes:
        graph: the graph's arrays that the ranks share; None: none.

    Raises:
        ConfigError, StoreError: what the service shares cannot be used.
        HostServiceError: it has ended.
    """

    def __init__(self, name: str, hello: Hello, store: Store) -> None:
        self._connection, self._hello, self._store = Connection(name, hello), hello, store
        self.graph: AttachedArrays | None = None
        try:
            welcome = self._connection.welcome
            if hello.topology:
                fds = [self._connection.take_fd() for _ in range(welcome.memories)]
                self.graph = attach(store, welcome.graph, fds)
        except BaseException:
            self.close()
            raise

    @property
    def has_buffer(self) -> bool:
        """Whether the ranks share a feature buffer."""
        return self._hello.buffer is not None

    async def buffers(self, settings: RuntimeSettings, empty: Allocate) -> Buffers:
        """Attach the shared feature buffer, in the loop thread."""
        assert self._hello.buffer is not None
        buffers = HostBuffers(self._store, settings, self._hello.buffer, self._connection, empty)
        await buffers.start()
        return buffers

    def close(self) -> None:
        """Close the connection at once; the shared buffer closes it before, with a goodbye."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Told:
    """What ranks tell each other.

    Attributes:
        host: where the rank runs, see `host_identity`.
        topology, buffer: see `Hello`.
    """

    host: str = ""
    topology: str = ""
    buffer: Mapping[str, Any] | None = None

    @property
    def needs(self) -> dict[str, Any]:
        """What has to be the same on all ranks, by what it is called in an error."""
        buffer = {name: value for name, value in (self.buffer or {}).items() if name != "slots"}
        return {"the topology": self.topology, **buffer}


def join_host_service(
    ranks: Ranks, store: Store, make_settings: Callable[[], RuntimeSettings]
) -> tuple[RuntimeSettings, HostService | None]:
    """Make a loader's settings, and have its ranks of this host share what they can.

    A collective call: each rank that the loader deals to has to make it.

    Args:
        ranks: which rank this is.
        store: what the loader loads from.
        make_settings: makes the settings; may raise.

    Raises:
        ConfigError: a rank cannot start, or the ranks differ in what they need.
        HostServiceError: the service has ended.
    """
    settings, told, buffer, topology = None, _Told(), None, ""
    error: Exception | None = None
    try:
        settings = make_settings()
        buffer, topology = buffer_settings(settings), shared_topology(settings)
        told = _Told(host_identity(), topology, None if buffer is None else buffer.to_json())
    except Exception as caught:
        error = caught
    everyone = _all_or_none(ranks, told, error)
    assert settings is not None
    check_same([each.needs for each in everyone])
    if buffer is None and not topology:
        return settings, None
    local = tuple(rank for rank, each in enumerate(everyone) if each.host == told.host)
    name = ""
    if len(local) > 1 and ranks.rank == local[0]:
        try:
            name = start_service(store.path)
        except Exception as caught:
            error = caught
    names = _all_or_none(ranks, name, error)
    name = names[local[0]]
    if not name:
        return settings, None
    program = f"{os.path.basename(sys.argv[0]) or 'python'}, process {os.getpid()}"
    hello = Hello(store.identity, name, ranks.rank, local, buffer, topology, program)
    return settings, HostService(name, hello, store)


def _all_or_none(ranks: Ranks, told: Result, error: Exception | None) -> list[Result]:
    """Tell all ranks something, or that this one has failed.

    Raises:
        Exception: `error`.
        ConfigError: another rank has failed.
    """
    everyone = ranks.exchange((told, None if error is None else str(error)))
    if error is not None:
        raise error
    failed = {rank: why for rank, (_, why) in enumerate(everyone) if why is not None}
    if failed:
        first = min(failed)
        raise ConfigError(f"rank {first} cannot start: {failed[first]}")
    return [told for told, _ in everyone]


def buffer_settings(settings: RuntimeSettings) -> BufferSettings | None:
    """What a loader needs of a shared feature buffer; None: its ranks share none."""
    request, stages = settings.request, settings.stages
    if not request.shared:
        return None
    entries = batch_entries_max(request)
    return BufferSettings(
        tables=tuple(table.name for table in settings.tables),
        slots=tuple(plan.slots for plan in settings.plan.tables),
        batch_rows_max=tuple(plan.batch_rows_max for plan in settings.plan.tables),
        entries_max=tuple(entries[table.name] for table in settings.tables),
        places=stages.extracting_queue + stages.training_queue + SPARE_PLACES,
        device=name_of(settings.device[0]),
        layout=name_of(settings.strategy.layout),
        policy=None if settings.policy is None else name_of(settings.policy),
        tiers=tuple(map(name_of, settings.strategy.tiers)),
        engine=name_of(settings.engine),
        io_depth=settings.engine_settings.depth,
        block_bytes=settings.engine_settings.block_bytes,
        gap_bytes=settings.gap_bytes_max,
        extractors=stages.extractors,
        sweep=stages.sweep,
    )


def shared_topology(settings: RuntimeSettings) -> str:
    """The topology whose arrays a loader's ranks share, by its name; "": they share none."""
    topology = settings.plan.topology
    if topology is None or not settings.request.shared_graph:
        return ""
    return topology.name if is_known("topologies", topology.kind) else ""

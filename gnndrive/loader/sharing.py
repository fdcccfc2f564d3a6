"""What a host service has for a loader, and how the loader uses it.

The service is one that the ranks of a host start together, or one that the user has started for
several loaders (`gnndrive serve`). It can have the graph for all of them (index pointers, labels, a
resident adjacency), and a feature buffer that the ranks of one loader share, if that lies in host
memory, batches come in order, and ranks need none of their own. `what_service_has` decides this
before `Assembly` plans.

At a loader's first epoch all ranks tell each other where they run and what they need. The first
rank of each host starts a service, unless the store was opened through one, and all ranks of that
host connect to it. Whatever goes wrong on one rank is an error on all of them, because the others
would wait for it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, GNNDriveError, HostServiceError
from gnndrive.common.plugins import find, name_of, names
from gnndrive.common.records import NO_TOPOLOGY
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.host.arena import Arena
from gnndrive.host.connect import service_of
from gnndrive.host.connection import Connection, ask
from gnndrive.host.hello import BufferSettings, Hello
from gnndrive.host.names import is_named
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable
from gnndrive.host.start import SEPARATE, Listener, host_identity
from gnndrive.loader.buffer_pool import Buffers
from gnndrive.loader.ranks import Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.epoch import BatchBuffer
from gnndrive.plan.plan import Served
from gnndrive.plan.request import batch_entries_max
from gnndrive.pyg.shared_store import AttachedArrays, attach
from gnndrive.store.reader import Store
from gnndrive.strategies.base import Scheme, Strategy

GIVEN = (
    "host_service", "strategy", "policy", "device", "attrs", "in_order", "engine", "io_depth",
    "gap", "extractors",
)  # fmt: skip
"""The loader's arguments that decide what its ranks share, beside `memory=` and `buffer=`."""

ONE = (
    "the ranks share one feature buffer for this loader, which another iterator uses: close that "
    "one first, or have ranks share none with host_service=False and exchange=False"
)
PLAIN = (str, int, type(None))  # the others may not be picklable
CHOSEN = ("slots", "batch_rows_max", "places", "sweep", "policy")  # by the plan
SPARE_PLACES = 4  # batches that are being gathered, or that the service gives back
ANSWER_S = 1.0  # how long the service is asked why a batch is late


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whether a host service has the feature buffer of a loader, and its graph; and what a service
    that the user has started has left (None: the loader uses none)."""

    buffer: bool = False
    graph: bool = False
    served: Served | None = None


def what_service_has(
    store: Store, ranks: Ranks, wanted: bool | str, strategy: Strategy, scheme: Scheme,
    topologies: Sequence[Any], engine: Any, policy: Any, device: tuple[Any, Any], in_order: bool,
) -> Sharing:  # fmt: skip
    """Decide what a host service has for a loader, or for its ranks of this host; the plan may
    choose among `topologies`. ConfigError if a service is `wanted` (`host_service=True`) and cannot
    have anything, HostServiceError if the store's has ended, or does not answer."""
    service, why_not = service_of(store), ""
    if service is not None and ranks.group is None and ranks.on_host > 1:
        why_not = "a sampler deals batches to several ranks, and ranks= is not given"
    elif service is None and (ranks.group is None or ranks.on_host < 2):
        why_not = "there is one rank on this host, or ranks= is not given"
    else:
        why_not = scheme.not_shared
    if why_not and wanted is True:
        raise ConfigError(
            f"host_service=True cannot be had, because {why_not}: give host_service='auto'"
        )
    if why_not or wanted is False:
        return Sharing()
    parts = [("layouts", strategy.layout), ("policies", policy), ("devices", device[0])]
    parts += [("tiers", tier) for tier in strategy.tiers]
    parts += [] if engine == "auto" else [("engines", engine)]
    known = all(_is_known(kind, part) for kind, part in parts)
    shares = not scheme.own_buffer and find("devices", device[0]).shares_slots
    buffer = known and in_order and shares
    graph = all(_is_known("topologies", each) for each in topologies)
    if service is None or not (buffer or graph):
        return Sharing(buffer, graph)
    report = ask(service)
    return Sharing(buffer, graph, Served(report.left, frozenset(report.graphs)))


def _is_known(kind: str, plugin: Any) -> bool:
    """Whether a plug-in is gnndrive's, so that another process finds it by its name."""
    name = name_of(plugin)
    return name in names(kind) and find(kind, name) is find(kind, plugin)


@dataclass(frozen=True, slots=True)
class _Told:
    """What ranks tell each other: where they run (see `host_identity`), the values of `GIVEN`, the
    arguments that are for all ranks of a host, and what they ask for (see `Hello`)."""

    host: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    topology: str = ""
    buffer: Mapping[str, Any] | None = None

    @property
    def needs(self) -> dict[str, Any]:
        """What has to be the same on all ranks of a host, by what it is called in an error. What a
        plan has chosen may differ, as free memory does; the first rank's choice counts."""
        buffer = {name: value for name, value in (self.buffer or {}).items() if name not in CHOSEN}
        shared = {"whether the ranks of a host share a buffer": self.buffer is not None}
        return {**shared, **self.arguments, **buffer}


def _check_needs(told: Sequence[_Told], ranks: Sequence[int]) -> None:
    """Raise ConfigError unless the ranks of a host need the same. The message names the arguments
    that differ, or what follows from others, such as the memory that is free."""
    if any(each.needs != told[0].needs for each in told):
        check_same([each.given for each in told], ranks)
        check_same([each.needs for each in told], ranks)


def join_host_service(
    ranks: Ranks, store: Store, own: Mapping[str, Any],
    make_settings: Callable[[], RuntimeSettings],
) -> tuple[RuntimeSettings, HostService | None]:  # fmt: skip
    """Make a loader's settings, and have its ranks of this host join a service, if they use one.

    A collective call: each rank that the loader deals to has to make it. Of the loader's `own`
    arguments it takes those of `GIVEN`; `make_settings` may raise. ConfigError if a rank cannot
    start, or the ranks differ in what they need; see `what_service_has`.
    """
    settings, told, buffer, topology = None, _Told(), None, ""
    error: Exception | None = None
    try:
        settings = make_settings()
        request = settings.request
        exchange = request.exchange
        arguments = {
            "memory": request.memory, "buffer": request.buffer, "exchange": own.get("exchange"),
            "the rows that are exchanged": [] if exchange is None else list(exchange.owners),
        }  # fmt: skip
        buffer = buffer_settings(store, settings)
        topology = settings.plan.topology.name if request.shared_graph else ""
        if topology == NO_TOPOLOGY:  # index pointers and labels alone
            topology = name_of(settings.strategy.topologies[0])
        needed = None if buffer is None else buffer.to_json()
        values = {name: own.get(name) for name in GIVEN}
        given = {
            name: value if isinstance(value, PLAIN) else repr(value)
            for name, value in values.items()
        }
        told = _Told(host_identity(), given, arguments, topology, needed)
    except Exception as caught:
        error = caught
    everyone = ranks.all_or_none("starting a loader", told, error)
    assert settings is not None
    check_same([each.arguments for each in everyone])
    hosts: dict[str, list[int]] = {}
    for rank, each in enumerate(everyone):
        hosts.setdefault(each.host, []).append(rank)
    for local in hosts.values():  # all hosts, because what follows needs the ranks of all of them
        _check_needs([everyone[rank] for rank in local], local)
    local = hosts[told.host]
    if all(each.buffer is None and not each.topology for each in everyone):
        return settings, None
    if buffer is not None:
        buffer = BufferSettings.from_json(everyone[local[0]].buffer)
    rank = 0 if ranks.group is None else ranks.rank
    program = os.path.basename(next(iter(sys.argv), "")) or "python"
    share = settings.plan.share_bytes
    hello = Hello(store.identity, "", rank, tuple(local), buffer, topology, share, program)
    return settings, _come_together(ranks, store, hello)


def _come_together(ranks: Ranks, store: Store, hello: Hello) -> HostService | None:
    """Connect to the service that the store was opened through, or to one that is started on each
    host with several ranks. The first rank of a host is its client before it starts it, so that the
    service ends if that rank dies. No rank goes on before all are welcome."""
    address, group, first = service_of(store) or "", secrets.token_hex(16), hello.ranks[0]
    error: Exception | None = None
    connection: Connection | None = None
    service: HostService | None = None
    with ExitStack() as undo:

        def connect() -> Connection:
            made = Connection(address, replace(hello, group=group))
            undo.callback(made.close)
            return made

        try:
            if hello.rank == first and address:
                connection = connect()
            elif hello.rank == first and len(hello.ranks) > 1:
                with Listener() as listener:
                    address = listener.address
                    connection = connect()
                    listener.start_service(store.path)
        except Exception as caught:
            error = _why_not(caught, address)
        address, group = ranks.all_or_none("starting a service", [address, group], error)[first]
        try:
            if address:
                service = HostService(connection or connect(), hello, store)
        except Exception as caught:
            error = _why_not(caught, address)
        ranks.all_or_none("joining a service", None, error)
        undo.pop_all()
    return service


def _why_not(error: Exception, address: str) -> Exception:
    """The error for a rank that cannot share, with the remedy."""
    if isinstance(error, HostServiceError) and is_named(address):
        return error
    if isinstance(error, HostServiceError | MemoryError):
        return ConfigError(f"the ranks of this host cannot share: {error}; {SEPARATE}")
    return error


def buffer_settings(store: Store, settings: RuntimeSettings) -> BufferSettings | None:
    """What a loader needs of a feature buffer in a service; None: it has none there."""
    request, stages = settings.request, settings.stages
    if not request.shared:
        return None
    source = settings.scheme.source
    return BufferSettings(
        tables=tuple(table.name for table in request.tables),
        files=tuple(table.file_in(store.path) for table in request.tables),
        row_bytes=tuple(table.file.row_bytes for table in request.tables),
        slots=tuple(plan.slots for plan in settings.plan.tables),
        batch_rows_max=tuple(plan.batch_rows_max for plan in settings.plan.tables),
        entries_max=batch_entries_max(request, request.bounds),
        places=stages.extracting_queue + stages.training_queue + SPARE_PLACES,
        device=name_of(request.device[0]),
        layout=name_of(settings.strategy.layout),
        policy=None if settings.policy is None else name_of(settings.policy),
        tiers=tuple(map(name_of, settings.strategy.tiers)),
        engine=name_of(settings.engine),
        io_depth=settings.engine_settings.depth,
        block_bytes=settings.engine_settings.block_bytes,
        gap_bytes=request.disk.gap_bytes,
        stripes=0 if request.stripes is None else request.stripes.disks,
        extractors=stages.extractors,
        sweep=stages.sweep,
        folder="" if source is None else str(source.path.resolve()),
    )


class HostService:
    """A rank's part of what the ranks of its host share; waits for the service's welcome. It closes
    the connection, also if it cannot be made. The store uses the shared index pointers from now on.

    Attributes:
        graph: the graph's arrays that the service shares; None: none.
    """

    def __init__(self, connection: Connection, hello: Hello, store: Store) -> None:
        self._connection, self._hello, self._store = connection, hello, store
        self.graph: AttachedArrays | None = None
        self.has_buffer = hello.buffer is not None
        try:
            connection.wait()
            welcome = connection.welcome
            if hello.topology:
                fds = [self._connection.take_fd() for _ in range(welcome.memories)]
                self.graph = attach(store, welcome.graph, fds)
        except BaseException:
            self.close()
            raise

    async def buffers(self, settings: RuntimeSettings, empty: Allocate) -> Buffers:
        """Attach the shared buffer in the loop thread, which then gets the service's messages."""
        buffers = HostBuffers(self._store, settings, self._hello, self._connection, empty)
        await self._connection.start(buffers.buffer.receive, buffers.buffer.fail)
        return buffers

    def close(self) -> None:
        """Close the connection at once, and use the graph no more; the shared buffer closes it
        before, with a goodbye."""
        self._connection.close()
        self.graph = None


class RankBuffers(Buffers):
    """A feature buffer that ranks share, for one epoch at a time; `owner` decides about turns."""

    buffer: RemoteBuffer | ExchangedBuffer
    owner: str

    def __init__(self, rank: int) -> None:
        self._lent, self._rank = False, rank

    def take(self) -> BatchBuffer:
        """See `Buffers.take`."""
        if self._lent:
            raise ConfigError(ONE)
        self._lent = True
        self.buffer.begin_epoch()
        return self.buffer

    def give(self, buffer: BatchBuffer) -> None:
        """See `Buffers.give`; the other ranks do not wait for this one any more."""
        assert buffer is self.buffer
        self._lent = False
        self.buffer.end_epoch()

    async def late_reason(self) -> str:
        """See `Buffers.late_reason`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                rank = await self._awaited()
        except TimeoutError:
            return f"{self.owner} not answer; it may be stopped, or short of memory"
        except GNNDriveError as error:
            return str(error)
        if rank in (-1, self._rank):
            return ""
        return (
            f"rank {rank} has not taken its turn; it may be stopped or slow, or take batches of "
            "another loader, which all ranks have to do in the same order"
        )

    async def _awaited(self) -> int:
        return await self.buffer.awaited()


class HostBuffers(RankBuffers):
    """The service's feature buffer, in the memory that came with the service's welcome. The
    settings get the service's numbers of slots. Closes the connection."""

    buffer: RemoteBuffer
    owner = "the host service does"

    def __init__(
        self, store: Store, settings: RuntimeSettings, hello: Hello, connection: Connection,
        empty: Allocate,
    ) -> None:  # fmt: skip
        super().__init__(hello.rank)
        self._connection = connection
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
            self.buffer = RemoteBuffer(tables, Arena(shape, arena.array), connection.send)
            self.buffer.windows.places = list(self._attach_places(undo))
            self._memory = undo.pop_all()

    def _attach_places(self, undo: ExitStack) -> Iterator[npt.NDArray[np.uint8]]:
        """The memories of the graphs of windows: the descriptors that are left."""
        while self._connection.fds:
            fd = self._connection.take_fd()
            memory = SharedMemory.attach(fd, os.fstat(fd).st_size)
            undo.callback(memory.close)
            yield memory.array

    def stats(self) -> Counter[str]:
        """See `Buffers.stats`; of all ranks of this host together, with requests and bytes."""
        return self.buffer.stats()

    async def close(self) -> None:
        """See `Buffers.close`; the rank leaves its group."""
        assert not self._lent, "its memory is in use"
        await self._connection.aclose()
        self.buffer.close()
        self._memory.close()


def _map_of(memory: SharedMemory, nbytes: int) -> mmap.mmap:
    return memory.map

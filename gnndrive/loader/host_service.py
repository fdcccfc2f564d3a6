"""`HostService`: what a host service has for a loader, and how the ranks of a host join it.

At its first epoch, `StoreLoader` has all ranks tell each other where they run and what they need.
The first rank of each host starts a service (`host/`), and all ranks of that host connect to it. If
the store was opened through a service that the user has started, they connect to that one, and so
does a loader without other ranks. Whatever goes wrong on one rank is an error on all of them,
because the others would wait for it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, HostServiceError
from gnndrive.common.plugins import name_of
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.connect import service_of
from gnndrive.host.connection import Connection
from gnndrive.host.hello import Hello
from gnndrive.host.names import is_named
from gnndrive.host.start import SEPARATE, Listener, host_identity
from gnndrive.loader.buffers import Buffers
from gnndrive.loader.host_buffers import HostBuffers
from gnndrive.loader.ranks import Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.plan.request import batch_entries_max
from gnndrive.pyg.shared_store import AttachedArrays, attach
from gnndrive.store.reader import Store

GIVEN = (
    "host_service", "strategy", "policy", "device", "attrs", "in_order", "engine", "io_depth",
    "gap", "extractors",
)  # fmt: skip
"""The loader's arguments that decide what its ranks share, beside `memory=` and `buffer=`."""

PLAIN = (str, int, type(None))  # the others may not be picklable
CHOSEN = ("slots", "batch_rows_max", "places", "sweep", "policy")  # by the plan
SPARE_PLACES = 4  # batches that are being gathered, or that the service gives back


class HostService:
    """A rank's part of what the ranks of its host share; waits for the service's welcome.

    Args:
        connection: to the service; this object closes it, also if it cannot be made.
        hello: what this rank asks for.
        store: the store; it uses the shared index pointers from now on.

    Attributes:
        graph: the graph's arrays that the service shares; None: none.

    Raises:
        ConfigError, StoreError: what the service shares cannot be used.
        HostServiceError: it has ended.
    """

    def __init__(self, connection: Connection, hello: Hello, store: Store) -> None:
        self._connection, self._hello, self._store = connection, hello, store
        self.graph: AttachedArrays | None = None
        try:
            connection.wait()
            welcome = connection.welcome
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
        buffers = HostBuffers(self._store, settings, self._hello, self._connection, empty)
        await buffers.start()
        return buffers

    def close(self) -> None:
        """Close the connection at once, and use the graph no more; the shared buffer closes it
        before, with a goodbye."""
        self._connection.close()
        self.graph = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What ranks tell each other.

    Attributes:
        host: where the rank runs, see `host_identity`.
        arguments: arguments for all ranks of a host, by name.
        topology, buffer: see `Hello`.
        given: the values of `GIVEN`.
    """

    host: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    topology: str = ""
    buffer: Mapping[str, Any] | None = None

    @property
    def needs(self) -> dict[str, Any]:
        """What has to be the same on all ranks of a host, by what it is called in an error. What a
        plan has chosen may differ: each rank measures how long sampling takes, and may find other
        memory free. There the first rank's choice counts."""
        buffer = {name: value for name, value in (self.buffer or {}).items() if name not in CHOSEN}
        shared = {"whether the ranks of a host share a buffer": self.buffer is not None}
        return {**shared, **self.arguments, **buffer}


def _check_needs(told: Sequence[_Told], ranks: Sequence[int]) -> None:
    """Check that the ranks of a host need the same.

    Raises:
        ConfigError: they do not; the message names the arguments that differ, or what follows from
            others, such as the memory that is free.
    """
    if any(each.needs != told[0].needs for each in told):
        check_same([each.given for each in told], ranks)
        check_same([each.needs for each in told], ranks)


def join_host_service(
    ranks: Ranks, store: Store, given: Mapping[str, Any],
    make_settings: Callable[[], RuntimeSettings],
) -> tuple[RuntimeSettings, HostService | None]:  # fmt: skip
    """Make a loader's settings, and have its ranks of this host join a service, if they use one.

    A collective call: each rank that the loader deals to has to make it.

    Args:
        ranks: which rank this is.
        store: what the loader loads from.
        given: the values of `GIVEN`.
        make_settings: makes the settings; may raise.

    Raises:
        ConfigError: a rank cannot start, or the ranks differ in what they need.
        StoreError: the service cannot read the store.
        HostServiceError: the service that the store was opened through has ended.
    """
    settings, told, buffer, topology = None, _Told(), None, ""
    error: Exception | None = None
    try:
        settings = make_settings()
        request = settings.request
        arguments = {"memory": request.memory, "buffer": request.buffer}
        buffer, topology = buffer_settings(store, settings), shared_topology(settings)
        needed = None if buffer is None else buffer.to_json()
        named = {
            name: value if isinstance(value, PLAIN) else repr(value)
            for name, value in given.items()
        }
        told = _Told(host_identity(), named, arguments, topology, needed)
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
    """Connect to the service that the store was opened through; without one, start a service on
    each host that has several ranks, and connect to it.

    The first rank of a host is the service's client before it starts it, so that the service ends
    if that rank dies. No rank goes on before all of them are welcome, so a rank that dies or is
    refused meanwhile is an error on all of them.

    Raises:
        ConfigError, StoreError: see `join_host_service`.
        HostServiceError: the service that the store was opened through has ended.
    """
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
    entries = batch_entries_max(request)
    return BufferSettings(
        tables=tuple(table.name for table in request.tables),
        files=tuple(table.file_in(store.path) for table in request.tables),
        row_bytes=tuple(table.file.row_bytes for table in request.tables),
        slots=tuple(plan.slots for plan in settings.plan.tables),
        batch_rows_max=tuple(plan.batch_rows_max for plan in settings.plan.tables),
        entries_max=tuple(entries[table.name] for table in request.tables),
        places=stages.extracting_queue + stages.training_queue + SPARE_PLACES,
        device=name_of(request.device[0]),
        layout=name_of(settings.strategy.layout),
        policy=None if settings.policy is None else name_of(settings.policy),
        tiers=tuple(map(name_of, settings.strategy.tiers)),
        engine=name_of(settings.engine),
        io_depth=settings.engine_settings.depth,
        block_bytes=settings.engine_settings.block_bytes,
        gap_bytes=request.disk.gap_bytes,
        extractors=stages.extractors,
        sweep=stages.sweep,
    )


def shared_topology(settings: RuntimeSettings) -> str:
    """The topology whose arrays a service shares with a loader, by its name; "": none."""
    topology = settings.plan.topology
    return topology.name if settings.request.shared_graph else ""

"""`Service`: accepts ranks on a Unix socket, and passes their messages on to their groups.

One service has one store open. Its groups are loaders: the ranks of each share a feature buffer,
and all of them share the graph and its labels, which are read when the first rank asks for them. A
client that breaks the protocol is disconnected; then its group does as if the rank had died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.records import TopologyChoice
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.host.arena import Arena
from gnndrive.host.error_text import error_text
from gnndrive.host.group import Group, Member
from gnndrive.host.group_buffer import GroupBuffer
from gnndrive.host.hello import Hello, Welcome
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.host.wire import Wire, peer_credentials
from gnndrive.pipeline.epoch import Stages
from gnndrive.pyg.shared_store import PublishedStore, publish
from gnndrive.store.reader import Store

HELLO_S = 10.0  # how long a client may take to say what it needs, or to leave once it is refused
RETRY_S = 1.0  # how long no client is accepted after the system has refused to


@dataclass(eq=False)
class _Ranks:
    """A group, with what it needs beside the service's.

    Attributes:
        hello: that of the first rank.
        buffer: the feature buffer; None: each rank has its own.
        group: the ranks that share it; None: nothing is shared but the graph.
        clients: those that have come.
    """

    hello: Hello
    buffer: GroupBuffer | None
    group: Group | None
    clients: list[_Client]


class _Client:
    """A connected process, from its connection to its end.

    Args:
        service: accepts it.
        sock: its socket.
    """

    def __init__(self, service: Service, sock: socket.socket) -> None:
        self.pid, _ = peer_credentials(sock)
        self._service = service
        self.wire = Wire(sock, self._receive, self._ended)
        self.said_hello = False
        self.ranks: _Ranks | None = None
        self.member: Member | None = None
        self.arena: SharedMemory | None = None
        self.left = False

    def _receive(self, message: Message) -> None:
        if message.kind is Kind.HELLO and not self.said_hello:
            self.said_hello = True
            self._service.enter(self, message.text)
        elif message.kind is Kind.BYE:
            self.left = True
            self.wire.close()
            self._service.leave(self)
        elif self.member is None or self.ranks is None or self.ranks.group is None:
            raise ProtocolError(f"{message.kind.name} before a welcome, or without a buffer")
        else:
            self.ranks.group.handle(self.member, message)

    def _ended(self, error: Exception | None) -> None:
        if isinstance(error, ProtocolError):
            self._service.report(f"process {self.pid} was disconnected: {error}")
        elif error is not None and not isinstance(error, OSError):
            self._service.failed(error)
        self._service.leave(self)

    def expire(self, why: str) -> None:
        """Disconnect the client if it is in no group."""
        if self.ranks is None and not self.wire.closed:
            self.wire.close()
            self._ended(ProtocolError(why))


class Service:
    """Serves one store to the ranks of one user on this host; made in an event loop.

    Args:
        store: what is loaded from.
        listener: a listening socket, see `wire.new_socket`; this object closes it.
        report: called with texts for whoever runs the service.
        stays: whether the service goes on when its last client has left.

    Attributes:
        ended: set when the last client has left, unless the service stays; or after `drain`.
        failures: errors of the service itself, such as a broken invariant; they are reported.
    """

    def __init__(
        self, store: Store, listener: socket.socket,
        report: Callable[[str], object] = print, stays: bool = False,
    ) -> None:  # fmt: skip
        self.store, self.report = store, report
        self._listener, self._stays = listener, stays
        self._graphs: dict[str, PublishedStore] = {}  # by topology
        self.ended = asyncio.Event()
        self.failures: list[BaseException] = []
        self._clients: set[_Client] = set()
        self._groups: dict[str, _Ranks] = {}
        self._ended_groups: set[str] = set()
        self._entering = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._listen()

    # ---- clients ----

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # too many files are open: those who wait stay in the queue
            self.report(f"no client can connect for {RETRY_S:.0f} s: {error}")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(RETRY_S, self._listen)
            return
        _, uid = peer_credentials(sock)
        if uid != os.geteuid():
            self.report(f"user {uid} was refused: only user {os.geteuid()} may connect")
            sock.close()
            return
        client = _Client(self, sock)
        self._clients.add(client)
        self._loop.call_later(HELLO_S, self._expect_hello, client)

    def _listen(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # it was closed meanwhile
            self._loop.add_reader(self._listener, self._accept)

    def _expect_hello(self, client: _Client) -> None:
        if not client.said_hello:
            client.expire("it did not say what it needs")

    def enter(self, client: _Client, text: Mapping[str, Any]) -> None:
        """A client has said hello: welcome it, or refuse it."""
        self._start(self._welcome(client, text))

    async def _welcome(self, client: _Client, text: Mapping[str, Any]) -> None:
        hello: Hello | None = None
        try:
            hello = Hello.from_json(text)
            async with self._entering:
                welcome, fds = await self._admit(client, hello)
        except Exception as error:  # the client's settings, or this machine's memory
            client.wire.send(Message(Kind.REFUSED, text=error_text(error)))
            self._loop.call_later(HELLO_S, client.expire, "it was refused, and stayed")
            if not isinstance(error, GNNDriveError):
                self.report(f"process {client.pid} was refused: {error!r}")
            if hello is not None and hello.group in self._groups:
                self._without(self._groups[hello.group], hello.rank)
            return
        client.wire.send(Message(Kind.WELCOME, text=welcome.to_json()), fds)

    def _without(self, ranks: _Ranks, rank: int) -> None:
        """A rank was refused: its group need not wait for it."""
        if ranks.group is not None:
            ranks.group.refuse(rank)
        self._close_if_empty(ranks)

    async def _admit(self, client: _Client, hello: Hello) -> tuple[Welcome, list[int]]:
        """Make what a client needs, and enter it in its group.

        Returns:
            The welcome, and the descriptors that go with it.
        """
        if hello.store != self.store.identity:
            raise ConfigError(
                f"the host service serves another store, {self.store.path}, or this store was "
                "written again: start the service and the ranks again"
            )
        graph = await self._graph_for(hello.topology) if hello.topology else None
        ranks = self._groups.get(hello.group)
        if ranks is None and hello.group in self._ended_groups:
            raise ConfigError("the other ranks of this loader have ended: start all ranks again")
        if ranks is None:
            ranks = self._groups[hello.group] = await self._new_group(hello)
        slots, fds = self._enter_group(client, ranks, hello)
        if graph is None:
            return Welcome(slots, None, 0), fds
        return Welcome(slots, graph.description, len(graph.fds)), [*graph.fds, *fds]

    async def _graph_for(self, topology: str) -> PublishedStore:
        """The graph in shared memory, for ranks that use a topology; read at the first call."""
        if topology not in self._graphs:
            choice = TopologyChoice(topology, "", 0)
            self._graphs[topology] = await asyncio.to_thread(publish, self.store, choice)
        return self._graphs[topology]

    async def _new_group(self, hello: Hello) -> _Ranks:
        if hello.buffer is None:
            return _Ranks(hello, None, None, [])
        buffer = await GroupBuffer.open(self.store, hello.buffer)
        stages = Stages(extractors=hello.buffer.extractors, sweep=hello.buffer.sweep)
        group = Group(hello.ranks, buffer.buffer, stages, buffer.counters)
        return _Ranks(hello, buffer, group, [])

    def _enter_group(
        self, client: _Client, ranks: _Ranks, hello: Hello
    ) -> tuple[tuple[int, ...], list[int]]:
        """Enter a client in its group; returns the numbers of slots, and descriptors."""
        if client.wire.closed:
            raise ProtocolError("the client has left")
        _check_same(hello, ranks.hello)
        settings = ranks.hello.buffer
        if ranks.group is None or ranks.buffer is None or settings is None:
            ranks.clients.append(client)
            client.ranks = ranks
            return (), []
        shape = settings.arena_shape(self.store)
        arena = SharedMemory.create(shape.nbytes, "arena", written_by_all=True, sparse=True)
        try:
            shared = Arena(shape, arena.array)
            client.member = ranks.group.enter(hello.rank, shared, client.wire.send)
        except BaseException:
            arena.close()
            raise
        ranks.clients.append(client)
        client.ranks, client.arena = ranks, arena
        return settings.slots, [*(each.fd for each in ranks.buffer.slots), arena.fd]

    def leave(self, client: _Client) -> None:
        """A client has left, or its connection has ended."""
        self._clients.discard(client)
        ranks, client.ranks = client.ranks, None
        # A client and its wire refer to each other; the arena must be unmapped before both go.
        member, client.member = client.member, None
        arena, client.arena = client.arena, None
        if ranks is not None:
            ranks.clients.remove(client)
            if ranks.group is not None and member is not None:
                ranks.group.leave(member, lost=not client.left)
            if arena is not None:
                arena.close()
            self._close_if_empty(ranks)
        if not self._stays:
            self.end_if_unused()

    # ---- the end ----

    def _close_if_empty(self, ranks: _Ranks) -> None:
        name = ranks.hello.group
        if not ranks.clients and self._groups.get(name) is ranks:
            del self._groups[name]
            self._ended_groups.add(name)
            self._start(self._close_group(ranks))

    async def _close_group(self, ranks: _Ranks) -> None:
        if ranks.group is not None and ranks.buffer is not None:
            await ranks.group.aclose()
            await ranks.buffer.aclose()

    def end_if_unused(self) -> None:
        """End if no client is here."""
        if not self._clients:
            self.ended.set()

    def drain(self) -> None:
        """Accept no more clients, and end when those that are here have left."""
        self._close_listener()
        self._stays = False
        self.end_if_unused()

    async def aclose(self) -> None:
        """Disconnect all clients and free everything."""
        self._close_listener()
        for client in list(self._clients):
            client.wire.close()
            self.leave(client)
        while self._tasks:
            await asyncio.wait(self._tasks)
        for graph in self._graphs.values():
            graph.close()

    def _close_listener(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # it is closed
            self._loop.remove_reader(self._listener)
        self._listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Something went wrong in the service itself."""
        self.failures.append(error)
        self.report("".join(traceback.format_exception(error)))


def _check_same(hello: Hello, first: Hello) -> None:
    """Check that a rank needs what the first rank of its group needs. Each rank may have found
    other memory free: of the slots the first rank's numbers count, and topologies may differ.

    Raises:
        ConfigError: something differs.
    """
    mine, others = hello.to_json(), first.to_json()
    for each in (mine, others):
        buffer = each["buffer"]
        each.update({f"buffer's {name}": value for name, value in (buffer or {}).items()})
        each.update({"buffer": buffer is not None, "buffer's slots": None})
        each.update(dict.fromkeys(("rank", "name", "topology")))
    differing = [
        f"{name} is {mine.get(name)!r:.200} and {others.get(name)!r:.200}"
        for name in mine | others
        if mine.get(name) != others.get(name)
    ]
    if differing:
        raise ConfigError(
            f"rank {hello.rank} and rank {first.rank} have loaders that differ: "
            f"{'; '.join(differing)}: give all ranks the same arguments"
        )

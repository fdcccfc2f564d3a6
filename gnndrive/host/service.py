"""`Service`: accepts ranks on a Unix socket, and passes their messages on to their groups.

One service has one store open. Its groups are loaders: the ranks of each share a feature buffer,
and all of them share the graph and its labels, which are read when the first rank asks for them. So
a group never waits for another group's user. What a group needs is promised to it before it is
allocated (`budget.py`). A client that breaks the protocol is disconnected; then its group does as
if the rank had died.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.limits import named_limit
from gnndrive.common.memory import format_size
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.host.arena import Arena
from gnndrive.host.budget import LESS, LESS_STAGING, OR_MORE, Budget
from gnndrive.host.graphs import Graphs
from gnndrive.host.group import Group, Member
from gnndrive.host.group_buffer import GroupBuffer, check_share, table_classes
from gnndrive.host.hello import Hello, Welcome, check_same_needs
from gnndrive.host.messages import Kind, Message, ProtocolError, error_text
from gnndrive.host.report import PAGE_CLIENTS, ClientReport, ServiceReport
from gnndrive.host.window_graphs import WindowGraphs
from gnndrive.host.wire import Wire, peer_credentials
from gnndrive.pipeline.epoch import Stages
from gnndrive.store.reader import Store

RETRY_S = 1.0  # how long no client is accepted after the system has refused to


class Acceptor:
    """Accepts clients on a listening socket, which it closes, in an event loop. `accepted` is
    called with the socket of each client, `report` with a text for each that is refused."""

    def __init__(
        self, sock: socket.socket, accepted: Callable[[socket.socket], object],
        report: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._sock, self._accepted, self._report = sock, accepted, report
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # it was closed meanwhile
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # too many files are open: those who wait stay in the queue
            self._report(f"no client can connect for {RETRY_S:.0f} s: {error}")
            self._loop.remove_reader(self._sock)
            self._loop.call_later(RETRY_S, self._listen)
            return
        _, uid = peer_credentials(sock)
        if uid != os.geteuid():
            self._report(f"user {uid} was refused: only user {os.geteuid()} may connect")
            sock.close()
            return
        self._accepted(sock)

    def close(self) -> None:
        """Accept no more clients; idempotent."""
        with contextlib.suppress(ValueError, OSError):  # it is closed
            self._loop.remove_reader(self._sock)
        self._sock.close()


_client_numbers = itertools.count()


@dataclass(eq=False)
class Ranks:
    """A group, with what it needs beside the service's.

    Attributes:
        hello: that of the first rank.
        buffer: the feature buffer; None: each rank has its own.
        group: the ranks that share it; None: nothing is shared but the graph.
        number: tells groups apart.
    """

    hello: Hello
    buffer: GroupBuffer | None
    group: Group | None
    number: int
    clients: list[Client] = field(default_factory=list)


class Client:
    """A connected process, from its connection to its end."""

    def __init__(self, service: Service, sock: socket.socket) -> None:
        self.pid, _ = peer_credentials(sock)
        self._service = service
        self.wire = Wire(sock, self._receive, self._ended)
        self.said_hello = self.asked = False
        self.hello: Hello | None = None  # once it is welcome
        self.number, self.came_s = next(_client_numbers), asyncio.get_running_loop().time()
        self.ranks: Ranks | None = None
        self.member: Member | None = None
        self.arena: SharedMemory | None = None
        self.left = False

    @property
    def only_asks(self) -> bool:
        """Whether it has asked for a report and wants nothing else so far."""
        return self.asked and not self.said_hello

    @property
    def title(self) -> str:
        """What people call it."""
        assert self.hello is not None
        rank, ranks = self.hello.rank, self.hello.ranks
        of_ranks = f", rank {rank}" if len(ranks) > 1 else ""
        return f"{self.hello.name} (process {self.pid}{of_ranks})"

    def _receive(self, message: Message) -> None:
        if message.kind is Kind.STATUS:
            self.asked = True
            self._service.tell(self, message.a)
        elif message.kind is Kind.HELLO and not self.said_hello:
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


HELLO_S = 10.0  # how long a client may take to say what it needs, or to leave once it is refused
ENDED_GROUPS_MAX = 4096  # that are remembered, so that a rank that comes late is refused
_numbers = itertools.count()


class Service:
    """Serves one store to the ranks of one user on this host; made in an event loop.

    Args:
        listener: a listening socket, see `wire.new_socket`; this object closes it.
        report: called with a text for each error of the service, to be printed.
        stays: whether the service goes on when its last client has left.
        memory: bytes that all clients and the graph may take; None: no limit.
        log: called with a text for each client that comes, is refused or leaves.

    Attributes:
        ended: set when the last client has left, unless the service stays; or after `drain`.
        failures: errors of the service itself, such as a broken invariant; they are reported.
    """

    def __init__(
        self, store: Store, listener: socket.socket,
        report: Callable[[str], object] = print, stays: bool = False, memory: int | None = None,
        log: Callable[[str], object] = lambda text: None,
    ) -> None:  # fmt: skip
        self.store, self.report, self.log, self.budget = store, report, log, Budget(memory)
        self._stays = stays
        self._graphs = Graphs(store, self.budget)
        self.ended = asyncio.Event()
        self.failures: list[BaseException] = []
        self._clients: set[Client] = set()
        self._groups: dict[str, Ranks] = {}
        self._ended_groups: dict[str, None] = {}  # the latest
        self._entering = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._allowed: set[int] | None = None  # after `drain`: processes whose loaders may come
        self._was_used = False
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._acceptor = Acceptor(listener, self._accepted, report)

    # ---- clients ----

    def _accepted(self, sock: socket.socket) -> None:
        client = Client(self, sock)
        self._clients.add(client)
        self._loop.call_later(HELLO_S, self._expect_hello, client)

    def _expect_hello(self, client: Client) -> None:
        if not client.said_hello:
            client.expire("it did not say what it needs")

    def enter(self, client: Client, text: Mapping[str, Any]) -> None:
        """A client has said hello: welcome it, or refuse it."""
        self._was_used = True
        self._start(self._welcome(client, text))

    async def _welcome(self, client: Client, text: Mapping[str, Any]) -> None:
        hello: Hello | None = None
        try:
            hello = Hello.from_json(text)
            async with self._entering:
                with named_limit():
                    welcome, fds = await self._admit(client, hello)
            message = Message(Kind.WELCOME, text=welcome.to_json())
            message.encode()  # a store of a thousand types has too much to describe
        except Exception as error:  # the client's settings, or this machine's memory
            self._take_back(client)
            client.wire.send(Message(Kind.REFUSED, text=error_text(error)))
            self._loop.call_later(HELLO_S, client.expire, "it was refused, and stayed")
            known = isinstance(error, GNNDriveError)
            (self.log if known else self.report)(f"process {client.pid} was refused: {error!r}")
            if hello is not None and (ranks := self._groups.get(hello.group)) is not None:
                if ranks.group is not None:
                    ranks.group.refuse(hello.rank)
                self._close_if_empty(ranks)
            return
        client.wire.send(message, fds)
        client.hello = hello
        share = format_size(hello.share)
        self.log(f"{client.title} has come, for {share}: {self.budget.text} are used")

    async def _admit(self, client: Client, hello: Hello) -> tuple[Welcome, list[int]]:
        """Make what a client needs, and enter it in its group; returns the welcome, and the
        descriptors that go with it."""
        if hello.store != self.store.identity:
            raise ConfigError(
                f"the host service serves another store, {self.store.path}, or this store was "
                "written again: start the service and the ranks again"
            )
        ranks = self._groups.get(hello.group)
        if ranks is None and hello.group in self._ended_groups:
            raise ConfigError("the other ranks of this loader have ended: start all ranks again")
        if ranks is None and self._allowed is not None and client.pid not in self._allowed:
            raise ConfigError(
                "the service is ending: it accepts no more loaders but those of processes that it "
                "serves already; start it again when it has ended"
            )
        new = ranks is None
        if new:
            check_share(self.store, hello)
            name = f"{hello.name} (process {client.pid})"
            staging = 0 if hello.buffer is None else hello.buffer.staging_bytes
            remedy = (LESS_STAGING if 2 * staging > hello.share else LESS) + OR_MORE
            await self.budget.take(hello.group, name, hello.share, remedy)
        try:
            graph = await self._graphs.get(hello.topology) if hello.topology else None
            if ranks is None:
                ranks = self._groups[hello.group] = await self._new_group(hello)
        except BaseException:
            if new:
                self.budget.give(hello.group)
            raise
        slots, fds = self._enter_group(client, ranks, hello)
        if graph is None:
            return Welcome(slots, None, 0), fds
        return Welcome(slots, graph.description, len(graph.fds)), [*graph.fds, *fds]

    async def _new_group(self, hello: Hello) -> Ranks:
        if hello.buffer is None:
            return Ranks(hello, None, None, next(_numbers))
        classes = await self._graphs.read(table_classes, self.store, hello.buffer)
        buffer = await GroupBuffer.open(self.store, hello.buffer, classes)
        stages = Stages(extractors=hello.buffer.extractors, sweep=hello.buffer.sweep)
        graphs = WindowGraphs(buffer.load_graph) if buffer.graphs else None
        group = Group(hello.ranks, buffer.buffer, stages, buffer.counters, graphs)
        return Ranks(hello, buffer, group, next(_numbers))

    def _enter_group(
        self, client: Client, ranks: Ranks, hello: Hello
    ) -> tuple[tuple[int, ...], list[int]]:
        """Enter a client in its group; returns the numbers of slots, and descriptors."""
        if client.wire.closed:
            raise ProtocolError("the client has left")
        check_same_needs(hello, ranks.hello)
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
        slots, graphs = ranks.buffer.slots, ranks.buffer.graphs
        return settings.slots, [each.fd for each in (*slots, arena, *graphs)]

    def leave(self, client: Client) -> None:
        """A client has left, or its connection has ended."""
        self._clients.discard(client)
        self._take_back(client)
        if client.hello is not None:
            self.log(f"{client.title} has left")
        self._was_used |= not client.only_asks
        if not self._stays and self._was_used:
            self._end_if_unused()

    def _take_back(self, client: Client) -> None:
        """Take a client out of its group, if it is in one."""
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

    # ---- reports ----

    def tell(self, client: Client, first: int) -> None:
        """Tell a client which clients there are, from client `first` on; ProtocolError: there can
        be no such client, or the client asks without reading answers."""
        if first < 0 or client.wire.unsent:
            raise ProtocolError(f"it asks for client {first}, or has not read the last answer")
        client.wire.send(Message(Kind.REPORT, text=self.make_report(first).to_json()))

    def make_report(self, first: int = 0) -> ServiceReport:
        """What the service serves, and a page of its clients."""
        welcome = [each for each in self._clients if each.ranks is not None]
        page = sorted(welcome, key=lambda each: each.number)[first : first + PAGE_CLIENTS]
        return ServiceReport(
            path=str(self.store.path), identity=self.store.identity, pid=os.getpid(),
            draining=self.draining, memory=self.budget.limit, used=self.budget.used,
            graphs=self._graphs.nbytes,
            time_s=self._loop.time() - self._began_s, total=len(welcome),
            clients=tuple(map(self._client_report, page)),
        )  # fmt: skip

    def _client_report(self, client: Client) -> ClientReport:
        ranks, hello = client.ranks, client.hello
        assert ranks is not None
        assert hello is not None
        nbytes = 0 if ranks.buffer is None else ranks.buffer.counters().get("bytes", 0)
        batches = 0 if client.member is None else client.member.released
        return ClientReport(
            client.pid, hello.name, ranks.number, hello.rank, len(hello.ranks), ranks.hello.share,
            batches, nbytes, self._loop.time() - client.came_s,
        )  # fmt: skip

    # ---- the end ----

    def _close_if_empty(self, ranks: Ranks) -> None:
        name = ranks.hello.group
        if not ranks.clients and self._groups.get(name) is ranks:
            del self._groups[name]
            self._ended_groups[name] = None
            if len(self._ended_groups) > ENDED_GROUPS_MAX:
                del self._ended_groups[next(iter(self._ended_groups))]
            self.budget.freed_by(self._start(self._close_group(ranks)))

    async def _close_group(self, ranks: Ranks) -> None:
        if ranks.group is not None and ranks.buffer is not None:
            try:
                await ranks.group.aclose()
            finally:
                await ranks.buffer.aclose()
        # A feature buffer and what it calls refer to each other. In a service that has little else
        # to do, Python would find them only after many groups.
        ranks.group = ranks.buffer = None
        gc.collect()
        # Not if closing has failed: then the memory may still be used.
        self.budget.give(ranks.hello.group)

    def _end_if_unused(self) -> None:
        """End if no client is here; those that only ask do not count."""
        if all(client.only_asks for client in self._clients):
            self.ended.set()

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._allowed is not None

    def drain(self) -> None:
        """Accept no more processes, and end when those that are here have left. They may make
        further loaders, such as one for the validation at the end of an epoch."""
        self._stays = False
        self._allowed = {client.pid for client in self._clients if client.said_hello}
        self._end_if_unused()

    @property
    def reading(self) -> bool:
        """Whether a thread reads the graph; `aclose` does not wait for it."""
        return self._graphs.reading

    async def aclose(self) -> None:
        """Disconnect all clients and free everything, except for what a thread is `reading`."""
        self._acceptor.close()
        clients = list(self._clients)
        for client in clients:  # all of them first, so that none hears that another was lost
            client.wire.close()
        for client in clients:
            self.leave(client)
        self._graphs.end()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._graphs.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Something went wrong in the service itself."""
        self.report("".join(traceback.format_exception(error)))
        self.failures.append(error.with_traceback(None))  # which would keep a client's memory

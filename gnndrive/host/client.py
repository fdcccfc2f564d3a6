"""`Client`: a process that is connected to a service; `Ranks`: those of one loader."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gnndrive.common.shared_memory import SharedMemory
from gnndrive.host.group import Group, Member
from gnndrive.host.group_buffer import GroupBuffer
from gnndrive.host.hello import Hello
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.host.wire import Wire, peer_credentials

_numbers = itertools.count()


@dataclass(eq=False)
class Ranks:
    """A group, with what it needs beside the service's.

    Attributes:
        hello: that of the first rank.
        buffer: the feature buffer; None: each rank has its own.
        group: the ranks that share it; None: nothing is shared but the graph.
        number: tells groups apart.
        clients: those that have come.
    """

    hello: Hello
    buffer: GroupBuffer | None
    group: Group | None
    number: int
    clients: list[Client] = field(default_factory=list)


class Clients(Protocol):
    """What a client calls of its `Service`."""

    def enter(self, client: Client, text: Mapping[str, Any]) -> None:
        """A client has said hello."""

    def leave(self, client: Client) -> None:
        """A client has left, or its connection has ended."""

    def tell(self, client: Client, first: int) -> None:
        """Tell a client which clients there are, from client `first` on."""

    def failed(self, error: BaseException) -> None:
        """Something went wrong in the service itself."""

    @property
    def report(self) -> Callable[[str], object]:
        """Called with what goes wrong."""


class Client:
    """A connected process, from its connection to its end.

    Args:
        service: accepts it.
        sock: its socket.
    """

    def __init__(self, service: Clients, sock: socket.socket) -> None:
        self.pid, _ = peer_credentials(sock)
        self._service = service
        self.wire = Wire(sock, self._receive, self._ended)
        self.said_hello = self.asked = False
        self.hello: Hello | None = None  # once it is welcome
        self.number, self.came_s = next(_numbers), asyncio.get_running_loop().time()
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

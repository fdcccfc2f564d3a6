"""`Service`: the host service's end of a rank's protocol, which a test speaks for."""

from __future__ import annotations

import numpy as np

from gnndrive.buffer.devices.host import Host
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.error_text import error_text
from gnndrive.host.messages import Kind, Message
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteLease, RemoteTable, RemoteTicket

ROW_BYTES, ROWS_MAX, SLOTS = 8, 5, 16
WANTED = {"x": np.arange(3)}


class Service:
    """Keeps what a rank sends, and answers when the test says so."""

    def __init__(self, places: int) -> None:
        shape = ArenaShape(places, (ROWS_MAX,))
        self.arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self._sent: list[Message] = []
        memory = Host().allocate(SLOTS, ROW_BYTES)
        self.buffer = RemoteBuffer(
            {"x": RemoteTable(ROW_BYTES, memory)}, self.arena, self._sent.append
        )
        self.buffer.begin_epoch()

    def sent(self) -> list[tuple[Kind, int]]:
        """(kind, step) of each message since the last call."""
        sent = [(each.kind, each.step) for each in self._sent]
        self._sent.clear()
        return sent

    def whole(self) -> list[Message]:
        sent = list(self._sent)
        self._sent.clear()
        return sent

    def answer(self, kind: Kind, step: int = 0, a: int = 0, error: Exception | None = None) -> None:
        text = {} if error is None else error_text(error)
        self.buffer.receive(Message(kind, 0, step, a, text=text))

    def announce(self, *steps: int) -> None:
        for step in steps:
            self.buffer.announce(step, WANTED)

    def join(self, step: int) -> RemoteTicket:
        (ticket,) = self.buffer.join([(step, WANTED)])
        return ticket


ANNOUNCE, JOIN, LEAVE, RELEASE = Kind.ANNOUNCE, Kind.JOIN, Kind.LEAVE, Kind.RELEASE


def ended(ticket: RemoteTicket) -> BaseException | None:
    assert ticket.granted is not None
    return ticket.granted.exception()


def lease_of(ticket: RemoteTicket) -> RemoteLease:
    assert ticket.granted is not None
    return ticket.granted.result()

"""`Wire`: one end of the connection between a rank and the host service, in an event loop.

A datagram is a message, so nothing is put together from pieces. Sending never waits: what the
socket does not take at once is kept and sent later, up to a limit that only a peer that has stopped
reading reaches.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from gnndrive.host.messages import MESSAGE_BYTES_MAX, Message, ProtocolError

AT_ONCE = 32  # messages taken in one turn of the loop, so that no peer keeps it busy
UNSENT_MAX = 4096  # messages
_CREDENTIALS = struct.Struct("3i")


def new_socket() -> socket.socket:
    """A socket of the kind that wires use."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the process at the other end, as the kernel says it."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def abstract_name(name: str) -> str:
    """The address of a service: a name that is in no file system, and gone with its last socket."""
    return f"\0gnndrive-{name}"


class Wire:
    """One end of a connection on `sock`, which it closes; made and used in one event loop.

    Args:
        receive: called with each message; if it raises, the connection ends.
        ended: called once, when the connection has ended and `close` was not called: with the error
            that ended it, such as a ProtocolError or OSError, or None if the peer has closed its
            end.
    """

    def __init__(
        self, sock: socket.socket, receive: Callable[[Message], object],
        ended: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        sock.setblocking(False)
        self._sock, self._receive, self._ended = sock, receive, ended
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self.closed = False
        self._loop.add_reader(sock, self._readable)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors, which must stay open until it is sent. After the
        end of the connection it is dropped."""
        if self.closed:
            return
        self._unsent.append((message.encode(), fds))
        if len(self._unsent) == 1:
            self._send_unsent()
        elif len(self._unsent) > UNSENT_MAX:
            self._loop.call_soon(self._end, ProtocolError("the peer does not read its messages"))

    @property
    def unsent(self) -> int:
        """How many messages the peer has not made room for."""
        return len(self._unsent)

    def _send_unsent(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                socket.send_fds(self._sock, [data], list(fds), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._send_unsent)
                return
            except OSError as error:
                self._unsent.clear()
                self._loop.call_soon(self._end, error)
                break
            self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        for _ in range(AT_ONCE):
            if self.closed:
                return
            try:
                data = self._sock.recv(MESSAGE_BYTES_MAX + 1)
                if not data:
                    self._end(None)
                    return
                self._receive(Message.decode(data))
            except (BlockingIOError, InterruptedError):
                return
            except Exception as error:
                self._end(error)
                return

    def _end(self, error: Exception | None) -> None:
        if not self.closed:
            self.close()
            self._ended(error)

    def close(self) -> None:
        """Close this end; idempotent."""
        if self.closed:
            return
        self.closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        self._sock.close()

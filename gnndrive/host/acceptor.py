"""`Acceptor`: accepts a service's clients, those of its own user alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from gnndrive.host.wire import peer_credentials

RETRY_S = 1.0  # how long no client is accepted after the system has refused to


class Acceptor:
    """Accepts clients on a listening socket, in an event loop.

    Args:
        sock: the socket, see `start.Listener`; this object closes it.
        accepted: called with the socket of each client.
        report: called with a text for each client that is refused.
    """

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

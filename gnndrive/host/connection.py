"""`Connection`: a rank's connection to the host service, and the memory that came with it.

The user's thread makes it and waits for the service's welcome; the rank's event loop then uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

from gnndrive.common.errors import HostServiceError
from gnndrive.common.interrupts import interruptible
from gnndrive.common.limits import named_limit, refusal
from gnndrive.host.hello import Hello, Welcome
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message, ProtocolError, error_from
from gnndrive.host.names import is_named, shown
from gnndrive.host.report import ClientReport, ServiceReport
from gnndrive.host.wire import Wire, abstract_name, new_socket, peer_credentials

FDS_MAX = 253  # of one message, a limit of the kernel
GOODBYE_S = 5.0  # how long a service that does not answer is waited for at the end
NO_ANSWER = (
    "the host service has ended before it answered (see the output of the first rank of this host)"
)
ENDED = (
    "the host service has ended, or was killed (see the output of the first rank of this host, or "
    "dmesg if memory ran out): start the ranks again and resume with the loader's state"
)


def unanswered_text(address: str) -> str:
    """What to say if a service has ended before it answered."""
    return f"{shown(address)} has ended before it answered" if is_named(address) else NO_ANSWER


def ended_text(address: str) -> str:
    """What to say if a service is not there, or not any more."""
    if not is_named(address):
        return ENDED
    return (
        f"{shown(address)} is not running, has ended, or was killed (see its output, or dmesg if "
        "memory ran out): start it with gnndrive serve, and make a new loader, which can resume "
        "with the state of the old one"
    )


def connected(address: str) -> socket.socket:
    """Connect to a service, and check whose it is; HostServiceError: there is none, or it is
    another user's."""
    with named_limit():
        sock = new_socket()
    try:
        sock.connect(abstract_name(address))
        _, uid = peer_credentials(sock)
        if uid not in (os.geteuid(), 0):
            raise HostServiceError(
                f"{shown(address)} is that of user {uid}: only this user's, or root's, is trusted; "
                "give yours another name"
            )
    except OSError as error:
        sock.close()
        why = ended_text(address) if is_named(address) else NO_ANSWER
        raise HostServiceError(f"{why}: {error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


class Connection:
    """A rank's connection to the service. It exists as soon as the service's socket listens: `wait`
    waits until the service has what the rank needs, and sets `welcome`, its answer. A forked child
    does not have it, so that it ends with this process.

    Raises:
        HostServiceError: there is no such service, or it is another user's.
        ConfigError: this process may open no more files.
    """

    welcome: Welcome

    def __init__(self, address: str, hello: Hello) -> None:
        self._wire: Wire | None = None
        self.fds: list[int] = []
        self._address = address
        self._sock = connected(address)
        _open.add(self)
        with self._closed_on_error():
            self._sock.send(Message(Kind.HELLO, text=hello.to_json()).encode())

    def wait(self) -> None:
        """Wait for the service's welcome; raises why the service has refused this rank, or
        HostServiceError: it has ended."""
        with self._closed_on_error():
            message = self._first_message()
            if message.kind is Kind.REFUSED:
                raise error_from(message.text)
            if message.kind is not Kind.WELCOME:
                raise HostServiceError(f"the host service began with {message.kind.name}")
            self.welcome = Welcome.from_json(message.text)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the connection if the service does not answer, or the wait is interrupted."""
        try:
            yield
        except (ConnectionError, FileNotFoundError, ProtocolError) as error:
            self.close()
            raise HostServiceError(f"{unanswered_text(self._address)}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _first_message(self) -> Message:
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        with interruptible():
            waiting.poll()
        size, cloexec = MESSAGE_BYTES_MAX + 1, socket.MSG_CMSG_CLOEXEC
        data, self.fds, flags, _ = socket.recv_fds(self._sock, size, FDS_MAX, cloexec)
        if not data:
            raise HostServiceError(unanswered_text(self._address))
        if flags & socket.MSG_CTRUNC and (error := refusal(errno.EMFILE)) is not None:
            raise error
        return Message.decode(data)

    def take_fd(self) -> int:
        """The next descriptor, which the caller closes; HostServiceError: there is none left."""
        if not self.fds:
            raise HostServiceError("the host service sent too few file descriptors")
        return self.fds.pop(0)

    async def start(
        self, receive: Callable[[Message], object], failed: Callable[[Exception], object]
    ) -> None:
        """From now on this event loop gets the service's messages: `receive` is called with each,
        `failed` once if the connection ends before `aclose`."""
        self._gone = asyncio.Event()
        self._leaving = False

        def ended(error: Exception | None) -> None:
            self._gone.set()
            if not self._leaving:
                why = "" if error is None else f" ({error})"
                failed(HostServiceError(f"{ended_text(self._address)}{why}"))

        self._wire = Wire(self._sock, receive, ended)

    def send(self, message: Message) -> None:
        """Send the service a message; after the end of the connection it is dropped."""
        assert self._wire is not None
        self._wire.send(message)

    async def aclose(self) -> None:
        """Tell the service that this rank leaves, and close the connection."""
        if self._wire is not None and not self._wire.closed:
            # The service closes its end first. If this end were closed with an answer unread, the
            # kernel would drop what the service has not read.
            self._leaving = True
            self._wire.send(Message(Kind.BYE))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GOODBYE_S)
        self.close()

    def close(self) -> None:
        """Close the connection at once, and the descriptors that were not taken; idempotent."""
        if self._wire is not None:
            self._wire.close()
        self._sock.close()
        while self.fds:
            os.close(self.fds.pop())


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_in_child() -> None:
    for connection in list(_open):
        connection._sock.close()


os.register_at_fork(after_in_child=_close_in_child)


ANSWER_S = 10.0  # how long a service is waited for


class NoAnswerError(HostServiceError):
    """A service that is there does not answer."""


def ask(address: str) -> ServiceReport:
    """Ask a service for its report, with all of its clients.

    Raises:
        NoAnswerError: the service does not answer.
        HostServiceError: there is no such service, it has ended meanwhile, or it belongs to another
            user.
        ConfigError: it is of another version of gnndrive.
    """
    sock = connected(address)
    with sock:
        sock.settimeout(ANSWER_S)
        try:
            clients: list[ClientReport] = []
            while True:
                page = _page(sock, len(clients), address)
                clients += page.clients
                if not page.clients or len(clients) >= page.total:
                    return replace(page, clients=tuple(clients))
        except TimeoutError:
            raise NoAnswerError(
                f"{shown(address)} does not answer within {ANSWER_S:g} s: it may be starting, "
                "stopped, or short of memory"
            ) from None
        except (OSError, ProtocolError) as error:
            raise HostServiceError(f"{ended_text(address)} ({error})") from error


def _page(sock: socket.socket, first: int, address: str) -> ServiceReport:
    """The page of the report whose first client is client `first`."""
    sock.send(Message(Kind.STATUS, a=first).encode())
    data = sock.recv(MESSAGE_BYTES_MAX + 1)
    if not data:
        raise HostServiceError(ended_text(address))
    message = Message.decode(data)
    if message.kind is not Kind.REPORT:
        raise ProtocolError(f"it answered with {message.kind.name}")
    return ServiceReport.from_json(message.text)

"""`ask` a service for its report; the asker is no client and takes nothing of the service."""

from __future__ import annotations

import socket
from dataclasses import replace

from gnndrive.common.errors import HostServiceError
from gnndrive.host.connection import connected, ended_text
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message, ProtocolError
from gnndrive.host.names import shown
from gnndrive.host.report import ClientReport, ServiceReport

ANSWER_S = 10.0  # how long a service is waited for


class NoAnswerError(HostServiceError):
    """A service that is there does not answer."""


def ask(address: str) -> ServiceReport:
    """Ask a service for its report, with all of its clients.

    Args:
        address: see `names`.

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

"""What a service refuses of its clients, and that those who only ask change nothing."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from gnndrive import ConfigError, HostServiceError, Store, StoreError
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.connection import Connection, connected
from gnndrive.host.hello import NAME_MAX, Hello
from gnndrive.host.inquiry import ask
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message
from tests.host.served.conftest import NODES, Serving

SETTINGS = BufferSettings(
    ("nodes/x",), ("nodes/x.npy",), (160,), (200,), (100,), (200,), 4, "host", "table", "lru",
    ("disk",), "threads", 4, 4096, 0, 1, None,
)  # fmt: skip
STAGING = 4 * 4096
SHARE = 200 * 160 + STAGING


def hello(store: Store, share: int = SHARE, topology: str = "", **settings: Any) -> Hello:
    buffer = replace(SETTINGS, **settings)
    return Hello(store.identity, "group", 0, (0,), buffer, topology, share, "test")


def refusal(serving: Serving, asked: Hello) -> str:
    """Why a service refuses a client."""
    connection = Connection(serving.address, asked)
    with pytest.raises((ConfigError, HostServiceError, StoreError)) as raised:
        connection.wait()
    return str(raised.value)


def test_a_hello_that_is_fine_is_welcome(serve, store):
    serving = serve()
    connection = Connection(serving.address, hello(store))
    connection.wait()
    assert connection.welcome.slots == (200,)
    assert ask(serving.address).used == SHARE
    connection.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"share": SHARE - 1}, f"a buffer of {SHARE:,} bytes has a share of {SHARE - 1:,}"),
        ({"slots": (NODES + 1,)}, f"or not {NODES + 1} rows of it"),
        ({"files": ("derived/x/0123456789abcdef/nodes/x.npy",)}, "nodes/x of "),
        ({"row_bytes": (80,)}, "was replaced since this process opened the store: open it again"),
        ({"files": ()}, "is no list of names"),
        ({"tables": ("../../x",)}, "the store has no table '../../x'"),
        ({"tables": ("nodes/y",)}, "the store has no table 'nodes/y'"),
        ({"topology": "../x"}, "no topology is called '../x'"),
        ({"layout": "../x"}, "no layout is called '../x'"),
        ({"engine": "os"}, "no engine is called 'os'"),
        ({"share": 1 << 40}, "test (process"),
        ({"share": 1 << 60}, "is no number of bytes"),
        ({"share": -1}, "is no number of bytes"),
    ],
)
def test_what_a_service_does_not_make(serve, store, asked, said):
    serving = serve()
    assert said in refusal(serving, hello(store, **asked))
    assert ask(serving.address).used == 0
    assert not ask(serving.address).clients


def test_the_services_limit_is_named(serve, store, monkeypatch):
    serving, refused = serve(), OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr("gnndrive.host.group_buffer.choose", Mock(side_effect=refused))
    said = refusal(serving, hello(store))
    assert said.startswith(f"in the service (process {os.getpid()}, whose limits are its shell's, ")
    assert "LimitNOFILE=" in said
    assert "(ulimit -n)" in said


def test_names_are_safe_to_print(serve, store):
    serving = serve()
    asked = replace(hello(store), name="a\n\x1b[31m\u202eb" + "é" * 200)
    connection = Connection(serving.address, asked)
    connection.wait()
    (client,) = ask(serving.address).clients
    assert client.name == "a??[31m?b" + "é" * (NAME_MAX - 9)
    assert client.name in serving.said[0]
    connection.close()


# ---- those who ask


def wait_for_end(sock: socket.socket, serving: Serving) -> None:
    """Wait until a service has closed a connection, over which it may have sent something."""
    with suppress(ConnectionError):
        while sock.recv(MESSAGE_BYTES_MAX + 1):
            pass
    serving.call(lambda: None)  # until it has said why


def ask_on(sock: socket.socket) -> None:
    """Ask as long as the connection lasts, and read nothing."""
    with suppress(ConnectionError):
        while True:
            sock.send(Message(Kind.STATUS).encode())


def test_who_asks_wrongly_or_does_not_read_is_disconnected(serve):
    serving = serve()
    with connected(serving.address) as sock:
        sock.send(Message(Kind.STATUS, a=1 << 62).encode())
        assert Message.decode(sock.recv(MESSAGE_BYTES_MAX)).text["clients"] == []
        sock.send(Message(Kind.STATUS, a=-1).encode())
        wait_for_end(sock, serving)
    with connected(serving.address) as sock:
        ask_on(sock)
        wait_for_end(sock, serving)
    assert "was disconnected: it asks for client -1" in serving.said[0]
    assert "has not read the last answer" in serving.said[1]


def test_who_asks_neither_ends_nor_keeps_a_service_of_ranks(serve, store):
    serving = serve(stays=False)
    assert ask(serving.address).total == 0
    serving.call(lambda: None)
    assert not serving.service.ended.is_set()
    with connected(serving.address) as sock:
        sock.send(Message(Kind.STATUS).encode())
        sock.recv(MESSAGE_BYTES_MAX)
        connection = Connection(serving.address, hello(store))
        connection.wait()
        assert not serving.service.ended.is_set()
        connection.close()
        serving.call(serving.service.ended.wait)

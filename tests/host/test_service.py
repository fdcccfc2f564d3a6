"""The service over real sockets: who is let in, what is refused, and how it ends."""

import errno
import gc
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gnndrive import ConfigError, HostServiceError, StoreError
from gnndrive.buffer.devices.host import HostMemory
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.host import graphs, service
from gnndrive.host.connection import Connection, ask
from gnndrive.host.group import Group
from gnndrive.host.group_buffer import GroupBuffer
from gnndrive.host.hello import NAME_MAX, Hello, Welcome
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message, ProtocolError
from gnndrive.host.wire import abstract_name, new_socket
from tests.forked import Program
from tests.host.conftest import NODES, SETTINGS, SHARE, Serving
from tests.test_import import imported_by

LIMIT_S = 60  # against a service that does not answer


class Stranger:
    """A client of a service that sends what it is told to, and gets its welcome for `hello`; `fds`
    have arrived."""

    def __init__(self, name: str, hello: Hello | None = None) -> None:
        self.sock, self.fds = new_socket(), list[int]()
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(abstract_name(name))
        if hello is not None:
            self.say(Kind.HELLO, **hello.to_json())
            message = self.receive()
            assert message.kind is Kind.WELCOME, message.text
            assert Welcome.from_json(message.text).slots == hello.buffer.slots

    def say(self, kind: Kind, a: int = 0, **text: Any) -> bool:
        """Send a message; False: the service has disconnected this client."""
        try:
            self.sock.send(Message(kind, a=a, text=text).encode())
        except ConnectionError:
            return False
        return True

    def receive(self) -> Message | None:
        """The service's next message; None: it has disconnected this client."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MESSAGE_BYTES_MAX, 253)
        except ConnectionError:
            return None
        self.fds += fds
        return Message.decode(data) if data else None

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())


def gone(stranger: Stranger) -> bool:
    """Wait until the service has disconnected a client, after what it has still told it."""
    while stranger.receive() is not None:
        pass
    stranger.close()
    return True


def memories() -> int:
    """How many descriptors of shared memory this process has."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:gnndrive-" in os.readlink(link) for link in links if os.path.islink(link))


def is_served(stranger: Stranger) -> bool:
    stranger.say(Kind.ASK)
    return stranger.receive() == Message(Kind.AWAITED, a=0)


# ---- who is let in


def test_the_last_client_ends_the_service_and_nothing_is_left(serve, hello):
    gc.collect()
    before, serving = memories(), serve(stays=False)
    first, second = (Stranger(serving.address, replace(hello, group=each)) for each in "ab")
    first.say(Kind.BYE)
    assert gone(first)
    assert not serving.service.ended.is_set()
    second.close()
    serving.call(serving.service.ended.wait)
    serving.call(serving.service.aclose)
    assert memories() == before


def test_other_users_are_refused(serve, hello, monkeypatch):
    serving, user = serve(), os.geteuid()
    honest = Stranger(serving.address, hello)
    with monkeypatch.context() as patched:
        patched.setattr(service.os, "geteuid", lambda: user + 1)
        assert gone(Stranger(serving.address))
    assert f"user {user} was refused: only user {user + 1} may connect" in serving.said
    assert is_served(honest)
    honest.close()


def test_a_client_that_says_nothing_or_stays_when_refused_is_disconnected(
    serve, hello, monkeypatch
):
    monkeypatch.setattr(service, "HELLO_S", 0)
    for said in ({}, replace(hello, store="another store").to_json()):
        serving = serve(stays=False)
        client = Stranger(serving.address)
        if said:
            client.say(Kind.HELLO, **said)
        assert gone(client)
        serving.call(serving.service.ended.wait)


def test_accepting_goes_on_when_files_are_free_again(serve, hello, monkeypatch):
    monkeypatch.setattr(service, "RETRY_S", 0)
    refusals, accept = [OSError(errno.EMFILE, "Too many open files")] * 3, socket.socket.accept

    def refusing(sock):
        if refusals:
            raise refusals.pop()
        return accept(sock)

    serving = serve()
    monkeypatch.setattr(socket.socket, "accept", refusing)
    Stranger(serving.address, hello).close()
    assert len([text for text in serving.said if "Too many open files" in text]) == 3


# ---- what is refused


def refusal(serving: Serving, asked: Hello) -> str:
    connection = Connection(serving.address, asked)
    with pytest.raises((ConfigError, HostServiceError, StoreError)) as raised:
        connection.wait()
    return str(raised.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"share": SHARE - 1}, f"a buffer of {SHARE:,} bytes has a share of {SHARE - 1:,}"),
        ({"slots": (NODES + 1,)}, f"or not {NODES + 1} rows of it"),
        ({"files": ("derived/x/0123456789abcdef/nodes/x.npy",)}, "nodes/x of "),
        ({"row_bytes": (80,)}, "was replaced since this process opened the store: open it again"),
        ({"files": ()}, "files is [], and has to be a list of 1 to 1 names"),
        ({"tables": ("nodes/y",)}, "the store has no table 'nodes/y'"),
        ({"topology": "../x"}, "no topology is called '../x'"),
        ({"layout": "../x"}, "no layout is called '../x'"),
        ({"engine": "os"}, "no engine is called 'os'"),
        ({"share": 1 << 40}, "a test (process"),
        ({"share": 1 << 60}, "is no number of bytes"),
    ],
)
def test_what_a_service_does_not_make(serve, hello, asked, said):
    own = {name: value for name, value in asked.items() if name in ("share", "topology")}
    buffer = replace(SETTINGS, **{name: asked[name] for name in asked if name not in own})
    serving = serve()
    assert said in refusal(serving, replace(hello, buffer=buffer, **own))
    assert ask(serving.address).used == 0
    assert not ask(serving.address).clients


def test_the_services_limit_is_named(serve, hello, monkeypatch):
    refused = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr("gnndrive.host.group_buffer.choose", Mock(side_effect=refused))
    said = refusal(serve(), hello)
    assert said.startswith(f"in the service (process {os.getpid()}, whose limits are its shell's, ")
    assert "LimitNOFILE=" in said


def test_ranks_that_differ_or_come_too_late_are_refused(serve, hello):
    serving, hello = serve(), replace(hello, ranks=(0, 1))
    first = Stranger(serving.address, hello)
    other = replace(hello, rank=1, buffer=replace(SETTINGS, extractors=2))
    assert "loaders that differ: buffer's extractors is 2 and 1" in refusal(serving, other)
    assert first.receive() == Message(Kind.PEER_LOST, a=1), "it waits for a rank that will not come"
    first.close()
    assert "the other ranks of this loader have ended" in refusal(serving, hello)


JUNK = (
    0, -1, 1 << 31, 1 << 62, 1 << 80, True, None, 1.5, "", "\ud800", "../../etc/passwd", [], [0],
    {}, {"x": 1}, "x" * 3000,
)  # fmt: skip


def test_any_hello_is_understood_or_refused(hello):
    texts = hello.to_json()
    whole = [texts | {name: junk} for name in texts for junk in JUNK]
    whole += [
        texts | {"buffer": texts["buffer"] | {name: value}}
        for name in texts["buffer"]
        for junk in JUNK
        for value in (junk, [junk], [junk] * 2)
    ]
    understood = 0
    for each in whole:
        with suppress(ProtocolError, ConfigError):
            assert Hello.from_json(each).to_json().keys() == texts.keys()
            understood += 1
    assert 50 < understood < len(whole) / 3
    name = "a\n\x1b[31m\u202eb" + "é" * 200  # printed
    assert Hello.from_json(texts | {"name": name}).name == "a??[31m?b" + "é" * (NAME_MAX - 9)


# ---- who is disconnected


def test_who_asks_wrongly_or_does_not_read_is_disconnected(serve, hello):
    serving = serve()
    early, asking = Stranger(serving.address), Stranger(serving.address)
    early.say(Kind.JOIN)
    assert gone(early)
    twice = Stranger(serving.address, hello)
    twice.say(Kind.HELLO, **hello.to_json())
    assert gone(twice)
    with closing(Stranger(serving.address, replace(hello, group="another"))) as client:
        while client.say(Kind.ASK):
            pass
    asking.say(Kind.STATUS, a=1 << 62)
    assert asking.receive().text["clients"] == []
    asking.say(Kind.STATUS, a=-1)
    assert gone(asking)
    with closing(Stranger(serving.address)) as client:
        while client.say(Kind.STATUS):
            pass
    serving.call(lambda: None)  # until it has said why
    reasons = [
        "JOIN before a welcome", "HELLO does not belong here", "does not read its messages",
        "it asks for client -1", "not read the last answer",
    ]  # fmt: skip
    said = [text for text in serving.said if "was disconnected" in text]
    assert [reason in text for reason, text in zip(reasons, said, strict=True)] == [True] * 5


def test_who_asks_neither_ends_nor_keeps_a_service_of_ranks(serve, hello):
    serving = serve(stays=False)
    assert ask(serving.address).total == 0
    serving.call(lambda: None)
    assert not serving.service.ended.is_set()
    asking = Stranger(serving.address)
    asking.say(Kind.STATUS)
    asking.receive()
    client = Stranger(serving.address, hello)
    assert ask(serving.address).used == SHARE
    assert not serving.service.ended.is_set()
    client.close()
    serving.call(serving.service.ended.wait)
    asking.close()


def test_descriptors_that_clients_send_are_closed(serve, hello):
    client = Stranger(serve().address)
    read, write = os.pipe()
    message = Message(Kind.HELLO, text=hello.to_json()).encode()
    socket.send_fds(client.sock, [message], [write] * 5)
    os.close(write)
    assert client.receive().kind is Kind.WELCOME
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"", "no process has the other end"
    client.close()


def test_an_error_of_the_service_ends_one_connection_and_is_loud(serve, hello, monkeypatch):
    serving = serve()
    honest, other = (Stranger(serving.address, replace(hello, group=each)) for each in "ab")
    with monkeypatch.context() as patched:
        patched.setattr(Group, "handle", Mock(side_effect=RuntimeError("a mistake")))
        other.say(Kind.ASK)
        assert gone(other)
    assert is_served(honest)
    honest.close()
    (failure,) = serving.service.failures
    assert str(failure) == "a mistake"
    assert any("Traceback" in text for text in serving.said)
    serving.service.failures.clear()


def test_a_client_may_write_into_its_arena_alone(serve, hello):
    client = Stranger(serve().address, replace(hello, topology="resident"))
    *others, arena = map(may_write, client.fds)
    assert (arena, set(others)) == (True, {False})
    client.close()


def may_write(fd: int) -> bool:
    try:
        mmap.mmap(fd, 1, prot=mmap.PROT_WRITE | mmap.PROT_READ)
    except PermissionError:
        return False
    return True


# ---- the end


def test_memory_is_freed_in_another_thread(serve, hello, monkeypatch):
    threads, serving = list[threading.Thread](), serve()
    client = Stranger(serving.address, hello)

    def recorded(usual):
        return lambda *given: [threads.append(threading.current_thread()), usual(*given)][1]

    monkeypatch.setattr(FeatureBuffer, "verify", recorded(FeatureBuffer.verify))
    monkeypatch.setattr(HostMemory, "close", recorded(HostMemory.close))
    monkeypatch.setattr(GroupBuffer, "_close_shared", recorded(GroupBuffer._close_shared))
    client.close()
    serving.call(serving.service.aclose)
    assert len(threads) == 3
    assert serving.call(threading.current_thread) not in threads


def test_what_is_read_too_late_is_freed(serve, hello, monkeypatch):
    begun, go_on, closed = (threading.Event() for _ in range(3))

    def publish(*given):
        begun.set()
        go_on.wait()
        return SimpleNamespace(close=closed.set)

    monkeypatch.setattr(graphs, "publish", publish)
    serving = serve()
    clients = [Stranger(serving.address) for _ in range(2)]
    for group, client in zip("ab", clients, strict=True):
        client.say(Kind.HELLO, **replace(hello, group=group, topology="resident").to_json())
    begun.wait()
    serving.call(serving.service.aclose)
    assert serving.service.reading
    assert [gone(client) for client in clients] == [True, True]
    assert serving.service.budget.used == 0
    reading = serving.service._graphs._reading
    go_on.set()
    serving.call(lambda: reading)
    closed.wait()


SERVING = """
import sys
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.host.run import serve_folder
from gnndrive.host.start import Listener

def broken(buffer):
    raise AssertionError("a slot table breaks invariant 7")

FeatureBuffer.verify = broken
listener = Listener(sys.argv[1]).sock
print("listening", flush=True)
sys.exit(serve_folder(listener.detach(), sys.argv[2]))
"""


@contextmanager
def started(path: Path) -> Iterator[tuple[str, Program]]:
    """The name of a service that is a process, whose buffers are broken, and the process."""
    name = f"test-{os.getpid()}-process"
    with Program(SERVING, name, str(path)) as process:
        assert process.stdout.readline() == "listening\n"
        yield name, process


def test_a_broken_invariant_is_in_the_exit_status_of_the_process(store, hello):
    with started(store.path) as (name, process):
        Stranger(name, hello).close()
        _, said = process.communicate()
    assert process.returncode == 1
    assert "invariant 7" in said


def test_a_store_that_is_not_there_is_one_line(tmp_path):
    with started(tmp_path) as (_, process):
        _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith("the host service cannot open its store: ")
    assert said.count("\n") == 1


# ---- a service never uses PyTorch


def test_the_host_service_starts_without_torch():
    found = imported_by(
        "from gnndrive.common.imports import defer\n"
        "defer('torch')\n"
        "import gnndrive.host.run, sys\n"
        "assert 'from_numpy' not in vars(sys.modules.pop('torch'))\n"
    )
    assert "numpy" in found
    assert found.isdisjoint({"torch", "torch_geometric"})

"""The service over real sockets: who is let in, who is disconnected, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gnndrive import Store
from gnndrive.buffer.devices.host import HostMemory
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.errors import ConfigError
from gnndrive.host import acceptor, connection, graphs, service
from gnndrive.host.connection import Connection
from gnndrive.host.group import Group
from gnndrive.host.group_buffer import GroupBuffer
from gnndrive.host.hello import Hello
from gnndrive.host.messages import Kind, Message
from gnndrive.host.service import Service
from gnndrive.host.wire import abstract_name, new_socket
from tests.forked import Program
from tests.host.processes.strangers import Stranger, of_one


class Running:
    """A service in this event loop; strangers connect to its name."""

    def __init__(self, store: Store, listener: socket.socket, stays: bool) -> None:
        self.name, self.reports = listener.getsockname().decode()[len("\0gnndrive-") :], list[str]()
        self.service = Service(store, listener, self.reports.append, stays)

    async def stranger(self) -> Stranger:
        """A client that has said nothing yet."""
        return await asyncio.to_thread(Stranger, self.name)

    async def welcome(self, hello: Hello) -> Stranger:
        """A client that has got its welcome."""
        made = await self.stranger()
        await asyncio.to_thread(made.enter, hello, self.service.store)
        return made


@asynccontextmanager
async def running(
    store: Store, stays: bool = True, kind: Callable[[], socket.socket] = new_socket
) -> AsyncIterator[Running]:
    """A service, of which nothing is left afterwards, without a garbage collection."""
    gc.collect()
    before = memories()
    listener = kind()
    listener.bind(abstract_name(f"test-{os.getpid()}-{listener.fileno()}"))
    listener.listen()
    made = Running(store, listener, stays)
    yield made
    await made.service.aclose()
    assert memories() == before


def memories() -> int:
    """How many descriptors of shared memory this process has."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:gnndrive-" in os.readlink(link) for link in links if os.path.islink(link))


async def gone(stranger: Stranger) -> bool:
    """Whether the service has disconnected a client, after what it has still told it."""
    while (await asyncio.to_thread(stranger.receive)) is not None:
        pass
    stranger.close()
    return True


# ---- who is let in


async def test_the_last_client_ends_the_service(store, hello):
    async with running(store, stays=False) as made:
        first, second = await made.welcome(hello), await made.welcome(of_one(hello))
        first.say(Kind.BYE)
        assert await gone(first)
        assert not made.service.ended.is_set()
        second.close()
        await made.service.ended.wait()
        assert made.reports == []
        assert made.service.failures == []


async def test_other_users_are_refused(store, hello, monkeypatch):
    async with running(store) as made:
        honest = await made.welcome(hello)
        user = os.geteuid()
        with monkeypatch.context() as patched:
            patched.setattr(acceptor.os, "geteuid", lambda: user + 1)
            other = await made.stranger()
            assert await gone(other)
        assert made.reports == [f"user {user} was refused: only user {user + 1} may connect"]
        honest.say(Kind.ASK)
        answer = await asyncio.to_thread(honest.receive)
        assert answer == Message(Kind.AWAITED, a=0)
        honest.close()


async def test_a_client_that_says_nothing_or_stays_when_refused_is_disconnected(
    store, hello, monkeypatch
):
    monkeypatch.setattr(service, "HELLO_S", 0)
    async with running(store, stays=False) as made:
        silent = await made.stranger()
        assert await gone(silent)
        await made.service.ended.wait()
    async with running(store, stays=False) as made:
        refused = await made.stranger()
        wrong = replace(hello, store="another store")
        refused.say(Kind.HELLO, **wrong.to_json())
        assert await gone(refused)
        await made.service.ended.wait()


async def test_accepting_goes_on_when_files_are_free_again(store, hello, monkeypatch):
    monkeypatch.setattr(acceptor, "RETRY_S", 0)
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 3

    class Refusing(socket.socket):
        def accept(self):
            if refusals:
                raise refusals.pop()
            return super().accept()

    def kind():
        return Refusing(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async with running(store, kind=kind) as made:
        client = await made.welcome(hello)
        assert len([text for text in made.reports if "Too many open files" in text]) == 3
        client.close()


# ---- who is disconnected


async def test_a_client_that_never_reads(store, hello):
    async with running(store) as made:
        client = await made.welcome(hello)

        def ask_on():
            while client.say(Kind.ASK):
                pass

        await asyncio.to_thread(ask_on)
        assert ["does not read its messages" in text for text in made.reports] == [True]
        client.close()


async def test_descriptors_that_clients_send_are_closed(store, hello):
    async with running(store) as made:
        client = await made.stranger()
        read, write = os.pipe()
        message = Message(Kind.HELLO, text=hello.to_json()).encode()
        socket.send_fds(client.sock, [message], [write] * 5)
        os.close(write)
        answer = await asyncio.to_thread(client.receive)
        assert answer.kind is Kind.WELCOME
        with os.fdopen(read, "rb") as pipe:
            assert await asyncio.to_thread(pipe.read) == b"", "no process has the other end"
        client.close()


async def test_an_error_of_the_service_ends_one_connection_and_is_loud(store, hello, monkeypatch):
    async with running(store) as made:
        honest = await made.welcome(of_one(hello))
        other = await made.welcome(hello)

        with monkeypatch.context() as patched:
            patched.setattr(Group, "handle", Mock(side_effect=RuntimeError("a mistake")))
            other.say(Kind.ASK)
            assert await gone(other)
        honest.say(Kind.ASK)
        assert await asyncio.to_thread(honest.receive) == Message(Kind.AWAITED, a=0)
        honest.close()
        assert [str(each) for each in made.service.failures] == ["a mistake"]
        assert "Traceback" in made.reports[0]


async def test_a_rank_that_may_open_no_more_files_hears_which_limit(store, hello, monkeypatch):
    async with running(store) as made:
        receive = socket.recv_fds

        def truncated(*given):
            data, fds, flags, address = receive(*given)
            return data, fds, flags | socket.MSG_CTRUNC, address

        monkeypatch.setattr(connection.socket, "recv_fds", truncated)
        rank = await asyncio.to_thread(Connection, made.name, hello)
        with pytest.raises(ConfigError, match="ulimit -n"):
            await asyncio.to_thread(rank.wait)


# ---- the end


async def test_a_broken_invariant_is_found_at_the_end_of_a_group(store, hello, monkeypatch):
    verify = FeatureBuffer.verify

    def broken(buffer):
        verify(buffer)
        raise AssertionError("a slot table breaks invariant 7")

    monkeypatch.setattr(FeatureBuffer, "verify", broken)
    listener = new_socket()
    listener.bind(abstract_name(f"test-{os.getpid()}-broken"))
    listener.listen()
    made = Running(store, listener, stays=False)
    client = await made.welcome(hello)
    client.close()
    await made.service.ended.wait()
    await made.service.aclose()
    assert [str(each) for each in made.service.failures] == ["a slot table breaks invariant 7"]
    assert made.service.budget.used == hello.share, "its memory may still be there"


async def test_memory_is_freed_in_another_thread(store, hello, monkeypatch):
    threads = list[threading.Thread]()

    def recorded(kind, name):
        usual = getattr(kind, name)

        def called(*given):
            threads.append(threading.current_thread())
            usual(*given)

        monkeypatch.setattr(kind, name, called)

    async with running(store) as made:
        client = await made.welcome(hello)
        recorded(FeatureBuffer, "verify")
        recorded(HostMemory, "close")
        recorded(GroupBuffer, "_close_slots")
        client.close()
    assert len(threads) == 3
    assert threading.current_thread() not in threads


async def test_what_is_read_too_late_is_freed(store, hello, monkeypatch):
    begun, go_on, closed = (threading.Event() for _ in range(3))

    def publish(*given):
        begun.set()
        go_on.wait()
        return SimpleNamespace(close=closed.set)

    monkeypatch.setattr(graphs, "publish", publish)
    async with running(store) as made:
        clients = [await made.stranger() for _ in range(2)]
        for client in clients:
            client.say(Kind.HELLO, **replace(of_one(hello), topology="resident").to_json())
        await asyncio.to_thread(begun.wait)
        await made.service.aclose()
        assert made.service.reading
        assert [await gone(client) for client in clients] == [True, True]
        assert made.service.budget.used == 0
        reading = made.service._graphs._reading
        go_on.set()
        await reading
        await asyncio.to_thread(closed.wait)
        assert not made.service.failures


SERVING = """
import sys
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.host import graphs
from gnndrive.host.process import run
from gnndrive.host.start import Listener

def broken(buffer):
    raise AssertionError("a slot table breaks invariant 7")

def publish(*given):
    print("reading", flush=True)
    threading.Event().wait()

{}
listener = Listener(sys.argv[1]).sock
print("listening", flush=True)
sys.exit(run(listener.detach(), sys.argv[2]))
"""


@pytest.mark.parametrize(("broken", "status"), [("", 0), ("FeatureBuffer.verify = broken", 1)])
def test_the_exit_status_of_the_process_says_so(store, hello, broken, status):
    with started(store.path, broken) as (name, process):
        client = Stranger(name)
        client.enter(hello, store)
        client.close()
        _, said = process.communicate()
    assert process.returncode == status
    assert ("invariant 7" in said) == bool(status)


def test_a_process_without_clients_does_not_read_on(store, hello):
    with started(store.path, "import threading; graphs.publish = publish") as (name, process):
        client = Stranger(name)
        client.say(Kind.HELLO, **replace(hello, topology="resident").to_json())
        assert process.stdout.readline() == "reading\n"
        client.close()
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_store_that_is_not_there_is_one_line(tmp_path):
    with started(tmp_path) as (_, process):
        _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith("the host service cannot open its store: ")
    assert said.count("\n") == 1


@contextmanager
def started(path, change=""):
    """The name of a service that is a process, in which `change` was executed, and the process."""
    name = f"test-{os.getpid()}-process"
    with Program(SERVING.format(change), name, str(path)) as process:
        assert process.stdout.readline() == "listening\n"
        yield name, process

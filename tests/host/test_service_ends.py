"""How a service ends: what it finds broken, frees, and does not wait for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gnndrive import Store
from gnndrive.buffer.devices.host import HostMemory
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.host import graphs
from gnndrive.host.group_buffer import GroupBuffer
from gnndrive.host.messages import Kind
from gnndrive.host.wire import abstract_name, new_socket
from tests.host.processes.strangers import Stranger, of_one
from tests.host.test_service import Running, gone, running
from tests.project_files import ROOT

READING = """
import sys
import threading
from gnndrive.host.deferred import defer

defer("torch")
from gnndrive.host import graphs
from gnndrive.host.process import run

def publish(*given):
    print("reading", flush=True)
    threading.Event().wait()

graphs.publish = publish
sys.exit(run(int(sys.argv[1]), sys.argv[2]))
"""
FAILING = """
import sys
from gnndrive.host.deferred import defer

defer("torch")
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.host.process import run

def broken(buffer):
    raise AssertionError("a slot table breaks invariant 7")

FeatureBuffer.verify = broken
sys.exit(run(int(sys.argv[1]), sys.argv[2]))
"""


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


def started(store: Store, *what: str) -> tuple[Stranger, subprocess.Popen[str]]:
    """A service as a process, and its first client."""
    with new_socket() as listener:
        name = f"test-{os.getpid()}-{listener.fileno()}"
        listener.bind(abstract_name(name))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, *what, str(listener.fileno()), str(store.path)], cwd=ROOT, text=True,
            pass_fds=[listener.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return Stranger(name), process


@pytest.mark.parametrize("broken", [False, True])
def test_the_exit_status_of_the_process_says_so(store, hello, broken):
    client, process = started(store, *(["-c", FAILING] if broken else ["-m", "gnndrive.host"]))
    client.enter(hello, store)
    client.close()
    _, said = process.communicate()
    assert process.returncode == broken
    assert ("invariant 7" in said) == broken


def test_a_process_without_clients_does_not_read_on(store, hello):
    client, process = started(store, "-c", READING)
    client.say(Kind.HELLO, **replace(hello, topology="resident").to_json())
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    client.close()
    assert process.communicate() == ("", "")
    assert process.returncode == 0


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
        assert reading is not None
        go_on.set()
        await reading
        await asyncio.to_thread(closed.wait)
        assert not made.service.failures


def test_a_store_that_is_not_there_is_one_line(tmp_path):
    with new_socket() as listener:
        run = subprocess.run(
            [sys.executable, "-m", "gnndrive.host", str(listener.fileno()), str(tmp_path)],
            pass_fds=[listener.fileno()], capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("the host service cannot open its store: ")
    assert run.stderr.count("\n") == 1

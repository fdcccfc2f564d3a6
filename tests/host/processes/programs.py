"""What ranks do in `test_*.py` of this folder: functions that `starter.py` runs in each rank."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
import torch.distributed as dist

import gnndrive
from gnndrive import (
    ClosedError,
    ConfigError,
    HostServiceError,
    LinkNeighborLoader,
    NeighborLoader,
    PeerError,
    Store,
)  # fmt: skip
from gnndrive.common.errors import LateError
from gnndrive.host.connect import service_of
from gnndrive.host.connection import Connection
from gnndrive.host.inquiry import ask
from gnndrive.host.start import Listener
from gnndrive.loader import host_service
from gnndrive.loader.runtime import Runtime

SIZE = 16
DIFFERING: tuple[tuple[str, Any, Any], ...] = (
    ("memory", "40MB", "50MB"), ("buffer", "100KB", "90KB"), ("num_neighbors", [4, 3], [4, 2]),
    ("io_depth", 32, 64), ("extractors", 2, 3),
    ("host_service", True, False),
)  # fmt: skip
"""Arguments in which ranks must not differ, each with two values."""
SMALL = {"batch_size": 2}  # 65 batches in an epoch


class Rank:
    """This rank: its number of how many, and the folder of the run."""

    def __init__(self, number: int, world: int, folder: Path) -> None:
        self.number, self.world, self.folder = number, world, folder

    def everyone(self, told: Any) -> list[Any]:
        """What all ranks tell, by rank."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, told)
        return found


def loader(store: str | Store, links: bool = False, **arguments: Any) -> NeighborLoader:
    """A loader whose ranks share what they can."""
    opened = gnndrive.open(store) if isinstance(store, str) else store
    given: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": SIZE, "shuffle": True}
    given |= {"seed": 5, "buffer": "100KB", "ranks": True, "host_service": True}
    kind: Any = LinkNeighborLoader if links else NeighborLoader
    made: NeighborLoader = kind(opened, **(given | arguments))
    return made


def digest(batch: Any) -> str:
    """A text that two batches share if their content is the same, bit for bit."""
    return sha256(b"".join(_bytes(batch.to_dict()))).hexdigest()


def _bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _bytes(value[key])
    elif isinstance(value, torch.Tensor):
        yield value.contiguous().numpy().tobytes()
    else:
        yield repr(value).encode()


def services() -> list[int]:
    """The process ids of the host services that this rank has started and that run."""
    children = psutil.Process().children()
    return [each.pid for each in children if "gnndrive.host" in each.cmdline()]


def refused(start: Callable[[], object]) -> str:
    """The message of the ConfigError that `start` raises."""
    try:
        start()
    except ConfigError as error:
        return str(error)
    raise AssertionError("no error")


def left_behind() -> list[str]:
    """What this process still has of host services that have ended: descriptors, mappings, threads
    and records of ended processes."""
    for thread in threading.enumerate():
        if thread.name == "gnndrive-service":
            thread.join()
    gc.collect()
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [each for each in (*links, *maps) if "gnndrive-" in each]
    return found + [str(child) for child in psutil.Process().children()]


# ---- programs


def several(rank: Rank, asked: list[dict[str, Any]]) -> list[list[str]]:
    """An epoch of each of several loaders, of which `asked` has the arguments."""
    found = []
    for arguments in asked:
        with loader(**arguments) as made:
            found.append([digest(batch) for batch in made])
            assert made.stats()["engine"] == "host service"
    return found


def much(rank: Rank, store: str) -> dict[str, Any]:
    """Two loaders of one run, in many ways; what they yield, by what it is called."""
    opened, found = gnndrive.open(store), dict[str, Any]()
    # A second store object, as a script may open one for validation.
    with loader(opened) as train, loader(store, shuffle=False, input_nodes=range(50)) as valid:
        found["train"], found["valid"] = [], []
        for epoch in range(2):
            found["train"].append([])
            for batch in train:
                found["train"][epoch].append(digest(batch))
                dist.barrier()  # as data parallel training does after each step
            found["valid"].append([digest(batch) for batch in valid])
        # Each rank leaves the epoch somewhere else.
        found["broken off"] = [digest(batch) for batch in islice(train, 1 + rank.number)]
        iterator = iter(train)
        next(iterator)
        second = iter(train)
        try:
            list(iterator)
        except ClosedError as error:
            found["first iterator"] = str(error)
        found["second iterator"] = list(map(digest, second))
        iterator = iter(train)
        found["begun"] = [digest(next(iterator)) for _ in range(2)]
        state = train.state_dict()
        iterator.close()
    with loader(opened) as resumed:
        resumed.load_state_dict(state)
        found["resumed"] = [digest(batch) for batch in resumed]
    return found


def own_topologies(rank: Rank, store: str, in_order: bool) -> list[str]:
    """Two ranks, one of which has its adjacency in memory, the other on disk."""
    topology = ("resident", "direct")[rank.number]
    with loader(store, topology=topology, in_order=in_order) as made:
        return [digest(batch) for batch in made]


def differing(rank: Rank, store: str, other: str) -> list[str]:
    """The last rank has one other argument, and then another; the errors that this rank gets."""
    last = rank.number == rank.world - 1
    found = []
    for name, usual, of_last in (*DIFFERING, ("store", store, other)):
        with loader(**{"store": store, name: of_last if last else usual}) as made:
            found.append(refused(partial(iter, made)))
            assert not made.stats(), "nothing was started"
    return found


def limiting(rank: Rank, limit: str) -> str:
    """The path of a Python that has a limit, as `ulimit` takes it."""
    path = rank.folder / f"python{limit.replace(' ', '')}-{rank.number}"
    path.write_text(f'#!/bin/sh\nulimit {limit}\nexec {sys.executable} "$@"\n')
    path.chmod(0o700)
    return str(path)


@contextmanager
def another_store(rank: Rank, store: Path, other: str | None) -> Iterator[None]:
    """The store is not there within the `with` block, or another store is in its place."""
    moved = store.with_suffix(".moved")
    rank.everyone(None)
    if rank.number == 0:
        store.rename(moved)
        if other is not None:
            store.symlink_to(other)
    rank.everyone(None)
    yield
    rank.everyone(None)
    if rank.number == 0:
        store.unlink(missing_ok=True)
        moved.rename(store)
    rank.everyone(None)


def never_starting(rank: Rank, store: str, other: str) -> list[str]:
    """The first rank's service cannot start, for one reason after another; the errors that this
    rank gets. In the end the service starts."""
    found = []
    with loader(store) as made:
        executables = ["/nonexistent/python", "/etc/passwd", "/bin/false", ""]
        executables.append(limiting(rank, "-f 8"))  # no shared memory of more than 4 KB
        for executable in executables:
            with patch.object(sys, "executable", executable):
                found.append(refused(lambda: iter(made)))
        for instead in (None, other):
            with another_store(rank, Path(store), instead):
                found.append(refused(lambda: iter(made)))
        wait = Connection.wait

        def wait_with_few_files(connection: Connection) -> None:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            few = len(os.listdir("/proc/self/fd")) + 1 if rank.number == 1 else soft
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
            try:
                wait(connection)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        with patch.object(Connection, "wait", wait_with_few_files):
            found.append(refused(lambda: iter(made)))
        assert len(list(made)) == len(made)
    return found


def ranks_of_a_service(rank: Rank, name: str) -> dict[str, Any]:
    """An epoch over the store of a service by hand, and what that reports in its middle."""
    store = gnndrive.connect(name)
    address = service_of(store)
    assert address is not None
    with loader(store) as made:
        iterator = iter(made)
        batches = [digest(batch) for batch in islice(iterator, 2)]
        dist.barrier()
        clients = [(each.rank, each.ranks, each.group) for each in ask(address).clients]
        dist.barrier()
        batches += [digest(batch) for batch in iterator]
        engine = made.stats()["engine"]
    return {"batches": batches, "clients": clients, "engine": engine, "started": services()}


# ---- one of them, or the service, ends or stops in an epoch


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def epoch(made: NeighborLoader, at: int, act: Callable[[], object] | None) -> dict[str, Any]:
    """Load an epoch, and call `act` after the first `at` batches; what came, and the error."""
    found: dict[str, Any] = {"batches": [], "error": None}
    try:
        for step, batch in enumerate(made):
            found["batches"].append(digest(batch))
            if step + 1 == at and act is not None:
                act()
    except (PeerError, HostServiceError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        found["error"] = "KeyboardInterrupt"
    return found


def one_dies(rank: Rank, store: str, victim: int, at: int, how: str) -> dict[str, Any]:
    """One of two ranks ends in the middle of an epoch."""
    made = loader(store, **SMALL)
    if rank.number != victim:
        with made:
            found = epoch(made, 0, None)
        if how == "leave a child":
            (rank.folder / "fifo").write_text("")  # the child goes on
        return found
    ways: dict[str, Callable[[], object]] = {
        "kill": die, "os._exit": lambda: os._exit(3), "sys.exit": lambda: sys.exit(4),
        "raise": lambda: 1 // 0, "leave a child": lambda: leave_child(rank),
    }  # fmt: skip
    return epoch(made, at, ways[how])


def error_of(start: Callable[[], object]) -> str:
    """The type of the error that `start` raises."""
    try:
        start()
    except Exception as error:
        return type(error).__name__
    return ""


def leave_child(rank: Rank) -> None:
    """Fork a child, as a DataLoader forks workers, and die; the child lives until it is told."""
    os.mkfifo(rank.folder / "fifo")
    if os.fork():
        die()
    (rank.folder / "fifo").read_text()
    os._exit(0)


def service_dies(rank: Rank, store: str, at: int) -> dict[str, Any]:
    """The first rank kills the service in the middle of an epoch."""

    def kill_service() -> None:
        [service] = services()
        os.kill(service, signal.SIGKILL)

    with loader(store, **SMALL) as made:
        found = epoch(made, at, kill_service if rank.number == 0 else None)
        found["again"] = error_of(lambda: next(iter(made)))
    return found


def interrupted(rank: Rank, store: str, at: int) -> dict[str, Any]:
    """Ctrl-C: all processes of the terminal's group get SIGINT in the middle of an epoch."""
    with loader(store, **SMALL) as made:
        last = rank.world - 1
        found = epoch(made, at, lambda: os.killpg(0, signal.SIGINT) if rank.number == last else 0)
    found["batches"] = len(found["batches"])
    return found


def stopped(rank: Rank, store: str, at: int, service: bool) -> dict[str, Any]:
    """The last rank, or the service, is stopped in the middle of an epoch, until the first rank has
    got an error that says so; then it goes on."""
    processes = rank.everyone(os.getpid())
    with loader(store, timeout=1, **SMALL) as made:
        iterator = iter(made)
        target = [*services(), *processes][0] if service else processes[-1]
        found: dict[str, Any] = {"batches": [], "errors": []}
        while True:
            try:
                found["batches"].append(digest(next(iterator)))
            except StopIteration:
                return found
            except LateError as error:  # other ranks may be slow, and be the reason
                found["errors"].append(str(error))
                if rank.number == 0:
                    os.kill(target, signal.SIGCONT)
            stops = rank.number == (0 if service else rank.world - 1)
            if stops and len(found["batches"]) == at:
                os.kill(target, signal.SIGSTOP)


# ---- while ranks come together


@contextmanager
def dying_at(point: str) -> Any:
    """This process dies at a point of coming together."""

    def dying(*arguments: Any, **named: Any) -> None:
        die()

    after = {"start": (Listener, "start_service"), "connect": (Connection, "__init__")}
    before = {
        "plan": (host_service, "buffer_settings"), "welcome": (Connection, "wait"),
        "use": (Runtime, "__init__"),
    }  # fmt: skip
    if point in before:
        with patch.object(*before[point], dying):
            yield
        return
    thing, name = after[point]
    usual = getattr(thing, name)
    with patch.object(thing, name, lambda *given: [usual(*given), die()]):
        yield


def one_dies_early(rank: Rank, store: str, victim: int, point: str) -> str:
    """One rank dies while they come together; the error that this rank gets."""
    with loader(store) as made:
        if rank.number == victim:
            with dying_at(point):
                list(made)
        return error_of(lambda: list(made))

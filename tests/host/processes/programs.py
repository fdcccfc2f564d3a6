"""What ranks do in `test_*.py` of this folder: functions that `starter.py` runs in each rank."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

import gnndrive
from gnndrive import ClosedError, ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.host.connection import Connection

SIZE = 16
DIFFERING: tuple[tuple[str, Any, Any], ...] = (
    ("memory", "40MB", "50MB"), ("buffer", "100KB", "90KB"), ("num_neighbors", [4, 3], [4, 2]),
    ("io_depth", 32, 64), ("extractors", 2, 3),
    ("host_service", True, False),
)  # fmt: skip
"""Arguments in which ranks must not differ, each with two values."""


class Rank:
    """This rank.

    Attributes:
        number, world: which rank, of how many.
        folder: of this run.
    """

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


def after_step(rank: Rank) -> None:
    """What data parallel training does after each step: wait for all ranks."""
    dist.barrier()


def refused(start: Callable[[], object]) -> str:
    """The message of the ConfigError that `start` raises."""
    try:
        start()
    except ConfigError as error:
        return str(error)
    raise AssertionError("no error")


@contextmanager
def replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute has another value within the `with` block."""
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        setattr(thing, name, before)


@contextmanager
def limited(limit: int, most: int | None) -> Iterator[None]:
    """This process, and those that it starts, have a limit within the `with` block."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft if most is None else most, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))


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
                after_step(rank)
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
        # No file, and so no shared memory, of more than 4 KB; 60 MB of addresses.
        executables += [limiting(rank, "-f 8"), limiting(rank, "-v 60000")]
        for executable in executables:
            with replaced(sys, "executable", executable):
                found.append(refused(lambda: iter(made)))
        for instead in (None, other):
            with another_store(rank, Path(store), instead):
                found.append(refused(lambda: iter(made)))
        wait = Connection.wait

        def wait_with_few_files(connection: Connection) -> None:
            used = len(os.listdir("/proc/self/fd"))
            with limited(resource.RLIMIT_NOFILE, used + 1 if rank.number == 1 else None):
                wait(connection)

        with replaced(Connection, "wait", wait_with_few_files):
            found.append(refused(lambda: iter(made)))
        assert len(list(made)) == len(made)
    return found

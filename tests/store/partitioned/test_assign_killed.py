"""An assignment that is killed at any moment goes on, and ends with the same bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnndrive.common.errors import StoreError
from gnndrive.store import Store
from gnndrive.store.partitioned import edge_stream, symmetric
from gnndrive.store.partitioned.assign import assign
from tests.store.partitioned.assigned import MEMORY, Chosen, draw_edges, make_store

CALLS = ("pwrite", "ftruncate", "fsync", "rename", "unlink")
"""Calls of the operating system that change the disk."""
NODES, EDGES = 400, 3000
LEAST_CALLS = {"random": 6, "metis": 14, "ldg": 60}  # by the last phase


class Work:
    """Assigning the nodes of one store, always the same.

    Attributes:
        folder: where.
        phases: the phases that were told, in order.
    """

    def __init__(self, store: Store, folder: Path, method: str) -> None:
        self.store, self.folder, self._chosen = store, folder, Chosen(method, 8)
        self.phases: list[str] = []
        self.folder.mkdir()

    def run(self, before: Callable[[], object]) -> None:
        """Assign, or go on; `before` is called before each of `CALLS` and each time progress is
        told."""

        def tell(what: str, _: int, __: int) -> None:
            if what not in self.phases:
                self.phases.append(what)
            before()

        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, _after(before, getattr(os, name)))
            assign(self.store, self._chosen, self.folder, MEMORY, tell)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()


def _after(before: Callable[[], object], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **given: Any) -> Any:
        before()
        return function(*arguments, **given)

    return call


@pytest.fixture(params=["ldg", "ldg in a file", "random", "metis"])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    for module in (edge_stream, symmetric):
        monkeypatch.setattr(module, "PART_BYTES", 5 * 4096)
    if request.param == "ldg in a file":
        monkeypatch.setattr(symmetric, "NUMBERS_MOST", 2500)
    store = make_store(tmp_path / "graph.gnn", NODES, draw_edges(NODES, EDGES))
    return Work(store, tmp_path / "work", request.param.split()[0])


def killed_at(work: Work, at: int) -> bool:
    """Assign in a child that kills itself at call `at`; returns whether it came so far."""
    child = os.fork()
    if not child:
        left = at

        def kill() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work.run(kill)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_killed_at_every_call(work: Work):
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    work.run(count)
    whole = work.files()
    assert set(whole) == {"part.npy"}
    assert calls >= LEAST_CALLS[work.phases[-1].split()[0]]
    step = 1 if work.phases[-1] != "metis" else 4  # METIS's process takes a while to start
    for at in range(1, calls + 1, step):
        work.clear()
        assert killed_at(work, at)
        if at % 3 == 0:
            killed_at(work, at // 2)
        work.run(lambda: None)
        assert work.files() == whole
    assert not killed_at(work, calls + 1)


def test_a_disk_that_fails_at_every_call(work: Work):
    """A StoreError, no result, and a folder with which the next call goes on."""
    work.run(lambda: None)
    whole, at, failed, runs = work.files(), 0, 0, 0
    while True:
        work.clear()
        at += 1 if work.phases[-1] != "metis" else 3
        left = at

        def fail() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(28, "simulated")

        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in CALLS:
                    patch.setattr(os, name, _after(fail, getattr(os, name)))
                work.run(lambda: None)
        except StoreError:
            failed += 1
        if left > 0:
            break
        runs += 1
        work.run(lambda: None)
        assert work.files() == whole
    assert failed == runs >= 2

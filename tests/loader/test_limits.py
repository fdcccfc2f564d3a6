"""Threads and files that the system refuses are errors that name the limit, and leave nothing."""

from __future__ import annotations

import errno
import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gnndrive
from gnndrive import ConfigError, Store, StoreError
from gnndrive.common.ffi import ffi
from gnndrive.common.limits import refusal
from gnndrive.disk.engines import uring
from tests.loader.conftest import Make

SETTINGS: list[dict[str, Any]] = [
    {"samplers": 2},
    {"samplers": 1, "topology": "direct"},
    {"samplers": 1, "topology": "direct", "engine": "threads", "io_depth": 2},
]


class Refusal:
    """Has `Thread.start` fail as in CPython once `allowed` threads have started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = 0
        started = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.allowed == 0:
                raise RuntimeError("can't start new thread")
            self.allowed -= 1
            started(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "direct", "threads"])
def test_whichever_thread_is_refused(
    make: Make, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # a loader that an earlier test dropped is closed in a thread
    loader = make(**settings)
    refusal, before, refused, said = Refusal(monkeypatch), held(), 0, list[str]()
    while refused < 100:
        refusal.allowed = refused
        try:
            batches = iter(loader)
            break
        except ConfigError as error:
            said.append(str(error))
        assert not has_more(before)
        refused += 1
    refusal.allowed = 100
    assert len(list(batches)) == len(loader)
    assert settings["samplers"] + 3 <= refused < 100
    assert all("ulimit -u" in text and "samplers=1" in text for text in said)


def held() -> tuple[int, int]:
    """Threads and file descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def has_more(before: tuple[int, int]) -> bool:
    """Whether the process has more threads or files now; those of earlier tests may have ended."""
    return any(now > then for now, then in zip(held(), before, strict=True))


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """A context in which this process can open that many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = os.listdir("/proc/self/fd")
    used = {int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")}
    limit = 0
    while count >= 0:  # the limit is of the numbers of files, of which the lowest free is taken
        count -= limit not in used
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit - 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "direct", "threads"])
def test_whichever_file_is_refused(make: Make, settings: dict[str, Any]) -> None:
    before, refused, said = held(), 0, list[str]()
    while refused < 100:
        loader = make(**settings)
        with files_left(refused):
            try:
                batches = iter(loader)
                break
            except (ConfigError, StoreError) as error:
                said.append(str(error))
        loader.close()
        assert not has_more(before)
        refused += 1
    assert len(list(batches)) == len(loader)
    assert 3 <= refused < 100
    assert all("ulimit -n" in text for text in said)


def test_a_store_says_so_too(store: Store) -> None:
    with files_left(0), pytest.raises(ConfigError, match="refuses to open another file"):
        gnndrive.open(store.path)


def test_the_rings_own_thread_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        arguments[-1][0] = -errno.EAGAIN
        return ffi.NULL

    monkeypatch.setattr(uring, "lib", SimpleNamespace(gd_ring_new=refuse))
    monkeypatch.setattr(uring, "why_not_uring", lambda: None)
    before = held()
    with pytest.raises(ConfigError, match=r"refuses to start another thread .* \(ulimit -u\)"):
        iter(make(engine="uring"))
    assert not has_more(before)


def test_the_container_may_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids.max").write_text("77\n")
    path = str(tmp_path / "pids.max")
    monkeypatch.setattr("gnndrive.common.limits._CGROUP_LIMITS", (path, "/no/such/file"))
    assert "and the container's (pids.max) is 77;" in str(refusal(errno.EAGAIN))

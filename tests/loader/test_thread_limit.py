"""A thread that the system refuses is an error that names the limit, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.threads import limit_error
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
    loader = make(**settings)
    refusal, before, refused, said = Refusal(monkeypatch), held(), 0, list[str]()
    while refused < 100:
        refusal.allowed = refused
        try:
            batches = iter(loader)
            break
        except ConfigError as error:
            said.append(str(error))
        assert held() == before
        refused += 1
    refusal.allowed = 100
    assert len(list(batches)) == len(loader)
    assert settings["samplers"] + 3 <= refused < 100
    assert all("ulimit -u" in text and "samplers=1" in text for text in said)


def held() -> tuple[int, int]:
    """Threads and file descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def test_the_rings_own_thread_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        arguments[-1][0] = -errno.EAGAIN
        return ffi.NULL

    monkeypatch.setattr(uring, "lib", SimpleNamespace(gd_ring_new=refuse))
    monkeypatch.setattr(uring, "why_not_uring", lambda: None)
    before = held()
    with pytest.raises(ConfigError, match=r"refuses to start another thread .* \(ulimit -u\)"):
        iter(make(engine="uring"))
    assert held() == before


def test_the_container_may_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids.max").write_text("77\n")
    path = str(tmp_path / "pids.max")
    monkeypatch.setattr("gnndrive.common.threads._CGROUP_LIMITS", (path, "/no/such/file"))
    assert "and the container's (pids.max) is 77;" in str(limit_error())

"""What ranks do in `test_deaths.py`: one of them, or the service, ends or stops in an epoch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from gnndrive import HostServiceError, NeighborLoader, PeerError
from gnndrive.common.errors import LateError
from gnndrive.host.connection import Connection
from gnndrive.host.start import Listener
from gnndrive.loader import host_service
from gnndrive.loader.runtime import Runtime
from tests.host.processes.programs import Rank, digest, loader, replaced, services

SMALL = {"batch_size": 2}  # 165 batches in an epoch


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


def epoch_again(made: NeighborLoader) -> str:
    """The error of an iterator after another rank has died."""
    try:
        next(iter(made))
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
        found["again"] = epoch_again(made)
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
        with replaced(*before[point], dying):
            yield
        return
    thing, name = after[point]
    usual = getattr(thing, name)
    with replaced(thing, name, lambda *given: [usual(*given), die()]):
        yield


def one_dies_early(rank: Rank, store: str, victim: int, point: str) -> str:
    """One rank dies while they come together; the error that this rank gets."""
    with loader(store) as made:
        if rank.number == victim:
            with dying_at(point):
                list(made)
        try:
            list(made)
        except Exception as error:
            return type(error).__name__
    return ""

"""`run_service`: run a service until its clients have left, or until it is told to end.

`gnndrive serve` calls it; `serve_folder` is the process that ranks have started (`__main__.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gnndrive.common.errors import GNNDriveError
from gnndrive.host.service import Service
from gnndrive.store.reader import open as open_store

ENDED_BY = 128  # exit statuses of processes that a signal has ended begin here


async def run_service(
    service: Service,
    ready: Callable[[], object] = lambda: None,
    drains: Callable[[], object] = lambda: None,
) -> int:
    """Run a service and close it. The first SIGTERM or Ctrl-C drains it, a second one ends it at
    once: then its clients get HostServiceError. If it ends while it reads the graph, which may take
    minutes, the process ends here.

    Args:
        ready: called when signals have that meaning.
        drains: called when it begins to drain.

    Returns:
        The exit status: 0, or 1 if something went wrong in the service itself, or 128 and the
        number of the signal that ended it at once.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, found: service.failed(found.get("exception", RuntimeError(found["message"])))
    )
    stopped: asyncio.Future[int] = loop.create_future()

    def signalled(number: int) -> None:
        if not service.draining:
            drains()
            service.drain()
        elif not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    gc.freeze()  # imported modules; else the service's own collections take a fifth of a second
    ready()
    ended = loop.create_task(service.ended.wait())
    both: list[asyncio.Future[Any]] = [ended, stopped]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    await service.aclose()
    status = ENDED_BY + stopped.result() if stopped.done() else 0
    if service.failures:
        status = 1
    if service.reading:
        _exit(status)
    return status


def _exit(status: int) -> None:
    """End the process, without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has ended, or it is closed
            stream.flush()
    os._exit(status)


def serve_folder(listener: int, path: str) -> int:
    """Serve the store in the folder `path` on the socket whose descriptor is `listener`; returns
    the exit status."""
    with socket.socket(fileno=listener) as sock:
        try:
            store = open_store(path)
        except GNNDriveError as error:
            print(f"the host service cannot open its store: {error}", file=sys.stderr)
            return 2

        async def serve() -> int:
            report = partial(print, file=sys.stderr, flush=True)
            return await run_service(Service(store, sock, report))

        return asyncio.run(serve())

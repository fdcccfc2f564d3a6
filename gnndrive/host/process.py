"""The process of a host service, once Python has started: see `__main__.py`."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

from gnndrive.common.errors import GNNDriveError
from gnndrive.host.service import Service
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


async def serve(listener: socket.socket, store: Store) -> bool:
    """Serve a store until the last client has left; returns whether nothing went wrong here."""
    service = Service(store, listener, lambda text: print(text, file=sys.stderr, flush=True))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, found: service.failed(found.get("exception", RuntimeError(found["message"])))
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.drain)
    await service.ended.wait()
    await service.aclose()
    return not service.failures


def run(listener: int, path: str) -> int:
    """Serve the store in the folder `path` on the socket whose descriptor is `listener`; returns
    the exit status."""
    with socket.socket(fileno=listener) as sock:
        try:
            store = open_store(path)
        except GNNDriveError as error:
            print(f"the host service cannot open its store: {error}", file=sys.stderr)
            return 2
        return 0 if asyncio.run(serve(sock, store)) else 1

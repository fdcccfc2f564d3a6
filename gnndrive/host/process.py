"""The process of a host service, once Python has started: see `__main__.py`."""

from __future__ import annotations

import asyncio
import socket
import sys

from gnndrive.common.errors import GNNDriveError
from gnndrive.host.run import run_service
from gnndrive.host.service import Service
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


async def serve(listener: socket.socket, store: Store) -> int:
    """Serve a store until the last client has left; returns the exit status."""
    service = Service(store, listener, lambda text: print(text, file=sys.stderr, flush=True))
    return await run_service(service)


def run(listener: int, path: str) -> int:
    """Serve the store in the folder `path` on the socket whose descriptor is `listener`; returns
    the exit status."""
    with socket.socket(fileno=listener) as sock:
        try:
            store = open_store(path)
        except GNNDriveError as error:
            print(f"the host service cannot open its store: {error}", file=sys.stderr)
            return 2
        return asyncio.run(serve(sock, store))

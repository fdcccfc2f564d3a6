"""The process of a host service, once Python has started: see `__main__.py`."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

from gnndrive.host.service import Service
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

NOBODY_S = 60.0  # how long the first client is waited for


async def serve(listener: socket.socket, store: Store) -> None:
    """Serve a store until the last client has left."""
    service = Service(store, listener, lambda text: print(text, file=sys.stderr))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.drain)
    loop.call_later(NOBODY_S, service.end_if_unused)
    await service.ended.wait()
    await service.aclose()


def run(listener: int, store: str) -> None:
    """Serve the store in the folder `store` on the socket whose descriptor is `listener`."""
    asyncio.run(serve(socket.socket(fileno=listener), open_store(store)))

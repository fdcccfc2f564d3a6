"""The process of a host service: `python -m gnndrive.host LISTENER STORE`.

A rank starts it (`start.py`) with a listening socket; it ends when its last client has left.
`gnndrive serve` is the same for people.
"""

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


def main() -> None:
    """Serve the store that the command line names."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(serve(listener, open_store(sys.argv[2])))


if __name__ == "__main__":
    main()

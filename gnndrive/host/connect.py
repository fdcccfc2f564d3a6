"""`connect`: open the store that a service of this user serves (`gnndrive serve`).

Loaders over such a store use the service: it has the graph in memory once for all of them, and a
feature buffer for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gnndrive.common.errors import StoreError
from gnndrive.host.connection import ask
from gnndrive.host.names import SCHEME, address_of, checked_name
from gnndrive.store.data_view import Overlay
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


class ServedStore(Store):
    """A store that was opened through a service; made by `gnndrive.connect`. Pickles as the
    service's name."""

    _service = ""

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[str, str, Overlay]]:
        return (_connect_same, (self._service, self.identity, self.overlay))


def connect(name: str) -> Store:
    """Open the store that a service serves, which `gnndrive serve STORE` has started on this
    machine.

    Loaders over it share the graph of the service, and each has a feature buffer there, which its
    `memory=` counts. They need the service until they are closed.

    Args:
        name: the service's name, "papers100M" or "gnndrive://papers100M".

    Returns:
        The open store.

    Raises:
        ConfigError: it is no name of a service.
        HostServiceError: this user has no such service, or it does not answer.
        StoreError: the store was written again since the service opened it, or cannot be opened.
    """
    name = checked_name(name)
    report = ask(address_of(name))
    store = open_store(report.path)
    if store.identity != report.identity:
        raise StoreError(
            f"{store.path} was written again since {SCHEME}{name} opened it: end that service and "
            "start it again"
        )
    served = object.__new__(ServedStore)
    served.__dict__.update(store.__dict__, _service=name)
    return served


def opened(data: Any) -> Any:
    """The store at a path, or that of a service if `data` is a text such as
    "gnndrive://papers100M", with the errors of `open` or `connect`; else `data`."""
    if isinstance(data, str) and data.startswith(SCHEME):
        return connect(data)
    return open_store(data) if isinstance(data, str | os.PathLike) else data


def service_of(store: Store) -> str | None:
    """The address of the service through which a store was opened; None: it was opened from its
    folder."""
    return address_of(store._service) if isinstance(store, ServedStore) else None


def _connect_same(name: str, identity: str, overlay: Overlay) -> Store:
    """Open a store that was pickled."""
    store = connect(name)
    if store.identity != identity:
        raise StoreError(
            f"{SCHEME}{name} serves another store than the one that was pickled: open it again "
            "with gnndrive.connect"
        )
    store.__dict__["overlay"] = overlay
    return store

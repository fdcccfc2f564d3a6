"""Warn of attributes that a program cannot reach as `store.NAME`, because a store has that name
itself: `store.table` is a method. `store["table"]` and batches have the attribute all the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.reader import Store
from gnndrive.store.store_view import OWN
from gnndrive.store.types import Types
from gnndrive.store.views import StoredEdges, StoredNodes


def warn_own_names(
    names: Iterable[str], types: Types, values: Mapping[NodeKey | EdgeKey, Iterable[str]]
) -> None:
    """Warn once if attributes have names of a store's own methods and properties.

    Args:
        names: the full names of the store's arrays, "nodes/x".
        types: its types.
        values: the names of its values of the whole graph, and of its types.
    """
    found = []
    for type, given in values.items():
        of_type = Store if type is None else StoredNodes if isinstance(type, str) else StoredEdges
        found += [name for name in given if hasattr(of_type, name) or name in OWN]
    for name in names:
        place = types.place(name)
        if place.group not in ("nodes", "edges"):
            continue
        view = StoredNodes if place.group == "nodes" else StoredEdges
        own = hasattr(view, place.leaf)
        if not types.hetero:
            own = place.leaf in OWN or hasattr(Store, place.leaf)
        if own:
            found.append(place.leaf)
    if found:
        given = ", ".join(sorted(set(found)))
        warnings.warn(
            f"a store has methods or properties of these names: {given}. Its attributes of these "
            "names are in batches, and here under store[NAME], not as store.NAME; to have them "
            "there too, give them other names before the import",
            stacklevel=3,
        )

"""The classes of the rows that a policy ranks, for the feature buffers of loaders and of hosts.

A policy that looks ahead works without classes: they only rank the rows that no known batch needs.
It does so if the graph cannot be read, so that the damage surfaces at the batch that needs the
damaged part, if any does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.plugins import find
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.reader import Store
from gnndrive.store.row_classes import Classes, row_classes

# The scores that could not be computed; their graph is not read again for this open store.
_failed: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()


def policy_classes(policy: Any, store: Store, tables: Iterable[FeatureTable]) -> dict[str, Classes]:
    """The classes of the rows of tables of nodes, by the tables' names. The first time for a store
    this reads its graph, so the event loop must not call it.

    Returns:
        The classes; none if the policy has no score, or if it looks ahead and the graph cannot be
        read, of which a warning tells.

    Raises:
        ConfigError: there is no such policy or score.
        StoreError: the graph is damaged or cannot be read, and the policy knows nothing else.
    """
    kind: type[Policy] | None = None if policy is None else find("policies", policy)
    if kind is None or kind.score is None:
        return {}
    if kind.looks_ahead and kind.score in _failed.get(store, ()):
        return {}
    try:
        return {
            table.name: row_classes(store, table.type, kind.score)  # type: ignore[arg-type]
            for table in tables
            if not table.of_edges
        }
    except (StoreError, ReadError) as error:
        if not kind.looks_ahead:
            raise StoreError(f"{error}; or give tuning=Tuning(policy='lru')") from error
        _failed.setdefault(store, set()).add(kind.score)
        warnings.warn(
            f"the rows of {store.path} have no classes, so that rows which no queued sample needs "
            f"leave in the order of their release: {error}",
            stacklevel=2,
        )
    return {}

"""A store held against the source that it was imported from."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnndrive import Store


def same_edges(store: Store, type: Any, expected: np.ndarray) -> None:
    """Hold each edge of a store against the source's."""
    edges = store.edges(type)
    found = np.empty((2, edges.num_edges), np.int64)
    assert edges.edge_id is not None
    found[0, edges.edge_id] = edges.indices
    found[1, edges.edge_id] = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    np.testing.assert_array_equal(found, expected)


def same_array(store: Store, name: str, dtype: str, expected: Any) -> None:
    """Hold an array of a store, dtype and all, against the source's."""
    array = store.array(name)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)

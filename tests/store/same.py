"""Compare a store with the source that it was imported from."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnndrive import Store


def same_edges(store: Store, type: Any, expected: np.ndarray) -> None:
    """Check that the edges of a store equal the source's, by edge id."""
    edges = store.edges(type)
    found = np.empty((2, edges.num_edges), np.int64)
    assert edges.edge_id is not None
    found[0, edges.edge_id] = edges.indices
    found[1, edges.edge_id] = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    np.testing.assert_array_equal(found, expected)


def same_array(store: Store, name: str, dtype: str, expected: Any) -> None:
    """Check the dtype of an array of a store, and that its values equal the source's."""
    array = store.array(name)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)

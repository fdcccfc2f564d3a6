"""`EdgeValues`: the weights or attributes of the in-edges of a batch, for layers that take them.

Rows of edges lie in the order in which edges were given, and batches take edges in the order of the
CSC graph. Where both are the same, a batch's rows are one stretch of the file; elsewhere they are
read row by row in planned reads, which takes a request for nearly every edge.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeKey
from gnndrive.disk.row_reader import RowReader
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges


class EdgeValues:
    """One attribute of a store's edges, whose longest row has `row_bytes`; ConfigError: edges of a
    type have no such attribute."""

    def __init__(
        self, store: Store, edges: Iterable[StoredEdges], name: str, reader: RowReader
    ) -> None:
        self._reader, self._views = reader, {each.type: each for each in edges}
        self._names = {}
        self.row_bytes = 0
        for key, view in self._views.items():
            if name not in view:
                whose = "" if key is None else f" of {key}"
                known = ", ".join(view.names) or "none"
                raise ConfigError(
                    f"the edges{whose} of {store.path} have no attribute {name!r}"
                    f"{did_you_mean(name, view.names)}; they have: {known}"
                )
            self._names[key] = view.name_of(name)
            self.row_bytes = max(self.row_bytes, view.table(name).row_bytes)

    def read(self, key: EdgeKey, first: int, last: int) -> torch.Tensor:
        """The rows of the edges at the CSC positions [first, last), [n, *row]; blocks."""
        numbers = np.arange(first, last)
        if (numbered := self._views[key].edge_id_name) is not None:
            (found,) = self._reader.read([(numbered, numbers)])
            numbers = found.numpy().astype(np.int64)
        (rows,) = self._reader.read([(self._names[key], numbers)])
        return rows

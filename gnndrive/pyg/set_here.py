"""Deliver in batches the store's values of the whole graph, and what a program has set on the
store, as PyG delivers what is set on its data.

An attribute with one row for each node or edge is indexed by the batch's nodes or edges, in memory;
any other attribute is in each batch as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gnndrive.common.records import Int64Array
from gnndrive.pyg.conversions import select

if TYPE_CHECKING:
    from gnndrive.store.reader import Store
    from gnndrive.store.views import StoredEdges, StoredNodes


class SetHere:
    """What was set on a store when this object was made, and its values of the whole graph.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        views = (*store.all_nodes(), *store.all_edges())
        self._rows = {each.name_of(""): each.attached(each.group) for each in views}
        self._whole: dict[Any, dict[str, Any]] = {None: store.unsliced()}
        if store.is_hetero:
            self._whole |= {each.type: each.unsliced() for each in views}

    def describe(self, batch: Any) -> None:
        """Add to a batch the attributes that have no rows of nodes or edges."""
        for type, values in self._whole.items():
            storage = batch if type is None else batch[type]
            for name, value in values.items():
                setattr(storage, name, value)

    def join(self, storage: Any, view: StoredNodes | StoredEdges, number: Int64Array) -> None:
        """Add the rows of a batch's nodes or edges of a type.

        Args:
            storage: the part of the batch that has them.
            view: the type.
            number: node ids or original edge numbers, int64 [n].
        """
        for name, (value, dim) in self._rows[view.name_of("")].items():
            at = torch.from_numpy(number).to(value.device)
            storage[name] = select(value, dim, at)

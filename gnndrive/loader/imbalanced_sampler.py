"""`ImbalancedSampler`: draws seeds so that every class of `y` is equally likely, from a store too.

It is PyG's class; a store's labels of the input nodes are read for it. When not to use it: classes
of about one size need only `shuffle=True`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch_geometric.loader import ImbalancedSampler as PyGImbalancedSampler

from gnndrive.common.errors import ConfigError
from gnndrive.loader.seeds import checked_input_nodes
from gnndrive.store.reader import Store

_MULTINOMIAL_MAX = 1 << 24  # torch draws among no more
_STEP = 1 << 20  # positions drawn at once


class ImbalancedSampler(PyGImbalancedSampler):  # type: ignore[misc]
    """Draws positions among the input nodes with replacement, each class equally often.

        nodes = store.split("train")
        sampler = gnndrive.ImbalancedSampler(store, input_nodes=nodes)
        loader = NeighborLoader(store, [10, 10], input_nodes=nodes, sampler=sampler)

    Args:
        dataset: a store with labels `y`; or what PyG's class takes: a Dataset, a Data, a list of
            Data, or the labels.
        input_nodes: the loader's `input_nodes`; of a heterogeneous store a node type, or a pair
            (type, ids or mask). None: all nodes.
        num_samples: positions to draw in an epoch. None: as many as there are input nodes.

    Raises:
        ConfigError: the store has no y, y does not hold classes, or an input node has no label.
    """

    def __init__(
        self, dataset: Any, input_nodes: Any = None, num_samples: int | None = None
    ) -> None:
        self._by_class: tuple[torch.Tensor, torch.Tensor] | None = None
        if not isinstance(dataset, Store):
            super().__init__(dataset, input_nodes, num_samples)
            return
        labels = _labels(dataset, input_nodes)
        super().__init__(labels, None, num_samples)
        if len(labels) > _MULTINOMIAL_MAX:
            # The same distribution in two steps: a class, then a position in it.
            order = torch.sort(labels, stable=True).indices
            self._by_class = order, labels.bincount()

    def __iter__(self) -> Iterator[int]:
        """The positions of an epoch, drawn from `generator` or torch's global one."""
        if self._by_class is None:
            yield from super().__iter__()
            return
        order, counts = self._by_class
        starts = counts.cumsum(0) - counts
        present = counts.nonzero().view(-1)
        for done in range(0, self.num_samples, _STEP):
            size = min(_STEP, self.num_samples - done)
            drawn = torch.randint(len(present), (size,), generator=self.generator)
            chosen = present[drawn]
            at = torch.rand(size, dtype=torch.float64, generator=self.generator) * counts[chosen]
            yield from order[starts[chosen] + at.long()].tolist()


def _labels(store: Store, input_nodes: Any) -> torch.Tensor:
    """The classes of the input nodes, int64 [input nodes]."""
    inputs = checked_input_nodes(store, input_nodes)
    nodes = store.nodes(inputs.type)
    if "y" not in nodes.row_names:
        raise ConfigError(
            f"{store.path} has no labels y: give the labels of the input nodes instead of the store"
        )
    y = nodes.attribute("y")
    if inputs.nbytes:  # not all nodes
        y = y[torch.from_numpy(inputs.seeds(0, np.arange(len(inputs))).node)]
    if y.is_floating_point() or y.numel() != len(inputs):
        raise ConfigError(
            f"y is {y.dtype} {list(y.shape)}: ImbalancedSampler needs one class for each node, as "
            "whole numbers"
        )
    y = y.reshape(-1).long()
    if len(y) and int(y.min()) < 0:
        raise ConfigError(
            f"{int((y < 0).sum())} of the {len(y)} input nodes have no label (-1): leave them out "
            "of input_nodes="
        )
    return y

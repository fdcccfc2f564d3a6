"""The Schedule interface: which seeds come next; and the input nodes that they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256

import torch

from gnndrive.records import Seeds


class InputNodes:
    """What PyG calls `input_nodes`: the nodes that seeds are drawn from.

    Args:
        count: how many.
        node: their ids, int64 [count]; None: nodes 0 … count − 1, which take no memory.
        by_position: whether `input_id` is the position among them, as PyG has it for ids and for
            all nodes; else it is the node's id, as PyG has it for a mask.
    """

    def __init__(
        self, count: int, node: torch.Tensor | None = None, by_position: bool = True
    ) -> None:
        self._count = count
        self._node = node
        self._by_position = by_position

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the ids."""
        return 0 if self._node is None else 8 * self._count

    @cached_property
    def identity(self) -> str:
        """What tells these input nodes from others: how many, and a digest of their ids."""
        digest = "all" if self._node is None else sha256(self._node.numpy().data).hexdigest()
        return f"{self._count} {digest} {'positions' if self._by_position else 'ids'}"

    def seeds(self, index: int, position: torch.Tensor) -> Seeds:
        """The seeds of batch `index`, which stand at `position` (integers [n]) among the input
        nodes.

        Raises:
            IndexError: a position is out of range.
        """
        position = position.to(torch.int64).reshape(-1)
        if self._node is not None:
            node = self._node[position]
        elif len(position) and not -self._count <= int(position.min()) <= int(position.max()) < (
            self._count
        ):
            raise IndexError(f"a position is out of range: there are {self._count} input nodes")
        else:
            node = position % max(self._count, 1)  # as indexing has it: −1 is the last
        input_id = position if self._by_position else node
        return Seeds(index, node.numpy(), input_id.clone().numpy())


class Schedule(ABC):
    """The order of an epoch's seeds, in windows; a window is one batch unless a design needs
    more."""

    name: str

    @abstractmethod
    def windows(self, epoch: int) -> Iterator[list[Seeds]]:
        """The epoch's windows, each a list of batches, in order."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

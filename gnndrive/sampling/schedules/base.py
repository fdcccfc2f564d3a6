"""The Schedule interface: which seeds come next, and the input nodes that they are drawn from.

Seeds are drawn in the pipeline's event loop with numpy and the C core, because these seldom release
the GIL for so few numbers. torch releases it in each operation, and beside a thread that burns
Python getting it back may take a switch interval each time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from typing import Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Seeds
from gnndrive.store.reader import Store

Positions: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


def digest(*tensors: torch.Tensor | None) -> str:
    """What tells some numbers from others: a few letters of a checksum, "-" for None."""
    return " ".join(
        "-" if each is None else sha256(each.contiguous().numpy().data).hexdigest()[:16]
        for each in tensors
    )


def _checked(position: Positions, count: int, what: str) -> Int64Array:
    """A copy of positions among `count` of something, −1 being the last.

    Raises:
        IndexError: one is out of range.
    """
    at = np.array(position, np.int64)
    if len(at) and not -count <= at.min() <= at.max() < count:
        raise IndexError(f"a position is out of range: there are {count} {what}")
    return at


class InputNodes:
    """What PyG calls `input_nodes`: the nodes that seeds are drawn from.

    Args:
        count: how many.
        node: their ids, int64 [count]; None: nodes 0 … count − 1, which take no memory.
        by_position: whether `input_id` is the position among them, as PyG has it for ids and for
            all nodes; else it is the node's id, as PyG has it for a mask.
        time: their times, int64 [count], or None.
        type: their node type; None in a homogeneous graph.
    """

    def __init__(
        self,
        count: int,
        node: torch.Tensor | None = None,
        by_position: bool = True,
        time: torch.Tensor | None = None,
        type: NodeKey = None,
    ) -> None:
        self._count, self._node, self._by_position = count, node, by_position
        self._time, self.type = time, type

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the ids and times."""
        return 8 * self._count * ((self._node is not None) + (self._time is not None))

    @cached_property
    def identity(self) -> str:
        """What tells these input nodes from others: how many, and a digest of them."""
        kind = "positions" if self._by_position else "ids"
        whose = "" if self.type is None else f" of {self.type}"
        return f"{self._count} {kind}{whose} {digest(self._node, self._time)}"

    def seeds(self, index: int, position: Positions) -> Seeds:
        """The seeds of batch `index`, which stand at `position` (integers [n]) among the input
        nodes.

        Raises:
            IndexError: a position is out of range.
        """
        at = _checked(position, self._count, "input nodes")
        # As indexing has it: −1 is the last.
        node = at % max(self._count, 1) if self._node is None else self._node.numpy()[at]
        input_id = at if self._by_position else node.copy()
        return Seeds(
            index, node, input_id, partial(self._input, node, input_id, at), type=self.type
        )

    def _input(self, node: Int64Array, input_id: Int64Array, at: Int64Array) -> NodeSamplerInput:
        time = None if self._time is None else self._time[torch.from_numpy(at)]
        return NodeSamplerInput(torch.from_numpy(input_id), torch.from_numpy(node), time, self.type)


class InputEdges:
    """What PyG calls `edge_label_index`: the edges that seeds are drawn from.

    Args:
        count: how many.
        ends: for positions, int64 [n], the ends of the edges there and what PyG calls their
            `input_id`; blocking, in a worker thread.
        identity: what tells these ends from others.
        label: for each input_id, or None.
        time: int64 for each input_id, or None.
        nbytes: bytes that `ends` holds.
        type: their edge type; None in a homogeneous graph.
    """

    def __init__(
        self,
        count: int,
        ends: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        identity: str,
        label: torch.Tensor | None = None,
        time: torch.Tensor | None = None,
        nbytes: int = 0,
        type: EdgeKey = None,
    ) -> None:
        self._count, self._ends, self._label, self._time = count, ends, label, time
        self._of_ends, self.type = identity, type
        self.nbytes = nbytes + sum(each.nbytes for each in (label, time) if each is not None)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def identity(self) -> str:
        """What tells these edges from others."""
        whose = "" if self.type is None else f" of {self.type}"
        return f"{self._count} edges{whose} {self._of_ends} {digest(self._label, self._time)}"

    def seeds(self, index: int, position: Positions) -> Seeds:
        """The seeds of batch `index`, which stand at `position` (integers [n]).

        Raises:
            IndexError: a position is out of range.
        """
        at = _checked(position, self._count, "edges") % max(self._count, 1)
        return Seeds(index, at, at, partial(self._input, at), True, self.type)

    def _input(self, at: Int64Array) -> EdgeSamplerInput:
        row, col, input_id = self._ends(torch.from_numpy(at.copy()))
        return EdgeSamplerInput(
            input_id, row, col, None if self._label is None else self._label[input_id],
            None if self._time is None else self._time[input_id], self.type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """Batches that a design treats as one: a single batch, a superbatch, a mega-batch.

    Attributes:
        batches: the seeds of each batch, in order; may be an iterator that draws them as they are
            needed, and is gone through once.
    """

    batches: Iterable[Seeds]


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """What a schedule is made from; each takes what it needs.

    Attributes:
        inputs: the nodes or edges that seeds are drawn from.
        batch_size: seeds a batch; None: the user's batch sampler decides.
        shuffle: whether each epoch has its own order.
        drop_last: whether a last, smaller batch is left out.
        seed: with the epoch's number it determines the order.
        batch_sampler: the user's, which yields lists of positions in `inputs`; None: there is none.
        store: the graph's; None: there is none, as in some tests.
    """

    inputs: InputNodes | InputEdges
    batch_size: int | None
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    batch_sampler: Iterable[list[int]] | None = None
    store: Store | None = None


class Schedule(ABC):
    """The order of an epoch's seeds, in windows; a window is one batch unless a design needs
    more."""

    name: str

    @classmethod
    @abstractmethod
    def make(cls, context: ScheduleContext) -> Self:
        """A schedule for the epochs of one loader that have the context's seed."""

    @property
    def order_bytes(self) -> int:
        """Bytes of memory that an epoch's order takes, beside the inputs."""
        return 0

    @abstractmethod
    def windows(self, epoch: int) -> Iterator[Window]:
        """The epoch's windows, in order; the batches in them are numbered from 0 over the whole
        epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

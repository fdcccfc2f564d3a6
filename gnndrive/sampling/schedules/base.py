"""The Schedule interface: which seeds come next, and the nodes or edges that they are drawn from.

The pipeline's event loop asks a schedule for windows, and the schedule makes `Seeds` from
`InputNodes` or `InputEdges`. (With a batch sampler the user's thread draws the first batch, and all
batches that a resumed epoch skips.) This code uses numpy and the C core, because these seldom
release the GIL for so few numbers. torch releases it in each operation, and while another thread
runs Python code, getting the GIL back may take a switch interval (5 ms) each time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gnndrive.common.records import EdgeKey, Int32Array, Int64Array, NodeKey, Seeds
from gnndrive.sampling.schedules._parts import InputParts, KeptParts, Partitions, find_parts
from gnndrive.store.reader import Store

if TYPE_CHECKING:
    from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

    from gnndrive.store.packed.recording import Recording

LABEL_BYTES = 4  # of the label that PyG gives an edge if the user gives none
Positions: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


def digest(*tensors: torch.Tensor | None) -> str:
    """Return a short checksum of each tensor, "-" for None; equal text means equal tensors."""
    flat = (None if each is None else each.reshape(-1).view(torch.uint8) for each in tensors)
    return " ".join(
        "-" if each is None else sha256(each.numpy().data).hexdigest()[:16] for each in flat
    )


def _checked_positions(position: Positions, count: int, what: str) -> Int64Array:
    """Return a copy of `position`, checked against `count` inputs; −1 is the last input."""
    at = np.array(position, np.int64)
    # As unsigned numbers negative ones are larger than all others.
    if len(at) and at.view(np.uint64).max() >= count and not -count <= at.min() <= at.max() < count:
        raise IndexError(
            f"a position is out of range: there are {count} {what}; a sampler or batch sampler "
            f"gives positions below {count} in them"
        )
    return at


class InputNodes:
    """What PyG calls `input_nodes`: the nodes that seeds are drawn from.

    Args:
        count: the number of input nodes.
        node: their ids, int64 [count]; None: nodes 0 … count − 1, which take no memory.
        by_position: whether `input_id` is the position among the input nodes, as in PyG if the user
            gives ids or all nodes; else it is the node's id, as in PyG if the user gives a mask.
        time: their times, int64 [count], or None.
        type: their node type; None in a homogeneous graph.
        input_id: the user's `input_id` of each, int64 [count]; None: `by_position` decides.
    """

    def __init__(
        self,
        count: int,
        node: torch.Tensor | None = None,
        by_position: bool = True,
        time: torch.Tensor | None = None,
        type: NodeKey = None,
        input_id: torch.Tensor | None = None,
    ) -> None:
        self._count, self._node, self._by_position = count, node, by_position
        self._time, self.type, self._input_id = time, type, input_id
        self._parts = KeptParts()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the ids and times."""
        given = (self._node, self._time, self._input_id)
        return 8 * self._count * sum(each is not None for each in given)

    @cached_property
    def identity(self) -> str:
        """A text that identifies these input nodes; equal text means equal input nodes."""
        kind = "positions" if self._by_position else "ids"
        of_type = "" if self.type is None else f" of {self.type}"
        ids = "" if self._input_id is None else f" {digest(self._input_id)}"
        return f"{self._count} {kind}{of_type} {digest(self._node, self._time)}{ids}"

    def seeds(self, index: int, position: Positions) -> Seeds:
        """Return the seeds of a batch.

        Args:
            index: the batch's number in its epoch.
            position: positions among the input nodes, integers [n]; −1 is the last.

        Raises:
            IndexError: a position is out of range.
        """
        at = _checked_positions(position, self._count, "input nodes")
        # The modulo makes −1 the last node, as in indexing.
        node = at % max(self._count, 1) if self._node is None else self._node.numpy()[at]
        input_id = at if self._by_position else node.copy()
        if self._input_id is not None:
            input_id = self._input_id.numpy()[at]
        return Seeds(
            index, node, input_id, partial(self._input, node, input_id, at), type=self.type
        )

    def parts(self, partitioned: Partitions) -> InputParts:
        """Return the input nodes by their partitions; blocks at the first call."""

        def keys_of(at: Int64Array) -> Int64Array:
            node = at if self._node is None else self._node.numpy()[at]
            return partitioned.part_of(node).astype(np.int64)

        find = partial(find_parts, self._count, partitioned.num_parts, keys_of)
        return self._parts.get(partitioned, find)

    def _input(self, node: Int64Array, input_id: Int64Array, at: Int64Array) -> NodeSamplerInput:
        from torch_geometric.sampler import NodeSamplerInput  # not imported by the host service

        time = None if self._time is None else self._time[torch.from_numpy(at)]
        return NodeSamplerInput(torch.from_numpy(input_id), torch.from_numpy(node), time, self.type)


class InputEdges:
    """What PyG calls `edge_label_index`: the edges that seeds are drawn from.

    Args:
        count: the number of input edges.
        ends: takes positions, int64 [n], and returns the source and the target of each edge and
            what PyG calls its `input_id`; blocks, and is called in a worker thread.
        identity: a text that identifies the edges that `ends` returns.
        label: a label for each input_id, or None.
        time: a time for each input_id, int64, or None.
        nbytes: bytes of memory that `ends` holds.
        type: their edge type; None in a homogeneous graph.
        input_id: the user's `input_id` for each that `ends` returns, int64; None: that one.
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
        input_id: torch.Tensor | None = None,
    ) -> None:
        self._count, self._ends, self._label, self._time = count, ends, label, time
        self._ends_identity, self.type, self._input_id = identity, type, input_id
        self._parts = KeptParts()
        given = (label, time, input_id)
        self.nbytes = nbytes + sum(each.nbytes for each in given if each is not None)

    def __len__(self) -> int:
        return self._count

    @property
    def label_bytes(self) -> int:
        """Bytes of the label of a seed edge, or, if they have none, of a negative edge's."""
        if self._label is None:
            return LABEL_BYTES
        return self._label.element_size() * prod(self._label.shape[1:])

    @cached_property
    def identity(self) -> str:
        """A text that identifies these input edges; equal text means equal input edges."""
        of_type = "" if self.type is None else f" of {self.type}"
        labels = digest(self._label, self._time)
        ids = "" if self._input_id is None else f" {digest(self._input_id)}"
        return f"{self._count} edges{of_type} {self._ends_identity} {labels}{ids}"

    def seeds(self, index: int, position: Positions) -> Seeds:
        """See `InputNodes.seeds`; `position` holds positions among the input edges."""
        at = _checked_positions(position, self._count, "edges") % max(self._count, 1)
        return Seeds(index, at, at, partial(self._input, at), True, self.type)

    def parts(self, partitioned: Partitions) -> InputParts:
        """Return the input edges by the partitions of both ends; blocks at the first call."""
        count = partitioned.num_parts

        def keys_of(at: Int64Array) -> Int64Array:
            source, target, _ = self._ends(torch.from_numpy(at))
            parts = partitioned.part_of(source.numpy()).astype(np.int64)
            return parts * count + partitioned.part_of(target.numpy())

        find = partial(find_parts, self._count, count**2, keys_of)
        return self._parts.get(partitioned, find)

    def _input(self, at: Int64Array) -> EdgeSamplerInput:
        from torch_geometric.sampler import EdgeSamplerInput

        row, col, number = self._ends(torch.from_numpy(at.copy()))
        return EdgeSamplerInput(
            number if self._input_id is None else self._input_id[number], row, col,
            None if self._label is None else self._label[number],
            None if self._time is None else self._time[number], self.type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """Batches that a design treats as one unit: a single batch, a superbatch, a mega-batch.

    Where ranks train together and a schedule yields the windows of one rank (`Schedule.deals`),
    numbers count the windows and batches of that rank.

    Attributes:
        batches: the seeds of each batch, in order; may be an iterator, which draws seeds when they
            are requested and can be used once.
        number: its place among the windows of the epoch, from 0.
        partitions: the partitions that have to be in memory while its batches are sampled and
            loaded, ascending, int32 [n]; None: none.
        first: the number of its first batch in the epoch, from 0.
        count: how many batches it has, in all its passes.
    """

    batches: Iterable[Seeds]
    number: int = 0
    partitions: Int32Array | None = None
    first: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How many of a store's partitions the windows of a schedule have.

    Attributes:
        one: the most in a window.
        two: the most in two windows, one after the other. If windows between them have no seeds
            and are left out, these two may have more.
        windows: the most windows in an epoch.
        megabatch: the least `ScheduleContext.megabatch` that gives windows of these sizes.
    """

    one: int = 0
    two: int = 0
    windows: int = 0
    megabatch: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """What `Schedule.make` gets; a schedule uses the attributes that it needs.

    Attributes:
        inputs: the nodes or edges that seeds are drawn from.
        batch_size: seeds in a batch; None: the user's batch sampler decides.
        shuffle: whether each epoch has its own order.
        drop_last: whether to leave out a last, smaller batch.
        seed: determines the order, together with the epoch's number.
        batch_sampler: the user's batch sampler, which yields lists of positions in `inputs`, or
            None.
        store: the store of the graph; None in tests without a store.
        recording: the recorded batches that a loader replays; None: it draws batches.
        partitioned: the partitions of the store's nodes; None: the strategy uses none.
        megabatch: the most partitions that a window may have in memory; None: as few as a schedule
            of such windows can work with.
        passes: how often the batches of a window come, with seeds in another order each time,
            before the next window.
        superbatch: of how many batches `passes` counts the passes, in which they come as they are,
            in another order each time; None: of a window.
        rank, world: which rank of how many this process is, for a schedule that yields the windows
            of one rank (`Schedule.deals`).
        order: which order of windows a schedule uses that has several; None: it decides.
        logical: the number of logical partitions, into which a schedule joins those of the store
            at random in each epoch; None: it decides.
    """

    inputs: InputNodes | InputEdges
    batch_size: int | None
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    batch_sampler: Iterable[list[int]] | None = None
    store: Store | None = None
    recording: Recording | None = None
    partitioned: Partitions | None = None
    megabatch: int | None = None
    passes: int = 1
    superbatch: int | None = None
    rank: int = 0
    world: int = 1
    order: str | None = None
    logical: int | None = None


class Schedule(ABC):
    """Yields an epoch's seeds in windows; a window is one batch unless a design needs more.

    Attributes:
        name: see `gnndrive.common.plugins`.
        deals: whether `windows` yields the windows of one rank, `ScheduleContext.rank`, and as many
            batches as for every other rank; else it yields those of all ranks.
    """

    name: str
    deals: bool = False

    @classmethod
    @abstractmethod
    def make(cls, context: ScheduleContext) -> Self:
        """Make a schedule for the epochs of one loader that share the context's seed."""

    @property
    def order_bytes(self) -> int:
        """Bytes of memory that an epoch's order takes, without the inputs."""
        return 0

    @property
    def window_sizes(self) -> WindowSizes | None:
        """How many partitions its windows have; None: they need no partitions in memory."""
        return None

    @abstractmethod
    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield the epoch's windows, in order.

        The index of a batch counts from 0 over the whole epoch, without those that come again.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch; in the first one, if epochs differ."""

    def length(self, epoch: int) -> int:
        """Return the number of batches that `windows(epoch)` yields."""
        return len(self)

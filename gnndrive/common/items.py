"""`Item`: one use of memory; `Shape`: the sizes that a part of a loader states its items by.

A loader is made of parts: what samples, what reads, the feature buffer and others. Each part is an
object with a method `items(shape)`, in the folder of the code whose memory it states. `plan/` adds
up the items of all parts, and divides what they leave; it knows no part.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

ROW_ID_BYTES = 8  # of each row that a group of batches needs, beside its samples
BATCH_SIZE = "batch_size"
"""See `Item.argument`."""


class Owner(enum.Enum):
    """Who has an item, which says how many of it a host has."""

    RANK = "each rank has its own"
    BUFFER = "who has the feature buffer: each rank, or a service for all ranks of the host"
    GRAPH = "who has the graph: each rank, or a service for all ranks, or for several loaders"
    HOST = "all processes of the host together have one"


class Life(enum.Enum):
    """How long an item is in memory."""

    LOADER = "until the loader is closed"
    BUFFER = "as long as its feature buffer"
    EPOCH = "until the epoch ends; each live iterator has its own"
    KEPT = "the same, but the user or torch may keep it after the epoch"


class Use(enum.Enum):
    """What an item is for: the line of a printed plan that counts it, and what that line says."""

    FEATURES = "rows in memory"
    GRAPH = "neighbours, labels, seeds"
    BATCHES = "sampled and waiting, or in use"
    READING = "to read rows from the disk"


class Phase(enum.Flag):
    """When an item is in memory, if a loader samples before it extracts."""

    SAMPLING = enum.auto()
    EXTRACTION = enum.auto()
    BOTH = SAMPLING | EXTRACTION


@dataclass(frozen=True, slots=True)
class Item:
    """One use of memory. It is the simplest part, too.

    Attributes:
        what: the item's name, such as "staging".
        nbytes: an upper bound, in bytes.
        why: what it holds and why it has this size, as `plan()` prints it.
        owner, life, during, use: see `Owner`, `Life`, `Phase`, `Use`.
        on_device: whether it is in the memory of a rank's device, not of the host.
        copies: how many of it there are on the host; 0: it is there once for several loaders, and
            a service counts it. `Shape.counted` fills it in.
        argument: the loader's argument that makes it smaller, for the error if `memory=` is too
            little (`plan/remedies.py`); "": there is none.
    """

    what: str
    nbytes: int
    why: str
    owner: Owner = Owner.RANK
    life: Life = Life.LOADER
    during: Phase = Phase.BOTH
    on_device: bool = False
    copies: int = 1
    argument: str = ""
    use: Use = Use.BATCHES

    @property
    def host_bytes(self) -> int:
        """Bytes of all copies."""
        return self.copies * self.nbytes

    def items(self, shape: Shape) -> Iterable[Item]:
        """See `Part`."""
        return (self,)


class Part(Protocol):
    """A part of a loader, as a plan sees it."""

    def items(self, shape: Shape) -> Iterable[Item]:
        """State what memory this part takes.

        Args:
            shape: what is decided of the loader; the items are upper bounds for batches of its
                size.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableShape:
    """The sizes of one table of the feature buffer.

    Attributes:
        name: such as "nodes/x".
        row_bytes: bytes of one row as it is stored.
        batch_rows_max: the most distinct rows that a batch can need.
        batch_entries_max: the most rows that a batch, or a group of batches, can have. They can be
            more than the distinct rows, because the same node may be in several disjoint trees.
        converted_bytes: bytes of a row as it is delivered; 0: rows are delivered as stored.
        padded_max: the same as `batch_entries_max` with padding; 0: batches are not padded.
    """

    name: str
    rows: int
    row_bytes: int
    batch_rows_max: int
    batch_entries_max: int = 0
    converted_bytes: int = 0
    padded_max: int = 0

    @property
    def entries_max(self) -> int:
        """The most rows that a batch, or a group, can have."""
        return max(self.batch_entries_max, self.batch_rows_max)

    @property
    def delivered_max(self) -> int:
        """The same with padding."""
        return max(self.padded_max, self.entries_max)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the table's rows in the largest batch."""
        return (self.row_bytes + self.converted_bytes) * self.delivered_max


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that several parts of a loader depend on.

    Attributes:
        tables: the tables of the feature buffer.
        nodes, edges: those of the largest group of batches; a node counts once in each disjoint
            tree. Most groups are one batch, see `group`.
        sample_bytes: bytes of the largest group's samples.
        batch_bytes: bytes of the largest group's batches, beside the tables' rows.
        queued: groups whose samples can be alive at once.
        extracted: groups that can be extracted at once, each with its lease.
        samplers: sampling threads.
        on_device: whether slots are in the memory of a device.
        delivers: whether live batches are.
        looks_ahead: whether the policy needs to know the rows' next uses.
        foreseen_rows: rows of the tables whose next uses are known of many batches.
        apart: whether many batches are sampled before the feature buffer is made; the adjacency is
            in memory until then.
        ranks: ranks on this host; everything above is one rank's.
        shared: whether the ranks share one feature buffer, and the graph.
        graphs: how many times index pointers, labels and a resident adjacency are on this host for
            this loader.
        group: the most batches of a group.
        padded_edges: as many as `edges` with padding; 0: batches are not padded.
    """

    tables: tuple[TableShape, ...]
    nodes: int
    edges: int
    sample_bytes: int
    batch_bytes: int
    queued: int
    extracted: int
    samplers: int
    on_device: bool = False
    delivers: bool = False
    looks_ahead: bool = False
    foreseen_rows: int = 0
    apart: bool = False
    ranks: int = 1
    shared: bool = False
    graphs: int = 1
    group: int = 1
    padded_edges: int = 0

    def in_groups(self, count: int) -> Shape:
        """The same for groups of so many batches, which go through the pipeline together."""
        tables = tuple(
            replace(
                each, batch_entries_max=count * each.entries_max, padded_max=each.padded_max * count
            )
            for each in self.tables
        )
        return replace(
            self, tables=tables, nodes=count * self.nodes, edges=count * self.edges,
            padded_edges=count * self.padded_edges,
            sample_bytes=count * (self.sample_bytes + ROW_ID_BYTES * self.entries),
            batch_bytes=count * self.batch_bytes, group=count,
        )  # fmt: skip

    @property
    def grouped(self) -> str:
        """What the items of a group are for, as `plan()` prints it."""
        return "a batch" if self.group == 1 else f"a group of {self.group} batches"

    @property
    def buffers(self) -> int:
        """Number of feature buffers on this host."""
        return 1 if self.shared else self.ranks

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def entries(self) -> int:
        """Number of rows of the largest batch, over all tables."""
        return sum(table.entries_max for table in self.tables)

    @property
    def features_bytes(self) -> int:
        """Bytes of all tables' rows in the largest batch."""
        return sum(table.batch_bytes for table in self.tables)

    @property
    def whole_batch_bytes(self) -> int:
        """Bytes of the largest batch with its rows."""
        return self.batch_bytes + self.features_bytes

    def counted(self, parts: Sequence[Part]) -> tuple[Item, ...]:
        """The items of parts, each with the number of its copies on this host."""
        copies = {
            Owner.RANK: self.ranks, Owner.BUFFER: self.buffers, Owner.GRAPH: self.graphs,
            Owner.HOST: 1,
        }  # fmt: skip
        return tuple(
            replace(item, copies=1 if item.on_device else copies[item.owner])
            for part in parts
            for item in part.items(self)
        )


def if_any(item: Item) -> tuple[Item, ...]:
    """The item, or none of no bytes."""
    return (item,) if item.nbytes else ()

"""`Hello` and `Welcome`: what a rank and the host service tell each other first.

Both travel as JSON. File descriptors come with the welcome: the memories of the graph, then the
slots of each table, the rank's arena, and the places for graphs of windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import PROTOCOL, ProtocolError
from gnndrive.store.reader import Store
from gnndrive.store.striped.format import DISKS_MAX

PLACES_MAX = 1024
EXTRACTORS_MAX = 64
IO_DEPTH_MAX = 4096
BYTES_MAX = 1 << 40
TEXTS_MAX = 1 << 16
RANKS_MAX = 1024
SHARE_MAX = 1 << 50
NAME_MAX = 100
_MEND = "run all processes with one version of gnndrive"


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """A feature buffer, and how its rows are read.

    All ranks of a loader tell the same, except for the numbers of slots, of which the first rank's
    count. The service takes nothing but names, numbers and names of plug-ins: it looks tables up in
    the store that it has open.

    Attributes:
        tables: names of the tables; () if the store has none, or if the process has set others.
        files: where the rows of each lie in the store's folder; `gnndrive.infer` may have replaced
            a table since a process opened the store.
        slots: number of rows of each that the buffer holds.
        batch_rows_max: the most distinct rows of each that one batch can need.
        entries_max: the most rows of each that a batch can have, for the arena.
        places: how many batches a rank may announce at once.
        device, layout, policy, tiers, engine: plug-ins' names; policy None: standby slots are
            reused in the order of their release.
        io_depth, block_bytes, gap_bytes: see `EngineSettings` and `LayoutContext`.
        stripes: on how many disks the rows have copies, which are read; 0: there are none.
        extractors: tasks of the extract stage.
        sweep: see `Stages`.
        folder: the partitioned folder whose rows are read in place of the store's; "": none.
    """

    tables: tuple[str, ...]
    files: tuple[str, ...]
    row_bytes: tuple[int, ...]
    slots: tuple[int, ...]
    batch_rows_max: tuple[int, ...]
    entries_max: tuple[int, ...]
    places: int
    device: str
    layout: str
    policy: str | None
    tiers: tuple[str, ...]
    engine: str
    io_depth: int
    block_bytes: int
    gap_bytes: int
    stripes: int
    extractors: int
    sweep: int | None
    folder: str = ""

    @property
    def staging_bytes(self) -> int:
        """Bytes of the memory that reads land in before their rows get their places."""
        return self.io_depth * self.block_bytes * max(self.stripes, 1)

    def arena_shape(self, store: Store) -> ArenaShape:
        """The arena of each rank that loads from a store."""
        most = max((store.info.arrays[name].shape[0] for name in self.tables), default=0)
        most *= 2 if self.folder else 1  # it has static rows twice
        return ArenaShape(self.places, self.entries_max, most >= 1 << 31)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, text: Any) -> Self:
        """What `to_json` returned; ProtocolError: something is missing, or of another type or
        size."""
        record = Record(text, "the settings of a feature buffer", _MEND, raises=ProtocolError)
        if set(record.fields) != set(cls.__slots__):
            raise record.error("are not as expected")
        whole, tables = record.whole, _texts(record, "tables")
        count = len(tables)
        return cls(
            tables=tables,
            files=_texts(record, "files", count, count),
            row_bytes=_numbers(record, "row_bytes", count),
            slots=_numbers(record, "slots", count),
            batch_rows_max=_numbers(record, "batch_rows_max", count),
            entries_max=_numbers(record, "entries_max", count),
            places=whole("places", 1, PLACES_MAX),
            device=record.text("device"),
            layout=record.text("layout"),
            policy=record.text("policy") if record.has("policy") else None,
            tiers=_texts(record, "tiers", least=1),
            engine=record.text("engine"),
            io_depth=whole("io_depth", 1, IO_DEPTH_MAX),
            block_bytes=whole("block_bytes", 1, BYTES_MAX),
            gap_bytes=whole("gap_bytes", 0, BYTES_MAX),
            stripes=whole("stripes", 0, DISKS_MAX),
            extractors=whole("extractors", 1, EXTRACTORS_MAX),
            sweep=whole("sweep", 1, PLACES_MAX) if record.has("sweep") else None,
            folder=record.text("folder"),
        )


def _numbers(record: Record, name: str, count: int) -> tuple[int, ...]:
    values = record.value(name, list)
    if len(values) != count or any(type(n) is not int or not 0 <= n <= BYTES_MAX for n in values):
        raise record.wrong(name, f"a number for each of {count} tables")
    return tuple(values)


def _texts(record: Record, name: str, least: int = 0, most: int = TEXTS_MAX) -> tuple[str, ...]:
    values = record.texts(name) or ()
    if not least <= len(values) <= most:
        raise record.wrong(name, f"a list of {least} to {most} names")
    return values


@dataclass(frozen=True, slots=True)
class Hello:
    """What a rank tells first.

    Attributes:
        store: the identity of its store.
        group: the name of its group; the ranks of one loader have one name.
        ranks: the ranks of the group on this host, in order.
        buffer: the feature buffer that its loader needs; None: it has one of its own, as on a GPU.
        topology: the topology whose adjacency it shares, with index pointers and labels; "": it
            shares none of them.
        share: bytes of the service's memory that the group's feature buffer takes, with everything
            that belongs to it; the first rank's number counts.
        name: what a status shows, such as a program.
    """

    store: str
    group: str
    rank: int
    ranks: tuple[int, ...]
    buffer: BufferSettings | None
    topology: str
    share: int = 0
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "protocol": PROTOCOL, "store": self.store, "group": self.group, "rank": self.rank,
            "ranks": list(self.ranks), "topology": self.topology,
            "share": self.share, "name": self.name,
            "buffer": None if self.buffer is None else self.buffer.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Self:
        """What `to_json` returned; ConfigError: it is of another version of gnndrive."""
        if text.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"the host service speaks protocol {PROTOCOL} and this process "
                f"{text.get('protocol')!r}: run both with one version of gnndrive"
            )
        match text:
            case {
                "store": str(store), "group": str(group), "rank": int(rank), "ranks": list(ranks),
                "topology": str(topology), "share": int(share), "name": str(name), "buffer": buffer,
            }:  # fmt: skip
                pass
            case _:
                raise ProtocolError("a hello lacks something")
        valid = all(type(each) is int and each >= 0 for each in ranks)
        if not (valid and rank in ranks and ranks == sorted(set(ranks)) and len(ranks) < RANKS_MAX):
            raise ProtocolError(f"rank {rank} is none of the ranks {ranks!r:.200}")
        if not 0 <= share <= SHARE_MAX:
            raise ProtocolError(f"{share} is no number of bytes")
        settings = None if buffer is None else BufferSettings.from_json(buffer)
        # The service prints it.
        name = "".join(letter if letter.isprintable() else "?" for letter in name[:NAME_MAX])
        return cls(store, group, rank, tuple(ranks), settings, topology, share, name)


def check_same_needs(hello: Hello, first: Hello) -> None:
    """Check that a rank needs what the first rank of its group needs; ConfigError: something
    differs. Each rank may have found other memory free: of the slots, the first rank's numbers
    count, and topologies may differ."""
    mine, others = hello.to_json(), first.to_json()
    for each in (mine, others):
        buffer = each["buffer"]
        each.update({f"buffer's {name}": value for name, value in (buffer or {}).items()})
        each.update({"buffer": buffer is not None, "buffer's slots": None})
        each.update(dict.fromkeys(("rank", "name", "topology", "share")))
    differing = [
        f"{name} is {mine.get(name)!r:.200} and {others.get(name)!r:.200}"
        for name in mine | others
        if mine.get(name) != others.get(name)
    ]
    if differing:
        raise ConfigError(
            f"rank {hello.rank} and rank {first.rank} have loaders that differ: "
            f"{'; '.join(differing)}: give all ranks the same arguments"
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the service answers: the number of slots of each table, what `pyg.shared_store` says of
    the arrays of the graph, if they were asked for, and how many descriptors are for the graph."""

    slots: tuple[int, ...]
    graph: Any
    memories: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"slots": list(self.slots), "graph": self.graph, "memories": self.memories}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        match text:
            case {"slots": list(slots), "graph": graph, "memories": int(memories)}:
                if all(type(each) is int and each >= 0 for each in slots):
                    return cls(tuple(slots), graph, memories)
        raise ProtocolError("a welcome lacks something")

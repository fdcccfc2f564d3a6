"""`BufferSettings`: what a rank tells the host service of the feature buffer that its loader needs.

All ranks of a loader tell the same, except for the numbers of slots, of which the first rank's
count. The service takes nothing but names, numbers and names of plug-ins: it looks tables up in the
store that it has open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import ProtocolError
from gnndrive.store.reader import Store

PLACES_MAX = 1024
EXTRACTORS_MAX = 64
IO_DEPTH_MAX = 4096
BYTES_MAX = 1 << 40
TEXTS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """A feature buffer, and how its rows are read.

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
        extractors: tasks of the extract stage.
        sweep: see `Stages`.
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
    extractors: int
    sweep: int | None

    @property
    def staging_bytes(self) -> int:
        """Bytes of the memory that reads land in before their rows get their places."""
        return self.io_depth * self.block_bytes

    def arena_shape(self, store: Store) -> ArenaShape:
        """The arena of each rank that loads from a store."""
        most = max((store.info.arrays[name].shape[0] for name in self.tables), default=0)
        return ArenaShape(self.places, self.entries_max, most >= 1 << 31)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, text: Any) -> Self:
        """What `to_json` returned.

        Raises:
            ProtocolError: something is missing, or of another type or size.
        """
        if not isinstance(text, Mapping) or set(text) != set(cls.__slots__):
            raise ProtocolError("the settings of a feature buffer are not as expected")
        tables, policy, sweep = _texts(text["tables"]), text["policy"], text["sweep"]
        count = len(tables)
        return cls(
            tables=tables,
            files=_texts(text["files"], count, count),
            row_bytes=_numbers(text["row_bytes"], count),
            slots=_numbers(text["slots"], count),
            batch_rows_max=_numbers(text["batch_rows_max"], count),
            entries_max=_numbers(text["entries_max"], count),
            places=_number(text["places"], 1, PLACES_MAX),
            device=_text(text["device"]),
            layout=_text(text["layout"]),
            policy=None if policy is None else _text(policy),
            tiers=_texts(text["tiers"], least=1),
            engine=_text(text["engine"]),
            io_depth=_number(text["io_depth"], 1, IO_DEPTH_MAX),
            block_bytes=_number(text["block_bytes"], 1, BYTES_MAX),
            gap_bytes=_number(text["gap_bytes"], 0, BYTES_MAX),
            extractors=_number(text["extractors"], 1, EXTRACTORS_MAX),
            sweep=None if sweep is None else _number(sweep, 1, PLACES_MAX),
        )


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"{value!r} is no number from {least} to {most}")
    return value


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != count:
        raise ProtocolError(f"{value!r} is not a number for each of {count} tables")
    return tuple(_number(each, 0, BYTES_MAX) for each in value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ProtocolError(f"{value!r} is no name")
    return value


def _texts(value: Any, least: int = 0, most: int = TEXTS_MAX) -> tuple[str, ...]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ProtocolError(f"{value!r} is no list of names")
    return tuple(_text(each) for each in value)

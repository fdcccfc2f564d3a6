"""Choose the hot rows and the segment size of a recording, and write the ids of shared rows.

`SegmentSearch` counts, in one pass over the recorded batches, the least bytes that a pack with each
segment size takes. `settle` then decides for one size which rows each segment shares and in which
order, and writes their ids, so that the bytes are known exactly and placing (placing.py) only looks
rows up. `SharedRows`, a small durable file, says what was decided; a packer that was killed before
it was written decides again.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import write_whole
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import Int32Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import ArrayInfo, Progress, index_dtype, npy_header
from gnndrive.store.layout.arrays import Ids, map_array
from gnndrive.store.packed.contents import TableUse, bands_name, hot_name, shared_name
from gnndrive.store.packed.hot import HotNodes
from gnndrive.store.packed.mapped_samples import Entries, MappedSamples
from gnndrive.store.packed.orders import order_rows
from gnndrive.store.packed.placement import places_of
from gnndrive.store.packed.places import NodePlaces, TooManyShared
from gnndrive.store.packed.segments import rows_by_segment

SHARED_JSON = "shared.json"  # of an unfinished pack
SEARCH, SHARE = "search", "share"
_KEPT_SHARE = 8  # of the memory for the ids of a segment, so that they are not looked up twice
_BYTES_A_PLACE = 4  # of each row of a table
_BYTES_A_SHARED_ROW = 40  # while they are put in order


class TooLittleMemory(ConfigError):
    """The shared rows of a segment cannot be put in order in the memory."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """What is decided before rows are placed.

    Attributes:
        segment: batches of a segment.
        predicted_bytes: bytes of the whole pack.
        slots: table -> hot rows.
        shared_rows: table -> shared rows of each segment.
    """

    segment: int
    predicted_bytes: int
    slots: dict[str, int]
    shared_rows: dict[str, list[int]]

    def save(self, root: Path) -> None:
        """Write the file, durably; all ids are durable.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        write_whole(root / SHARED_JSON, json.dumps(asdict(self)).encode())


def load_shared(root: Path) -> SharedRows | None:
    """What an earlier packer decided; None: nothing yet."""
    try:
        return SharedRows(**json.loads((root / SHARED_JSON).read_bytes()))
    except FileNotFoundError:
        return None


def write_hot(root: Path, table: FeatureTable, hot: HotNodes) -> None:
    """Write the ids and the bands of a table's hot rows, durably.

    Raises:
        StoreError: the disk is full, or writing failed.
    """
    _write(root, hot_name(table.name), hot.node)
    _write(root, bands_name(table.name), np.stack([hot.band_ends, hot.band_uses], 1))


def hot_places(root: Path, table: FeatureTable) -> NodePlaces:
    """Where the rows of a table lie, its hot rows entered."""
    hot = map_array(root / f"{hot_name(table.name)}.npy", index_dtype(table.file.row_count))
    return NodePlaces(table.file.row_count, hot)


def _remove_shared(root: Path, table: FeatureTable) -> None:
    """Remove the ids of rows that an earlier packer, or another segment size, shared."""
    folder = (root / hot_name(table.name)).parent
    kept = {root / f"{name(table.name)}.npy" for name in (hot_name, bands_name)}
    try:
        for path in set(folder.iterdir()) - kept:
            os.unlink(path)
    except OSError as error:
        raise write_failure(folder, error) from error


def _write(root: Path, name: str, array: Ids) -> None:
    info = ArrayInfo(name, array.dtype.name, array.shape, "")
    path = root / info.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
    write_whole(path, npy_header(info) + np.ascontiguousarray(array).tobytes())


class SegmentSearch:
    """Counts the rows of a pack by segment size.

    Args:
        root: the unfinished pack's folder.
        samples: the recorded samples.
        tables: the packed tables.
        places: where the rows of each table lie, its hot rows entered.
        memory: bytes that this may use for ids.
        progress: called as progress(what, done, total), with batches of all tables.
    """

    def __init__(
        self, root: Path, samples: MappedSamples, tables: Sequence[FeatureTable],
        places: Mapping[str, NodePlaces], memory: int, progress: Progress,
    ) -> None:  # fmt: skip
        self._root, self._samples, self._tables, self._places = root, samples, tables, places
        self._memory, self._progress = memory, progress
        named = places_of(samples.schema, [table.name for table in tables])
        self._entries = {t.name: Entries(samples, t, named[t.name]) for t in tables}
        batches = range(len(samples))
        self._counts = {
            name: np.array([entries.count(number) for number in batches], np.int64)
            for name, entries in self._entries.items()
        }
        self._seeds = {
            name: sum(entries.seeds(number) for number in batches)
            for name, entries in self._entries.items()
        }
        self._hot = {name: np.zeros(len(samples), np.int64) for name in self._entries}
        self._rows: dict[str, dict[int, int]] = {}

    def count(self, segment: int | None) -> list[int]:
        """Count the rows for all sizes, and for `segment`; returns the sizes."""
        done, total = 0, len(self._samples) * len(self._tables)
        sizes: list[int] = []
        for name, entries in self._entries.items():

            def batches(name: str = name) -> Iterator[Ids]:
                nonlocal done
                for number in range(len(self._samples)):
                    cold = self.cold(name, number)
                    self._hot[name][number] = self._later(name, number) - len(cold)
                    yield cold
                    done += 1
                    self._progress(SEARCH, done, total)

            rows = entries.table.file.row_count
            self._rows[name], _ = rows_by_segment(batches(), rows, segment)
            sizes = list(self._rows[name])
        return sizes

    def least(self, segment: int, slots: Mapping[str, int]) -> dict[str, TableUse]:
        """How the tables are used with a segment size, if no row were shared: the rows of the files
        are exact, their ids and places are not counted."""
        none = np.zeros(len(self._samples), np.int64)
        return {
            name: TableUse(
                slots[name], slots[name] + self._seeds[name] + self._rows[name][segment], [],
                self._hot[name], none, self._counts[name],
            )
            for name in self._entries
        }  # fmt: skip

    def settle(self, segment: int, slots: Mapping[str, int], order: str) -> dict[str, TableUse]:
        """Decide which rows each segment shares, and write their ids.

        Args:
            segment: batches of a segment.
            slots: table -> hot rows.
            order: the order of shared rows, see `orders.order_rows`.

        Raises:
            TooLittleMemory: the segment is too large for the memory.
            ConfigError: the segment is too large for the order.
            StoreError: the disk is full, or writing failed.
        """
        batches, done = len(self._samples), 0
        uses = self.least(segment, slots)
        for table in self._tables:
            shared, rows = np.zeros(batches, np.int64), []
            _remove_shared(self._root, table)
            for number, first in enumerate(range(0, batches, segment)):
                within = range(first, min(first + segment, batches))
                ids, counts = self._share(table.name, within, order)
                shared[first : first + segment] = counts
                rows.append(len(ids))
                if len(ids):
                    dtype = index_dtype(table.file.row_count)
                    _write(self._root, shared_name(table.name, number), ids.astype(dtype))
                done += len(within)
                self._progress(SHARE, done, batches * len(self._tables))
            uses[table.name] = replace(uses[table.name], shared=shared, shared_rows=rows)
        return uses

    def _share(self, name: str, within: range, by: str) -> tuple[Ids, list[int]]:
        """The ids of the rows that a segment shares, in the order of the file; and how many entries
        of each batch are such rows."""
        places, cold = self._places[name], _Cold(self, name, within, self._memory // _KEPT_SHARE)
        left = self._memory - self._memory // _KEPT_SHARE - self._place_bytes
        try:
            rows = places.begin(cold, left // _BYTES_A_SHARED_ROW)
        except TooManyShared:
            raise self._too_little(within.stop - within.start) from None
        counts: list[int] = []

        def members() -> Iterator[Int32Array]:
            for ids in cold:
                found = places.members(ids)
                counts.append(len(found))
                yield found

        each = members()
        order = order_rows(by, each, len(rows), len(within))
        deque(each, maxlen=0)  # an order that does not depend on them has not asked for them
        return places.set_order(order), counts

    @property
    def _place_bytes(self) -> int:
        return _BYTES_A_PLACE * sum(table.file.row_count for table in self._tables)

    def _too_little(self, segment: int) -> TooLittleMemory:
        """The error for a segment whose shared rows cannot be put in order in memory."""
        batches, most = len(self._samples), 0
        for name, places in self._places.items():
            for first in range(0, batches, segment):
                cold = _Cold(self, name, range(first, min(first + segment, batches)), 0)
                try:
                    places.begin(cold, 0)
                except TooManyShared as error:
                    most = max(most, error.rows)
        needed = _BYTES_A_SHARED_ROW * most + self._place_bytes
        least = -(-needed * _KEPT_SHARE // (_KEPT_SHARE - 1)) + 1
        return TooLittleMemory(
            f"memory={format_size(self._memory)} is too little to put in order the {most:,} rows "
            f"that {segment} batches share: give packing at least {least_text(least)}, or allow "
            "shorter segments: give a smaller segment=, or more disk="
        )

    def _later(self, name: str, number: int) -> int:
        """The number of entries that are no seeds."""
        return int(self._counts[name][number]) - self._entries[name].seeds(number)

    def cold(self, name: str, number: int) -> Ids:
        """The entries of a batch that are neither seeds nor hot."""
        entries = self._entries[name]
        return self._places[name].cold(entries.ids(number), entries.seeds(number))


class _Cold:
    """The cold ids of a segment's batches, in turn; kept if they fit in memory."""

    def __init__(self, search: SegmentSearch, name: str, within: range, memory: int) -> None:
        self._search, self._name, self._within, self._left = search, name, within, memory
        self._kept: dict[int, Ids] = {}

    def __iter__(self) -> Iterator[Ids]:
        for number in self._within:
            ids = self._kept.get(number)
            if ids is None:
                ids = self._search.cold(self._name, number)
                if ids.nbytes <= self._left:
                    self._left -= ids.nbytes
                    self._kept[number] = ids
            yield ids

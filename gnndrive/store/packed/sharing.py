"""Decide which rows of a recording are hot, which its segments share, and in which order.

Hot rows stay in memory during training (DiskGNN §4.2). All batches are recorded before they are
packed, so the uses of each node are known exactly, and the nodes with the most uses save the most
reads. Their rows lie on disk in bands, the hottest first, so that training with less memory keeps a
first part of the file.

As many batches share a file, a segment, as the disk space demands (§4.3, Algorithm 2). A cold row
is on disk once for each segment whose batches use it: in a batch's own chunk if it is used once
there, in the segment's shared file if more often. So the rows on disk are the distinct cold rows of
each segment, and larger segments take less space. They also scatter a batch's rows over a larger
shared file, so the smallest segment that fits is the best. Distinct rows are counted exactly, for
all candidates in one pass over the recorded batches: a use adds a row to a segment's batches unless
an earlier batch of that segment used the node, and the node's previous use says this for every
size.

A batch wants some rows of a shared file, and reads whole pages. The more the rows of a page are
wanted by the same batches, the less is read in vain (§4.3):

- "sets" puts rows together that exactly the same batches use. Two neighbouring sets in Gray's order
  differ in one batch, so that a batch's stretches are long. For segments of at most 64 batches; the
  best order as long as a set has a page's rows or more.
- "minhash" is the paper's: two MinHashes of the set of batches, as the released code sorts by both;
  the paper's text has the smaller of the two, which is worse. For segments of any size.
- "id" is the order of the table, to compare with.

`SegmentSearch` counts the least bytes that a pack with each segment size takes; `settle` decides
for one size and writes the ids, so that the bytes are known exactly and placing (placing.py) only
looks rows up. `SharedRows`, a small durable file, says what was decided; a packer that was killed
before it was written decides again.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.io.small_files import write_whole
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import index_dtype
from gnndrive.store.layout.arrays import Ids, map_array, write_small
from gnndrive.store.packed.format import TableUse, bands_name, hot_name, shared_name
from gnndrive.store.packed.places import NodePlaces, TooManyShared
from gnndrive.store.packed.samples import Entries, MappedSamples
from gnndrive.store.packed.sections import BANDS, places_of

SHARED_JSON = "shared.json"  # of an unfinished pack
SETS_MAX = 64
"""The most batches of a segment in the order "sets": a set is a mask of 64 bits."""
SETS_DEFAULT = 8
"""The smallest segment to which the order "sets" is worth its sorting: a sixth less disk space, and
hardly a byte read in vain."""

_CHUNK = 1 << 22  # nodes that are looked at at once
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_KEPT_SHARE = 8  # of the memory for the ids of a segment, so that they are not looked up twice
_BYTES_A_PLACE = 4  # of each row of a table
_BYTES_A_SHARED_ROW = 40  # while they are put in order
Counts = npt.NDArray[np.uint32]


# ---- hot rows


@dataclass(frozen=True, slots=True, eq=False)
class HotNodes:
    """The hot nodes in the order of their rows on disk; a node's place in it is its slot.

    Attributes:
        node: the hot nodes: band after band, the hottest first, and by id within a band.
        band_ends: the slot after the last one of each band, int64 [BANDS]; a band may be empty.
        band_uses: the uses of each band's nodes together, int64 [BANDS].
    """

    node: Int32Array | Int64Array
    band_ends: Int64Array
    band_uses: Int64Array


def choose_hot(counts: Counts, slots: int) -> HotNodes:
    """Return the nodes with the most uses; of those with equally many, the ones with lowest id.

    A node without uses is never hot. Nodes with equally many uses are in the same band; apart from
    that, the bands have about equally many nodes. Needs 8 bytes for each number up to the largest
    count and a few bytes for each slot, besides `counts`, the batches that use each node.
    """
    having = _histogram(counts)
    with_more = having[::-1].cumsum()[::-1] - having  # nodes with more uses than 0, 1, ...
    fitting = np.flatnonzero(with_more[1:] < slots) + 1
    if not len(fitting):
        return HotNodes(np.empty(0, index_dtype(len(counts))), *np.zeros((2, BANDS), np.int64))
    threshold = int(fitting[0])
    taken = having.copy()
    taken[:threshold] = 0
    taken[threshold] = min(having[threshold], slots - with_more[threshold])
    band_of = np.zeros(len(having), np.uint8)
    # If no node has just this count, all hot nodes may have more uses, and the quotient is BANDS.
    band_of[threshold:] = np.minimum(with_more[threshold:] * BANDS // taken.sum(), BANDS - 1)
    sizes = np.zeros(BANDS, np.int64)
    uses = np.zeros(BANDS, np.int64)
    np.add.at(sizes, band_of, taken)
    np.add.at(uses, band_of, taken * np.arange(len(taken)))
    node = _collect(counts, threshold, int(taken[threshold]), band_of, sizes)
    return HotNodes(node, sizes.cumsum(), uses)


def _chunks(counts: Counts) -> Iterator[tuple[int, Counts]]:
    for start in range(0, len(counts), _CHUNK):
        yield start, counts[start : start + _CHUNK]


def _histogram(counts: Counts) -> Int64Array:
    """How many nodes have 0, 1, 2 ... uses, int64 [largest count + 1]."""
    largest = int(counts.max(initial=0))
    having = np.zeros(largest + 1, np.int64)
    for _, chunk in _chunks(counts):
        having += np.bincount(chunk, minlength=largest + 1)
    return having


def _collect(
    counts: Counts, threshold: int, ties: int, band_of: npt.NDArray[np.uint8], sizes: Int64Array
) -> npt.NDArray[Any]:
    """The nodes above the threshold, and the first `ties` at it, each put into its band."""
    node = np.empty(int(sizes.sum()), index_dtype(len(counts)))
    at = sizes.cumsum() - sizes
    for start, chunk in _chunks(counts):
        chosen = np.flatnonzero(chunk >= threshold)
        tied = np.flatnonzero(chunk[chosen] == threshold)
        chosen = np.delete(chosen, tied[ties:])
        ties -= min(ties, len(tied))
        band = band_of[chunk[chosen]]
        chosen = chosen[np.argsort(band, kind="stable")]
        end = 0
        for number, count in enumerate(np.bincount(band, minlength=BANDS).tolist()):
            node[at[number] : at[number] + count] = chosen[end : end + count] + start
            at[number] += count
            end += count
    return node


def write_hot(root: Path, table: FeatureTable, hot: HotNodes) -> None:
    """Write the ids and the bands of a table's hot rows, durably."""
    write_small(root, hot_name(table.name), hot.node)
    write_small(root, bands_name(table.name), np.stack([hot.band_ends, hot.band_uses], 1))


def hot_places(root: Path, table: FeatureTable) -> NodePlaces:
    """Where the rows of a table lie, its hot rows entered."""
    hot = map_array(root / f"{hot_name(table.name)}.npy", index_dtype(table.file.row_count))
    return NodePlaces(table.file.row_count, hot)


# ---- the order of shared rows


def order_rows(order: str, members: Iterable[Ids], rows: int, batches: int) -> Int64Array:
    """Return the row at each position of a segment's shared file, int64 [rows], in one of `ORDERS`;
    it depends on the sets alone. `members` are the shared rows that each of the segment's batches
    uses (`NodePlaces.members`)."""
    if order == "id":
        return np.arange(rows)
    if order == "minhash":
        key = _minhashes(members, rows, batches)
    else:
        assert order == "sets"
        assert batches <= SETS_MAX
        key = _gray_rank(_masks(members, rows, batches))
    return np.argsort(key, kind="stable")


def _unsigned(bits: int) -> Any:
    """The narrowest type for so many bits: up to 16, sorting takes a pass instead of a merge."""
    return next(np.dtype(f"u{width}") for width in (1, 2, 4, 8) if bits <= 8 * width)


def _masks(members: Iterable[Ids], rows: int, batches: int) -> npt.NDArray[Any]:
    """The set of batches that use each row, one bit for each batch."""
    mask = np.zeros(rows, _unsigned(batches))
    for batch, used in enumerate(members):
        mask[used] |= mask.dtype.type(1 << batch)
    return mask


def _gray_rank(mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The place of each mask in Gray's order, in which neighbours differ in one bit."""
    shift = 1
    while shift < 8 * mask.dtype.itemsize:
        mask = mask ^ (mask >> mask.dtype.type(shift))
        shift *= 2
    return mask


def _minhashes(members: Iterable[Ids], rows: int, batches: int) -> npt.NDArray[Any]:
    """Both MinHashes of each row's set of batches, as one number."""
    bits = max(1, (batches - 1).bit_length())
    first, second = (_ranks(batches, number) for number in (0, 1))
    least = np.full((2, rows), batches - 1, _unsigned(2 * bits))
    for batch, used in enumerate(members):
        least[0, used] = np.minimum(least[0, used], first[batch])
        least[1, used] = np.minimum(least[1, used], second[batch])
    both: npt.NDArray[Any] = (least[0] << least.dtype.type(bits)) | least[1]
    return both


def _ranks(batches: int, number: int) -> list[int]:
    """The place of each batch in a random order of the batches: a hash without collisions."""
    hashes = []
    for batch in range(batches):
        state = (2 * batch + number + 1) * _GOLDEN & _MASK  # SplitMix64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        hashes.append((state ^ (state >> 31), batch))
    ranks = [0] * batches
    for rank, (_, batch) in enumerate(sorted(hashes)):
        ranks[batch] = rank
    return ranks


# ---- the segment


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """How many batches share a file, and what other sizes would need.

    Attributes:
        segment: batches of a segment; None: no candidate fits.
        needed: bytes on disk by segment size, also of sizes that the order would not choose by
            itself, and of the size that was asked for; ascending.
        candidates: the sizes among which `segment` was chosen, ascending.
        fitting: all sizes in `needed` that fit, ascending; with another order, or asked for by
            number, each of them can be had.
    """

    segment: int | None
    needed: Mapping[int, int]
    candidates: Sequence[int]
    fitting: Sequence[int]


def rows_by_segment(
    batches: Iterable[Ids], num_nodes: int, segment: int | None = None
) -> dict[int, int]:
    """Return how many rows the chunks and the shared rows of all batches are together, for the
    segment sizes 1, 2, 4, ... up to all batches, and for `segment`.

    One pass over the batches; takes 4 bytes a node.
    """
    sizes = [1 << power for power in range(31)] + ([segment] if segment else [])
    last = np.full(num_nodes, -1, np.int32)
    each = np.array(sizes, np.int64)
    rows, count = np.zeros(len(sizes), np.int64), 0
    for batch, given in enumerate(batches):
        ids = np.ascontiguousarray(given, np.int64)
        before = np.zeros(batch + 1, np.int64)  # ids last used by no batch, by batch 0, 1, ...
        if lib.gd_uses_enter(
            pointer(last), num_nodes, pointer(ids), len(ids), batch, pointer(before)
        ):
            raise ValueError(f"batch {batch} has ids outside 0 to {num_nodes - 1}")
        first = batch - batch % each  # of the segment, for each size
        rows += before.cumsum()[first]
        count = batch + 1
    found = dict(zip(sizes, rows.tolist(), strict=True))
    kept = [size for size in sizes if size < 2 * count or size in (1, segment)]
    return {size: found[size] for size in sorted(set(kept))}


def choose_segment(
    needed: Mapping[int, int], disk_bytes: int, order: str, segment: int | None
) -> SegmentChoice:
    """Return the smallest segment whose bytes, of those `needed` by size, fit on the disk.

    The order "sets" begins at `SETS_DEFAULT` and ends at `SETS_MAX`; others begin at 1, packing
    without shared files. If `segment` is given, it is the only size to consider.
    """
    ascending = dict(sorted(needed.items()))
    candidates = list(ascending)
    if segment is not None:
        candidates = [segment]
    elif order == "sets":
        least = min(SETS_DEFAULT, max(ascending))
        candidates = [size for size in ascending if least <= size <= SETS_MAX]
    fitting = [size for size, need in ascending.items() if need <= disk_bytes]
    chosen = min((size for size in candidates if size in fitting), default=None)
    return SegmentChoice(chosen, ascending, candidates, fitting)


# ---- what is decided


class TooLittleMemory(ConfigError):
    """The shared rows of a segment cannot be put in order in the memory."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """What is decided before rows are placed: the batches of a segment, the bytes of the pack, each
    table's hot rows (`slots`), and its shared rows in each segment."""

    segment: int
    predicted_bytes: int
    slots: dict[str, int]
    shared_rows: dict[str, list[int]]

    @staticmethod
    def load(root: Path) -> SharedRows | None:
        """What an earlier packer decided; None: nothing yet."""
        try:
            return SharedRows(**json.loads((root / SHARED_JSON).read_bytes()))
        except FileNotFoundError:
            return None

    def save(self, root: Path) -> None:
        """Write the file, durably; all ids are durable."""
        write_whole(root / SHARED_JSON, json.dumps(asdict(self)).encode())


class SegmentSearch:
    """Counts the rows of a pack by segment size; `places` have the hot rows entered, `memory` is
    for ids, and `progress` is called with batches of all tables."""

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

            def batches(name: str = name, entries: Entries = entries) -> Iterator[Ids]:
                nonlocal done
                for number in range(len(self._samples)):
                    cold = self.cold(name, number)
                    later = int(self._counts[name][number]) - entries.seeds(number)
                    self._hot[name][number] = later - len(cold)
                    yield cold
                    done += 1
                    self._progress("choosing segments", done, total)

            rows = entries.table.file.row_count
            self._rows[name] = rows_by_segment(batches(), rows, segment)
            sizes = list(self._rows[name])
        return sizes

    def least(self, segment: int, slots: Mapping[str, int]) -> dict[str, TableUse]:
        """How the tables are used with a segment size, if no row were shared: the rows of the files
        are exact, their ids and places are not counted. `slots` has each table's hot rows."""
        none = np.zeros(len(self._samples), np.int64)
        return {
            name: TableUse(
                slots[name], slots[name] + self._seeds[name] + self._rows[name][segment], [],
                self._hot[name], none, self._counts[name],
            )
            for name in self._entries
        }  # fmt: skip

    def settle(self, segment: int, slots: Mapping[str, int], order: str) -> dict[str, TableUse]:
        """Decide which rows each segment shares, and write their ids; `order`: see `order_rows`.
        TooLittleMemory: the segment is too large for the memory."""
        batches, done = len(self._samples), 0
        uses = self.least(segment, slots)
        for table in self._tables:
            shared, rows = np.zeros(batches, np.int64), []
            self._remove_shared(table.name)
            for number, within in enumerate(self._segments(segment)):
                ids, counts = self._share(table.name, within, order)
                shared[within.start : within.stop] = counts
                rows.append(len(ids))
                if len(ids):
                    dtype = index_dtype(table.file.row_count)
                    write_small(self._root, shared_name(table.name, number), ids.astype(dtype))
                done += len(within)
                self._progress("ordering shared rows", done, batches * len(self._tables))
            uses[table.name] = replace(uses[table.name], shared=shared, shared_rows=rows)
        return uses

    def cold(self, name: str, number: int) -> Ids:
        """The entries of a batch that are neither seeds nor hot."""
        entries = self._entries[name]
        return self._places[name].cold(entries.ids(number), entries.seeds(number))

    def _segments(self, segment: int) -> Iterator[range]:
        batches = len(self._samples)
        for first in range(0, batches, segment):
            yield range(first, min(first + segment, batches))

    def _remove_shared(self, name: str) -> None:
        """Remove the ids of rows that an earlier packer, or another segment size, shared."""
        folder = (self._root / hot_name(name)).parent
        kept = {self._root / f"{each}.npy" for each in (hot_name(name), bands_name(name))}
        try:
            for path in set(folder.iterdir()) - kept:
                os.unlink(path)
        except OSError as error:
            raise write_failure(folder, error) from error

    def _share(self, name: str, within: range, by: str) -> tuple[Ids, list[int]]:
        """The ids of the rows that a segment shares, in the order of the file; and how many entries
        of each batch are such rows."""
        places, cold = self._places[name], _Cold(self, name, within, self._memory // _KEPT_SHARE)
        left = self._memory - self._memory // _KEPT_SHARE - self._place_bytes
        try:
            rows = places.begin(cold, left // _BYTES_A_SHARED_ROW)
        except TooManyShared:
            raise self._too_little(len(within)) from None
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
        most = 0
        for name, places in self._places.items():
            for within in self._segments(segment):
                try:
                    places.begin(_Cold(self, name, within, 0), 0)
                except TooManyShared as error:
                    most = max(most, error.args[0])
        needed = _BYTES_A_SHARED_ROW * most + self._place_bytes
        least = -(-needed * _KEPT_SHARE // (_KEPT_SHARE - 1)) + 1
        return TooLittleMemory(
            f"memory={format_size(self._memory, least)} is too little to put in order the "
            f"{most:,} rows that {segment} batches share: give packing at least "
            f"{least_text(least)}, or allow shorter segments: give a smaller segment=, or more "
            "disk="
        )


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

"""Pack recorded batches: `write_pack` goes through all phases (DiskGNN, SIGMOD 2025).

    record   the batches are drawn and written, and the uses of each row counted
    hot      the rows with the most uses are chosen
    search   the smallest segment that fits is chosen
    share    the rows that each segment's batches share are put in order
    place    the samples are rewritten with where their rows lie
    rows     the tables are read once, and the rows written to their places
    check    the checksums of all other files are computed

Each phase leaves durable files, and a packer that was killed goes on behind them. Once the segment
is chosen (shared.json) it ends with the same bytes; which one fits depends on the free space. When
not to use it: `gnndrive.pack` (strategies/packs/pack.py) is for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.io.write_errors import free_bytes
from gnndrive.common.memory import available_memory, format_size, least_text
from gnndrive.common.progress import Progress
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.layout.arrays import LayoutArray, checksums
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.layout.rows import MEMORY_MIN, RowPacking, reserve
from gnndrive.store.layout.table_parts import SUM_MODULUS
from gnndrive.store.packed.format import (
    MEND,
    PACKS,
    PackInfo,
    PackSettings,
    TableRows,
    TableUse,
    contents,
    listed,
    pack_bytes,
    placed_index,
    rows_info,
    table_checksums,
)
from gnndrive.store.packed.places import NodePlaces
from gnndrive.store.packed.placing import Placing, outputs_of
from gnndrive.store.packed.record import BatchSource, Recorded, record
from gnndrive.store.packed.samples import VOLUME_BYTES, MappedSamples, load_schema
from gnndrive.store.packed.sections import Schema, with_places
from gnndrive.store.packed.sharing import (
    SETS_MAX,
    SegmentChoice,
    SegmentSearch,
    SharedRows,
    TooLittleMemory,
    choose_hot,
    choose_segment,
    hot_places,
    write_hot,
)
from gnndrive.store.reader import Store

HotSlots = Callable[[Recorded], Mapping[str, int]]
"""Takes what was recorded; returns how many rows of each table memory will hold."""

LESS = (
    "pack fewer batches or epochs, allow less with --disk, or choose a folder on another disk with "
    "--out"
)
MEMORY_DEFAULT = 1 << 30
_BYTES_A_ROW = 12  # of a table: its uses, its place, and what counts rows by segment size
_MARGIN_BYTES = 2 << 20  # for folders and the file system's metadata
_BLOCK_BYTES = 512  # the unit of st_blocks
_UNSURE = 2  # so many times less than the prediction, a pack may be


class DoesNotFit(ConfigError):
    """The pack needs more than `disk=`, so the same call can never succeed."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes a pack may have, in the unfinished pack's folder `root`; refuses a pack that
    does not fit, with the bytes it needs and what would fit."""

    root: Path
    settings: PackSettings

    @property
    def free(self) -> int:
        """Bytes that the disk has for the pack, with those that it takes already."""
        taken = sum(path.stat().st_blocks for path in self.root.rglob("*") if path.is_file())
        return max(free_bytes(self.root) + taken * _BLOCK_BYTES - _MARGIN_BYTES, 0)

    @property
    def limit(self) -> int:
        """The most bytes of the pack."""
        disk = self.settings.disk
        return self.free if disk is None else min(disk, self.free)

    def check_prediction(self, samples: int) -> None:
        """Refuse a pack whose samples cannot fit, from the bytes that the first batches predict.

        These may be larger than the others, so only what exceeds the limit twice is refused here;
        the exact bytes of the pack are compared before a row is written.
        """
        if samples // _UNSURE > self.limit:
            raise self._refusal(samples, "about", [])

    def refusal(self, choice: SegmentChoice, fixed: int) -> Exception:
        """The error for a pack that fits with no segment that may be chosen; `fixed` bytes do not
        depend on the number of epochs."""
        needed = min(choice.needed[size] for size in choice.candidates)
        remedies = []
        if fitting := choice.fitting:
            order = "" if min(fitting) <= SETS_MAX else ' and order="minhash"'
            remedies.append(f"give segment={min(fitting)}{order}")
        epochs = self.settings.epochs
        fewer = (self.limit - fixed) * epochs // max(needed - fixed, 1)
        if 1 <= fewer < epochs:
            remedies.append(f"record epochs={fewer}")
        return self._refusal(needed, "at least", remedies)

    def _refusal(self, needed: int, about: str, remedies: list[str]) -> Exception:
        text = f"the pack needs {about} {needed:,} bytes ({format_size(needed)})"
        remedies += ["pack fewer batches", "give more memory= for hot rows"]
        if (disk := self.settings.disk) is not None and disk <= self.free:
            remedies += ["allow more with disk="]
            return DoesNotFit(f"{text}, and disk={format_size(disk)}: {', or '.join(remedies)}")
        remedies += ["free some space", "choose another disk with out="]
        has = f"the disk of {self.root} has {self.free:,} for it"
        return StoreError(f"{text}, and {has}: {', or '.join(remedies)}")


class PackingFolder(LayoutFolder[PackInfo]):
    """The folder of an unfinished pack; see `LayoutFolder`. A pack of other tables has the same
    name, so their checksums (`PackInfo.tables`) are compared, too. StoreError if what is to be
    replaced lies outside the store and is no pack."""

    def __init__(
        self, store: Store, target: Path, settings: PackSettings, tables: Mapping[str, str],
        overwrite: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(PACKS, store, target, settings, overwrite)
        self._tables = dict(tables)

    def _refuse_finished(self) -> None:
        super()._refuse_finished()
        # What is no pack is the user's; in the store's own folder it is a damaged one.
        if self.target.parent != Path(self._store.path, PACKS.inside) and self.target.exists():
            try:
                PACKS.read(self.target)
            except StoreError as error:
                raise StoreError(
                    f"{self.target} is not replaced, because it is no pack: {error}"
                ) from None

    def _record(self) -> dict[str, Any]:
        return super()._record() | {"tables": self._tables}

    def _said_of_target(self) -> str:
        try:
            return f", with the rows of {', '.join(PACKS.read(self.target).tables)}"
        except StoreError:
            return ""

    def _read(self) -> PackInfo:
        info = super()._read()
        if info.tables != self._tables:
            raise StoreError(f"{self.path} has the rows of other tables: {MEND}")
        return info


def write_pack(
    store: Store,
    target: Path,
    settings: PackSettings,
    source: BatchSource,
    tables: Sequence[FeatureTable],
    hot_slots: HotSlots,
    memory: int | None = None,
    progress: Progress | None = None,
    volume_bytes: int = VOLUME_BYTES,
    overwrite: bool = False,
) -> PackInfo:
    """Pack the batches of a source, or go on where an earlier packer was interrupted.

    Args:
        hot_slots: how many rows of each table memory will hold.
        memory: bytes that this may use, apart from what `source` uses; None: a gibibyte, or half of
            the available memory if that is less.
        volume_bytes: see `SampleWriter`.
        overwrite: replace a pack that is there.
    """
    if not tables or not source.total:
        what = "features" if source.total else "batches"
        raise ConfigError(f"there are no {what} to pack: train with another strategy")
    if settings.order == "sets" and (settings.segment or 0) > SETS_MAX:
        raise ConfigError(
            f'segment={settings.segment} is too large for order="sets": give at most {SETS_MAX}, '
            'or order="minhash"'
        )
    if memory is None:
        memory = min(MEMORY_DEFAULT, available_memory() // 2)
    rows, least = least_memory(tables)
    if memory < least:
        raise ConfigError(
            f"{format_size(memory, least)} is too little to pack {rows:,} rows: give at least "
            f"packing_memory={least_text(least)}, and memory= stays"
        )
    told, packed = progress or (lambda *_: None), table_checksums(store, tables)
    folder = PackingFolder(store, target, settings, packed, overwrite)
    with folder, store.unchanged():
        if folder.finished is not None:
            return folder.finished
        work = _Packing(store, folder, settings, source.total, tables, memory, told)
        shared = SharedRows.load(folder.path)
        if shared is None:
            try:
                recorded = record(
                    folder.path, source, store.info.types, tables, work.room.check_prediction,
                    told, volume_bytes,
                )  # fmt: skip
                shared = work.share(recorded, hot_slots)
            except DoesNotFit:
                folder.discard()
                raise
        return work.finish(shared)


def least_memory(tables: Sequence[FeatureTable]) -> tuple[int, int]:
    """The rows of the tables, and the least bytes of memory that packing them takes."""
    rows = sum(table.file.row_count for table in tables)
    return rows, MEMORY_MIN + _BYTES_A_ROW * rows


class _Packing:
    """The phases after recording; arguments as for `write_pack`."""

    def __init__(
        self, store: Store, folder: PackingFolder, settings: PackSettings, total: int,
        tables: Sequence[FeatureTable], memory: int, progress: Progress,
    ) -> None:  # fmt: skip
        self._store, self._folder, self._root = store, folder, folder.path
        self._settings, self._tables, self._memory = settings, tables, memory
        self._batches, self._progress = total // settings.epochs, progress
        self.room = Room(folder.path, settings)

    def share(self, recorded: Recorded, hot_slots: HotSlots) -> SharedRows:
        """Choose the hot rows and the segment, and write which rows are hot or shared."""
        wanted, slots, places = hot_slots(recorded), dict[str, int](), dict[str, NodePlaces]()
        for table in self._tables:
            hot = choose_hot(recorded.counts.pop(table.name), wanted.get(table.name, 0))
            write_hot(self._root, table, hot)
            slots[table.name] = len(hot.node)
            places[table.name] = hot_places(self._root, table)
        samples = MappedSamples(self._root, recorded.schema, recorded.index)
        search = SegmentSearch(
            self._root, samples, self._tables, places, self._memory, self._progress
        )
        needed, counted, limit = dict[int, int](), set[int](), self.room.limit
        for size in search.count(self._settings.segment):
            needed[size] = self._bytes(recorded, search.least(size, slots), size)
        while True:
            choice = choose_segment(needed, limit, self._settings.order, self._settings.segment)
            # If none fits, one that might with another order is counted to be named.
            segment = choice.segment or min(choice.fitting, default=None)
            if segment is None or segment in counted:
                fixed = sum(slots[t.name] * t.file.row_bytes for t in self._tables)
                raise self.room.refusal(choice, fixed)
            order = self._settings.order if choice.segment else "id"
            try:
                uses = search.settle(segment, slots, order)
            except TooLittleMemory:
                if choice.segment:
                    raise
                del needed[segment]  # it is not named
                continue
            nbytes = needed[segment] = self._bytes(recorded, uses, segment)
            counted.add(segment)
            if choice.segment and nbytes <= limit:
                break
        shared_rows = {name: list(use.shared_rows) for name, use in uses.items()}
        found = SharedRows(segment, nbytes, slots, shared_rows)
        found.save(self._root)
        return found

    def _bytes(self, recorded: Recorded, uses: Mapping[str, TableUse], segment: int) -> int:
        schema = with_places(recorded.schema, [table.name for table in self._tables])
        index = placed_index(recorded.schema, recorded.index, uses)
        infos = contents(schema, index, self._tables, uses)
        return pack_bytes(self._info(schema, segment, 0, listed(infos, {})))

    def _info(
        self, schema: Schema, segment: int, predicted: int, arrays: Mapping[str, LayoutArray]
    ) -> PackInfo:
        return PackInfo(
            self._store.identity, self._settings, self._batches, segment, predicted, 0, schema,
            arrays, table_checksums(self._store, self._tables),
        )  # fmt: skip

    def finish(self, shared: SharedRows) -> PackInfo:
        """Place and write all rows, compute the checksums and make the folder a pack."""
        recorded = load_schema(self._root)
        assert recorded is not None, "it was written before the first sample"
        placing = Placing(self._root, recorded, self._tables, shared)
        schema, index = placing.schema, placing.run(self._progress)
        rows, sums = self._write_rows(MappedSamples(self._root, schema, index), placing, shared)
        self._store.check_unchanged()
        infos = contents(schema, index, self._tables, rows)
        hashed = [info for info in infos if info.name not in sums]
        told = partial(self._progress, "checksums")
        try:
            sums |= dict(checksums(self._root, hashed, MEND, told))
        except ReadError as error:
            raise StoreError(f"{error}: {MEND}") from None
        arrays = listed(infos, sums)
        made = self._info(schema, shared.segment, shared.predicted_bytes, arrays)
        return self._folder.finish(replace(made, actual_bytes=pack_bytes(made)))

    def _write_rows(
        self, samples: MappedSamples, placing: Placing, shared: SharedRows
    ) -> tuple[dict[str, TableRows], dict[str, str]]:
        """Reserve the files of rows and write them; returns how many rows each table has, and the
        checksum of each array."""
        packings = {}
        for table in self._tables:
            places = placing.places[table.name]
            outputs = list(outputs_of(self._root, samples, table, places, shared.segment))
            info = rows_info(table, sum(len(output.ids) for output in outputs))
            packings[info] = RowPacking(
                table.file, outputs, self._root, table.name.replace("/", ":"), self._memory,
                self._store.info.arrays[table.name].sha256,
            )  # fmt: skip
        reserve(self._root, packings, max(each.spool_bytes for each in packings.values()), LESS)
        rows, sums = {}, {}
        for table, (info, packing) in zip(self._tables, packings.items(), strict=True):
            sums[info.name] = f"sum64:{sum(packing.run(self._progress)) % SUM_MODULUS:016x}"
            name = table.name
            rows[name] = TableRows(shared.slots[name], info.shape[0], shared.shared_rows[name])
        return rows, sums

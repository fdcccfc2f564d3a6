"""Recorded samples on disk: `SampleWriter` writes them, `SampleReader` reads them again.

They are in volumes, `samples/NNN.npy`, int32 [n]: records (sections.py), the rows of the index that
belong to them, and a footer of 4,096 bytes that says where these rows are. A volume is written
under another name, fsynced and renamed: it exists whole or not at all, and says itself what it
holds. So a packer that was killed goes on after the last whole volume, and a volume can be replaced
by one with other sections (`generation`) in one step.

`MappedSamples` maps the samples of an unfinished pack, some of whose sections the packer reads many
times. A volume that was placed (placing.py) has more columns in its rows of the index than a
recorded one, but the same sections, so both are read in the same way. Of a finished pack,
`Recording` (recording.py) reads the batches with the places of their rows.

When not to use it: for samples of a single epoch that is trained once; drawing them costs less.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.checked_json import Record
from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES
from gnndrive.common.io.small_files import PART, fsync_folder, write_all, write_whole
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.files import open_plain, read_at_most, read_plain
from gnndrive.store.format import DATA_OFFSET, JSON_BYTES_MAX, npy_header
from gnndrive.store.layout.arrays import Ids, Maps, StoredIds, write_small
from gnndrive.store.packed.encoding import (
    RecordedBatch,
    Sections,
    batch_of,
    check_schema,
    hop_counts_of,
    schema_of,
    section_name,
    sections_of,
)
from gnndrive.store.packed.format import (
    FOOTER_BYTES,
    INDEX,
    MEND,
    SAMPLES,
    volume_info,
    volume_name,
)
from gnndrive.store.packed.sections import (
    PLACE_COLUMNS,
    RECORD_ALIGN,
    Schema,
    TablePlaces,
    aligned,
    entries_of,
    parse_schema,
)
from gnndrive.store.types import Types

SCHEMA_JSON = "schema.json"  # of an unfinished pack; pack.json has it in a finished one
VOLUME_BYTES = 64 << 20
_MAGIC = 0x6B6361706E6E67  # "gnnpack"
_FOOTER = ("magic", "rows", "columns", "offset", "generation")
_ZEROS = bytes(RECORD_ALIGN)
_BYTES = PLACE_COLUMNS.index("bytes")


# ---- volumes


class VolumeWriter:
    """Writes one volume, its records in order; use it as a context manager.

    `generation` is 0 for recorded samples, another number for those that replace them; `nbytes`
    are those of the records so far.
    """

    def __init__(self, root: Path, number: int, schema: Schema, generation: int = 0) -> None:
        self.number, self.nbytes = number, 0
        self._path = root / f"{volume_name(number)}.npy"
        self._part = self._path.with_name(self._path.name + PART)
        self._schema, self._generation = schema, generation
        self._rows: list[list[int]] = []
        self._fd = -1

    def __enter__(self) -> VolumeWriter:
        try:
            self._path.parent.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._part, flags, 0o666)
            write_all(self._fd, memoryview(_ZEROS))  # in the place of the header
        except OSError as error:
            raise write_failure(self._path, error) from error
        return self

    def __exit__(self, *raised: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def append(
        self, sections: Sequence[npt.NDArray[Any] | None], rest: Sequence[int]
    ) -> Int64Array:
        """Write a record of sections in the schema's order; `rest` are the columns after
        the counts in its row of the index, which is returned."""
        nbytes = self._schema.places(entries_of(sections))[1]
        record = np.zeros(nbytes, np.uint8)
        counts = self._schema.fill(record, sections)
        row = [self.number, self.nbytes, nbytes, *counts, *rest]
        assert len(row) == len(self._schema.columns)
        self._put(record)
        self._rows.append(row)
        self.nbytes += nbytes
        return np.array(row, np.int64)

    def finish(self) -> None:
        """Write the rows of the index and the footer, fsync the file and give it its name."""
        columns = len(self._schema.columns)
        rows = np.array(self._rows, np.int64).reshape(-1, columns)
        footer = np.zeros(FOOTER_BYTES // 8, np.int64)
        footer[: len(_FOOTER)] = (_MAGIC, *rows.shape, self.nbytes, self._generation)
        table = np.zeros(aligned(rows.nbytes, RECORD_ALIGN), np.uint8)
        table[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
        self._put(table)
        self._put(footer.view(np.uint8))
        info = volume_info(self.number, [row[_BYTES] for row in self._rows], columns)
        try:
            os.pwrite(self._fd, npy_header(info), 0)
            os.fsync(self._fd)
            os.rename(self._part, self._path)
            fsync_folder(self._path.parent)
        except OSError as error:
            raise write_failure(self._path, error) from error

    def _put(self, array: npt.NDArray[np.uint8]) -> None:
        try:
            write_all(self._fd, array.data)
        except OSError as error:
            raise write_failure(self._path, error) from error


def read_volume(root: Path, number: int, *widths: int) -> tuple[list[Int64Array], int]:
    """Read the rows of the index, and the generation, of a volume that this machine has written;
    `widths` are the numbers of columns that it may have."""
    name = f"{volume_name(number)}.npy"
    refused = StoreError(
        f"{root / name} is no volume of this recording: remove the folder and pack again"
    )
    fd = open_plain(root, name)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, max(size - FOOTER_BYTES, 0), os.SEEK_SET)
        content = read_at_most(fd, FOOTER_BYTES)
        footer = dict(zip(_FOOTER, np.frombuffer(content, np.int64).tolist(), strict=False))
        count, offset = footer.get("rows", 0), footer.get("offset", 0)
        columns = footer.get("columns", 0)
        end = size - FOOTER_BYTES - DATA_OFFSET
        fits = len(content) == FOOTER_BYTES and 0 <= offset <= end
        if not fits or footer["magic"] != _MAGIC or columns not in widths:
            raise refused
        if not 0 <= 8 * count * columns <= end - offset:
            raise refused
        os.lseek(fd, DATA_OFFSET + offset, os.SEEK_SET)
        rows = np.frombuffer(read_at_most(fd, 8 * count * columns), np.int64)
        return list(rows.reshape(count, columns)), footer["generation"]
    finally:
        os.close(fd)


def whole_volumes(root: Path) -> int:
    """How many volumes are there, from the first on; removes all other files of samples/."""
    folder, count = root / SAMPLES, 0
    others = set(folder.iterdir()) if folder.is_dir() else set()
    while (path := root / f"{volume_name(count)}.npy") in others:
        others.remove(path)
        count += 1
    for path in others:
        try:
            path.unlink()
        except OSError as error:
            raise write_failure(path, error) from error
    return count


# ---- recorded batches


class SampleWriter:
    """Writes recorded batches in order, after those that are there; use it as a context manager.

    The first batch that is ever written decides the schema. The bytes depend on the batches alone.
    A volume ends with the record that reaches `volume_bytes`.

    Attributes:
        schema: what a record holds; None: no batch was written yet.
        rows: the rows of the index of all batches that are written, or are in the volume that is
            being written.
    """

    def __init__(
        self, root: Path, types: Types, tables: Sequence[FeatureTable], hops: int,
        volume_bytes: int = VOLUME_BYTES,
    ) -> None:  # fmt: skip
        self._root, self._types, self._tables, self._hops = root, types, tables, hops
        self._volume_bytes = volume_bytes
        self._volume: VolumeWriter | None = None
        self.schema: Schema | None = load_schema(root)
        self.rows: list[Int64Array] = []
        self._volumes = whole_volumes(root)
        if self.schema is None and self._volumes:
            raise StoreError(f"{root} has samples without {SCHEMA_JSON}: remove it, and pack again")
        for number in range(self._volumes):
            assert self.schema is not None
            self.rows += read_volume(root, number, len(self.schema.columns))[0]

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._volume is not None:
            self._volume.__exit__(*raised)
            self._volume = None

    def append(self, batch: RecordedBatch) -> None:
        """Write the next batch."""
        if self.schema is None:
            self.schema = schema_of(batch, self._types, self._tables, self._hops)
            write_whole(self._root / SCHEMA_JSON, json.dumps(self.schema.as_dict()).encode())
        if self._volume is None:
            self._volume = VolumeWriter(self._root, self._volumes, self.schema).__enter__()
        sections = sections_of(batch, self.schema)
        rest = hop_counts_of(batch.sample, self.schema)
        self.rows.append(self._volume.append(list(sections.values()), rest))
        if self._volume.nbytes >= self._volume_bytes:
            self._end_volume()

    def finish(self) -> Int64Array:
        """End the last volume and write index.npy, which is returned."""
        self._end_volume()
        columns = 0 if self.schema is None else len(self.schema.columns)
        index = np.array(self.rows, np.int64).reshape(len(self.rows), columns)
        write_small(self._root, INDEX, index)
        return index

    def _end_volume(self) -> None:
        if self._volume is not None:
            self._volume.finish()
            self._volume.__exit__()
            self._volume, self._volumes = None, self._volumes + 1


class SampleReader:
    """Reads recorded batches of a pack that may come from a stranger.

    Several threads may use one object at once. `batches` are those of an epoch; None: all are one
    epoch's.
    """

    def __init__(
        self, root: Path, schema: Schema, index: Int64Array, types: Types,
        tables: Sequence[FeatureTable], batches: int | None = None,
    ) -> None:  # fmt: skip
        check_schema(schema, types, tables, str(root))
        self._root, self._schema, self._types = root, schema, types
        self._index, self._batches = index, batches or max(len(index), 1)

    def __len__(self) -> int:
        """The number of batches of all recorded epochs."""
        return len(self._index)

    def read(self, number: int) -> RecordedBatch:
        """Read batch `number`: recording × batches of an epoch + its number in it; blocks."""
        return self.decode(number, self.sections(number))

    def decode(self, number: int, sections: Sections, empty: Allocate = np.empty) -> RecordedBatch:
        """The batch that has these sections; see `read` and `sections`."""
        row, index = self._index[number], number % self._batches
        where = str(self._file(row))
        return batch_of(index, row, sections, self._schema, self._types, where, empty)

    def sections(self, number: int, empty: Allocate = np.empty) -> Sections:
        """Read the sections of a batch by name, as they are stored; None: it has none. The arrays
        share one buffer that belongs to the caller; `empty` allocates it."""
        row = self._index[number]
        volume, offset, nbytes = (int(each) for each in row[:3])
        counts = self._schema.counts(row).tolist()
        sane = all(-1 <= count < 1 << 40 for count in counts) and 0 <= volume < 1 << 30
        _, needed = self._schema.places(counts if sane else [0] * len(counts))
        if not sane or nbytes != needed or offset < 0 or offset % RECORD_ALIGN:
            raise self._damaged(row)
        record = self._record(row, DATA_OFFSET + offset, nbytes, empty)
        return self._schema.split(record, counts)

    def _record(
        self, row: Int64Array, start: int, nbytes: int, empty: Allocate
    ) -> npt.NDArray[np.uint8]:
        fd = open_plain(self._root, f"{volume_name(int(row[0]))}.npy", MEND)
        try:
            if start + nbytes > os.fstat(fd).st_size:  # before memory is taken for it
                raise self._damaged(row)
            record: npt.NDArray[np.uint8] = empty(nbytes, np.uint8)
            if _read(fd, record, start) < nbytes:
                raise self._damaged(row)
            return record
        except OSError as error:
            raise StoreError(
                f"{self._file(row)} cannot be read ({error.strerror}): check the disk (dmesg)"
            ) from error
        finally:
            os.close(fd)

    def _file(self, row: Int64Array) -> Path:
        return self._root / f"{volume_name(int(row[0]))}.npy"

    def _damaged(self, row: Int64Array) -> StoreError:
        return StoreError(f"{self._file(row)} does not hold what the index says: {MEND}")


def _read(fd: int, record: npt.NDArray[np.uint8], start: int) -> int:
    """Read a whole record, past the page cache if its memory starts on a page and the file system
    allows it: within a memory limit, a batch would otherwise push out pages for its own, once each.
    Returns the bytes that are read; fewer at the end of the file."""
    direct = record.ctypes.data % PAGE_BYTES == 0
    if direct:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        except OSError:
            direct = False
    done = 0
    while done < len(record):
        try:
            got = os.preadv(fd, [record.data[done:]], start + done)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, 0)  # it accepts the flag, but refuses these reads
            direct = False
            continue
        if not got:
            break
        done += got
    return done


def load_schema(root: Path) -> Schema | None:
    """The schema of an unfinished pack; None: no batch was written."""
    if not os.path.lexists(root / SCHEMA_JSON):
        return None
    mend = "remove the folder, and pack again"
    content = read_plain(root, SCHEMA_JSON, JSON_BYTES_MAX, mend)
    return parse_schema(Record.parse(content, str(root / SCHEMA_JSON), mend))


def read_index(root: Path, batches: int, columns: int) -> Int64Array:
    """Read index.npy, int64 [batches, columns]; StoreError: it is of another size."""
    wanted = DATA_OFFSET + 8 * batches * columns
    content = read_plain(root, "index.npy", wanted + 1, MEND)
    if len(content) != wanted:
        raise StoreError(f"{root}/index.npy has another size than pack.json says: {MEND}")
    return np.frombuffer(content, np.int64, offset=DATA_OFFSET).reshape(batches, columns)


# ---- mapped, while a pack is made


class MappedSamples:
    """The sections of all batches of an unfinished pack, mapped while they are looked at; `rows`
    are the rows of the index, int64 [columns] each, of the volumes as they are now."""

    def __init__(self, root: Path, schema: Schema, rows: Iterable[Int64Array]) -> None:
        self.schema, self.rows = schema, list(rows)
        self._root = root
        self._maps = Maps()
        self._place = {section.name: at for at, section in enumerate(schema.sections)}

    def __len__(self) -> int:
        """The number of batches of all recorded epochs."""
        return len(self.rows)

    def sections(self, number: int) -> dict[str, Ids | None]:
        """The sections of a batch by name, in the schema's order; None: it has none."""
        row = self.rows[number]
        counts = self.schema.counts(row).tolist()
        record = self._maps.data(self._volume(row))[int(row[1]) :]
        return self.schema.split(record, counts)

    def section(self, number: int, name: str) -> Ids:
        """One section of a batch; empty if it has none."""
        found = self.sections(number)[name]
        return np.empty(0, np.int32) if found is None else found

    def count(self, number: int, name: str) -> int:
        """The number of entries of a section; 0 if there is none."""
        return max(int(self.schema.counts(self.rows[number])[self._place[name]]), 0)

    def stored(self, number: int, name: str) -> StoredIds:
        """One section of a batch, whose file is mapped only while it is looked at."""
        row, at = self.rows[number], self._place[name]
        counts = self.schema.counts(row).tolist()
        start = int(row[1]) + self.schema.places(counts)[0][at]
        dtype = np.dtype(self.schema.sections[at].dtype)
        return StoredIds(self._maps, self._volume(row), start, max(counts[at], 0), dtype)

    def _volume(self, row: Int64Array) -> Path:
        return self._root / f"{volume_name(int(row[0]))}.npy"


class Entries:
    """The entries of one table in each batch: the rows that it needs, which are in `section`."""

    def __init__(self, samples: MappedSamples, table: FeatureTable, places: TablePlaces) -> None:
        self.table, self.places, self.arranged = table, places, places.arranged
        self._samples = samples
        self.section = section_name("edge" if table.of_edges else "node", table.type)

    def ids(self, number: int) -> Ids:
        """The rows, int32 or int64 [entries]; the seeds' first if the table is arranged."""
        return self._samples.section(number, self.section)

    def stored(self, number: int) -> StoredIds:
        """The same, whose file is mapped only while they are looked at."""
        return self._samples.stored(number, self.section)

    def count(self, number: int) -> int:
        """How many there are."""
        return self._samples.count(number, self.section)

    def seeds(self, number: int) -> int:
        """How many of the first entries are seeds, which are all in the chunk."""
        if not self.arranged:
            return 0
        samples = self._samples
        found = samples.schema.hop_counts(samples.rows[number], "nodes", None)
        assert found is not None, "plain samples have counts by hop"
        return found[0]

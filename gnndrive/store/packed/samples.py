"""Recorded samples on disk: `SampleWriter` writes them, `SampleReader` reads them again.

A batch's sections for placing (`node`, `row`, `hot/TABLE`, …) come from `SampleReader.sections`,
and a volume with other sections replaces the recorded one through `VolumeWriter`. Of a finished
pack, `Recording` (recording.py) reads the batches with the places of their rows.

When not to use it: for samples of a single epoch that is trained once; drawing them costs less.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES
from gnndrive.common.io.small_files import write_whole
from gnndrive.common.records import Int64Array, Seeds
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import DATA_OFFSET, JSON_BYTES_MAX, ArrayInfo, npy_header
from gnndrive.store.packed.encoding import (
    RecordedBatch,
    Sections,
    batch_of,
    check_schema,
    hop_counts_of,
    schema_of,
    sections_of,
)
from gnndrive.store.packed.format import MEND
from gnndrive.store.packed.sections import RECORD_ALIGN, Schema, parse_schema
from gnndrive.store.packed.volumes import (
    VOLUME_BYTES,
    VolumeWriter,
    read_volume,
    volume_name,
    whole_volumes,
)
from gnndrive.store.parsing import Record
from gnndrive.store.types import Types

SCHEMA_JSON = "schema.json"  # of an unfinished pack; pack.json has it in a finished one


class SampleWriter:
    """Writes recorded batches in order, after those that are there; use it as a context manager.

    The first batch that is ever written decides the schema. The bytes depend on the batches alone.

    Args:
        root: the unfinished pack's folder.
        types: the store's types.
        tables: the tables whose rows are packed.
        hops: the number of hops.
        volume_bytes: a volume ends with the record that reaches this size.

    Attributes:
        schema: what a record holds; None: no batch was written yet.
        rows: the rows of the index so far, each int64 [columns].

    Raises:
        StoreError: the folder cannot be written to, or holds something else.
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
            self.rows += list(read_volume(root, number, len(self.schema.columns)).rows)

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._volume is not None:
            self._volume.__exit__(*raised)
            self._volume = None

    @property
    def done(self) -> int:
        """The number of batches that are written, or are in the volume that is being written."""
        return len(self.rows)

    def append(self, batch: RecordedBatch) -> None:
        """Write the next batch.

        Raises:
            ConfigError: its sample holds something that cannot be recorded.
            StoreError: the disk is full, or writing failed.
        """
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
        """End the last volume and write index.npy.

        Returns:
            The index, int64 [batches, columns].

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        self._end_volume()
        columns = 0 if self.schema is None else len(self.schema.columns)
        index = np.array(self.rows, np.int64).reshape(len(self.rows), columns)
        write_index(self._root, index)
        return index

    def _end_volume(self) -> None:
        if self._volume is not None:
            self._volume.finish()
            self._volume.__exit__()
            self._volume, self._volumes = None, self._volumes + 1


class SampleReader:
    """Reads recorded batches; several threads may use one object at once.

    Args:
        root: the pack's folder, perhaps from a stranger.
        schema: what its records hold.
        index: the index, int64 [batches of all epochs, columns].
        types: the store's types.
        tables: the tables whose rows are packed.
        batches: batches of an epoch; None: all are one epoch's.

    Raises:
        StoreError: the schema is not one of a recording of this store.
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
        """Read a batch; blocks.

        Args:
            number: recording x batches of an epoch + the batch's number in it.

        Raises:
            StoreError: it is missing or damaged.
        """
        return self.decode(number, self.sections(number))

    def decode(self, number: int, sections: Sections, empty: Allocate = np.empty) -> RecordedBatch:
        """The batch that has these sections; see `read` and `sections`."""
        row = self._index[number]
        return batch_of(
            number % self._batches, row, sections, self._schema, self._types, self._where(row),
            empty,
        )  # fmt: skip

    def seeds(self, number: int) -> Seeds:
        """The seeds of a batch, which reads all of it; see `read`."""
        return self.read(number).seeds

    def sections(self, number: int, empty: Allocate = np.empty) -> Sections:
        """Read the sections of a batch by name, as they are stored; None: it has none.

        The arrays share one buffer that belongs to the caller; `empty` allocates it.

        Raises:
            StoreError: they are missing, or the index is damaged.
        """
        row = self._index[number]
        volume, offset, nbytes = (int(each) for each in row[:3])
        counts = self._schema.counts(row).tolist()
        sane = all(-1 <= count < 1 << 40 for count in counts) and 0 <= volume < 1 << 30
        starts, needed = self._schema.places(counts if sane else [0] * len(counts))
        if not sane or nbytes != needed or offset < 0 or offset % RECORD_ALIGN:
            raise self._damaged(row)
        record = self._record(row, DATA_OFFSET + offset, nbytes, empty)
        found = {}
        for section, start, count in zip(self._schema.sections, starts, counts, strict=True):
            part = record[start : start + section.itemsize * max(count, 0)].view(section.dtype)
            found[section.name] = None if count < 0 else part
        return found

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
                f"{self._where(row)} cannot be read ({error.strerror}): check the disk (dmesg)"
            ) from error
        finally:
            os.close(fd)

    def _where(self, row: Int64Array) -> str:
        return str(self._root / f"{volume_name(int(row[0]))}.npy")

    def _damaged(self, row: Int64Array) -> StoreError:
        return StoreError(f"{self._where(row)} does not hold what the index says: {MEND}")


def _read(fd: int, record: npt.NDArray[np.uint8], start: int) -> int:
    """Read a whole record, past the page cache if its memory starts on a page and the file system
    allows it: within a memory limit, a batch would otherwise push out pages for its own, once each.

    Returns:
        The bytes that are read; fewer at the end of the file.

    Raises:
        OSError: the file cannot be read.
    """
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
    """The schema of an unfinished pack; None: no batch was written.

    Raises:
        StoreError: it is damaged.
    """
    if not os.path.lexists(root / SCHEMA_JSON):
        return None
    where = str(root / SCHEMA_JSON)
    try:
        document = json.loads(read_plain(root, SCHEMA_JSON, JSON_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{where} cannot be read ({error}): remove the folder") from None
    return parse_schema(Record(document, where, "the schema", "remove the folder, and pack again"))


def write_index(root: Path, index: Int64Array) -> None:
    """Write index.npy, int64 [batches, columns].

    Raises:
        StoreError: the disk is full, or writing failed.
    """
    header = npy_header(ArrayInfo("index", "int64", index.shape, ""))
    write_whole(root / "index.npy", header + np.ascontiguousarray(index).tobytes())


def read_index(root: Path, batches: int, columns: int) -> Int64Array:
    """Read index.npy, int64 [batches, columns].

    Raises:
        StoreError: it is missing, or of another size.
    """
    wanted = DATA_OFFSET + 8 * batches * columns
    try:
        content = read_plain(root, "index.npy", wanted + 1, MEND)
    except OSError as error:
        raise StoreError(f"{root}/index.npy cannot be read ({error.strerror}): {MEND}") from None
    if len(content) != wanted:
        raise StoreError(f"{root}/index.npy has another size than pack.json says: {MEND}")
    return np.frombuffer(content, np.int64, offset=DATA_OFFSET).reshape(batches, columns)

"""Edges of datasets in large arrays or CSV: read in chunks, sorted in memory or by DuckDB.

Each kind of file yields its edges in chunks, in the file's order. If sorting all edges fits in the
memory budget, memory holds the ends of all of them, else one chunk.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, ends_of
from gnndrive.store.format import index_dtype
from gnndrive.store.importers.csc import EdgeEnds, write_csc
from gnndrive.store.importers.edge_list import EdgeList, write_graph
from gnndrive.store.importers.features import BAD_FILE, map_npy, read_header
from gnndrive.store.importers.text import columns_of, place_of_row, read_counted
from gnndrive.store.temporary_folders import TemporaryFolder
from gnndrive.store.writer import StoreWriter

CHUNK = 1 << 20  # edges in a chunk
SORTING_BYTES = 40  # memory that sorting takes for each edge (csc.py)
_ENDS = {"source": "int64", "target": "int64"}
Pair: TypeAlias = "tuple[EdgeEnds, EdgeEnds]"


class Ends:
    """The ends of `count` edges in a file, which errors call `where`."""

    count: int
    where: str

    def chunks(self) -> Iterator[Pair]:
        """Yield sources and targets, whole numbers [n] each, in the file's order."""
        raise NotImplementedError

    def write(
        self, writer: StoreWriter, type: EdgeKey, memory: int, progress: Progress | None
    ) -> None:
        """Sort the edges and write them as those of a type; if sorting needs more than `memory`
        bytes, DuckDB sorts and spills beside the store. `progress` is called with edges."""
        name = "edges" if type is None else " ".join(type)
        chunks = _checked(writer, type, self, f"reading {name}", progress)
        if self.count * SORTING_BYTES > memory:
            with (
                as_parquet(writer.path, _ENDS, map(list, chunks)) as file,
                closing(EdgeList([file], memory, file, name=self.where)) as edges,
            ):
                write_graph(edges, writer, False, progress, type)
            return
        dtypes = (index_dtype(writer.types.nodes[end].num_nodes) for end in ends_of(type))
        src, dst = (np.empty(self.count, dtype) for dtype in dtypes)
        done = 0
        for sources, targets in chunks:
            src[done : done + len(sources)] = sources
            dst[done : done + len(sources)] = targets
            done += len(sources)
        write_csc(writer, type, src, dst)

    def place(self, edge: int) -> str:
        """The place of an edge in the file, for errors."""
        return f"{self.where}, edge {edge} (from 0)"


class CsvEnds(Ends):
    """Edges in CSV: a source and a target a line, no header, as many as `count_source` says."""

    def __init__(self, path: Path, count: int, count_source: str) -> None:
        self._path, self._count_source = path, count_source
        self.count, self.where = count, str(path)
        self._columns = columns_of(path) and 2

    def chunks(self) -> Iterator[Pair]:
        """See `Ends.chunks`."""
        for rows in read_counted(
            self._path, self._columns, "int64", self.count, self._count_source
        ):
            yield rows[:, 0], rows[:, 1]

    def place(self, edge: int) -> str:
        """See `Ends.place`."""
        return f"{self.where}, {place_of_row(self._path, edge)}"


class ArrayEnds(Ends):
    """Edges in an array [2, edges] of whole numbers, in memory or mapped."""

    def __init__(self, array: npt.NDArray[Any], where: str) -> None:
        self._array, self.count, self.where = array, int(array.shape[1]), where

    def chunks(self) -> Iterator[Pair]:
        """See `Ends.chunks`."""
        for start in range(0, self.count, CHUNK):
            src, dst = self._array[:, start : start + CHUNK]
            yield src, dst


class NpyEnds(ArrayEnds):
    """Edges in an .npy file: an array [2, edges] of whole numbers, mapped."""

    def __init__(self, path: Path) -> None:
        try:
            array = map_npy(path)
            _check_ends(array.shape, array.dtype)
        except BAD_FILE as error:
            raise _bad(str(path), error) from None
        super().__init__(array, str(path))


class NpzEnds(Ends):
    """Edges in an .npz file: an array [2, edges] of whole numbers, read as a stream."""

    def __init__(self, path: Path, member: str) -> None:
        self.where = f"{path} ({member})"
        self._path, self._member = path, f"{member}.npy"
        try:
            with zipfile.ZipFile(path) as archive, archive.open(self._member) as stream:
                shape, self._fortran, self._dtype = read_header(stream)
                _check_ends(shape, self._dtype)
        except BAD_FILE as error:
            raise _bad(self.where, error) from None
        self.count = int(shape[1])

    def chunks(self) -> Iterator[Pair]:
        """See `Ends.chunks`."""
        try:
            yield from self._pairs() if self._fortran else self._rows()
        except BAD_FILE as error:
            raise _bad(self.where, error) from None

    def _pairs(self) -> Iterator[Pair]:
        """Read an array in Fortran order, in which both ends of an edge lie side by side."""
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as stream:
            read_header(stream)
            for start in range(0, self.count, CHUNK):
                both = self._read(stream, 2 * min(CHUNK, self.count - start)).reshape(-1, 2)
                yield both[:, 0], both[:, 1]

    def _rows(self) -> Iterator[Pair]:
        """Read an array in C order at two places, because all targets follow all sources."""
        with (
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._member) as sources,
            archive.open(self._member) as targets,
        ):
            read_header(sources)
            read_header(targets)
            for start in range(0, self.count, CHUNK):  # not seek, which gives up the checksum
                self._read(targets, min(CHUNK, self.count - start))
            for start in range(0, self.count, CHUNK):
                count = min(CHUNK, self.count - start)
                yield self._read(sources, count), self._read(targets, count)

    def _read(self, stream: Any, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(stream.read(count * self._dtype.itemsize), self._dtype)
        if len(values) < count:
            raise EOFError("it ends too early")
        return values


class BothWays(Ends):
    """Each edge followed by its reverse, as OGB's add_inverse_edge writes them."""

    def __init__(self, ends: Ends) -> None:
        self._ends, self.where, self.count = ends, ends.where, 2 * ends.count

    def chunks(self) -> Iterator[Pair]:
        """See `Ends.chunks`."""
        for src, dst in self._ends.chunks():
            yield np.stack([src, dst], 1).reshape(-1), np.stack([dst, src], 1).reshape(-1)

    def place(self, edge: int) -> str:
        """See `Ends.place`."""
        return self._ends.place(edge // 2)


def _checked(
    writer: StoreWriter, type: EdgeKey, ends: Ends, what: str, progress: Progress | None
) -> Iterator[Pair]:
    """Yield the edges' chunks; an edge that names a node that does not exist is a StoreError."""
    names = ends_of(type)
    done = 0
    for chunk in ends.chunks():
        for values, name in zip(chunk, names, strict=True):
            limit = writer.types.nodes[name].num_nodes
            if len(values) and (int(values.min()) < 0 or int(values.max()) >= limit):
                bad = int(np.flatnonzero((values < 0) | (values >= limit))[0])
                nodes = "nodes" if name is None else f"nodes of type {name!r}"
                raise StoreError(
                    f"{ends.place(done + bad)}: node {int(values[bad])}, but there are {limit} "
                    f"{nodes}, numbered from 0; correct the edge, or the number of nodes"
                )
        yield chunk
        done += len(chunk[0])
        if progress is not None:
            progress(what, done, ends.count)


@contextmanager
def as_parquet(
    beside: Path, columns: Mapping[str, str], chunks: Iterable[Sequence[npt.NDArray[Any]]]
) -> Iterator[Path]:
    """Write the columns of edges to a Parquet file beside the store `beside`, which need not be
    there; remove it at the end of the context.

    Args:
        beside: the store's path.
        columns: the columns' dtypes by name.
        chunks: values of all columns, [n] each.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            "edges that do not fit in memory= need pyarrow: pip install 'gnndrive[import]'"
        ) from None
    with TemporaryFolder(beside, "sort") as folder:
        schema = pyarrow.schema(
            [(name, pyarrow.from_numpy_dtype(dtype)) for name, dtype in columns.items()]
        )
        try:
            with pyarrow.parquet.ParquetWriter(folder / "edges.parquet", schema) as file:
                for chunk in chunks:
                    arrays = [
                        np.ascontiguousarray(values, dtype)
                        for values, dtype in zip(chunk, columns.values(), strict=True)
                    ]
                    file.write_table(pyarrow.table(arrays, schema=schema))
        except OSError as error:
            raise StoreError(
                f"writing {folder} failed ({error.strerror or error}): sorting needs some 40 bytes "
                "an edge of disk beside the store; free some, or choose a path on another disk"
            ) from None
        yield folder / "edges.parquet"


def _check_ends(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) != 2 or shape[0] != 2 or dtype.kind not in "iu":
        raise ValueError(f"it holds {dtype} of shape {list(shape)}")


def _bad(where: str, error: BaseException) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return StoreError(f"{where} is missing: fetch or unzip the dataset again")
    return StoreError(f"{where} cannot be read as edges ({error}): give whole numbers [2, edges]")

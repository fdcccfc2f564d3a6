"""`Partitioned`: an opened partitioned folder.

Everything in the folder may come from a stranger, so it is checked:

- when it is opened: partition.json, each file's size and header, `bounds`, `edge_bounds` and
  `static_bounds` (they rise from 0 to the number of nodes or entries), and that `home` has new ids.
- when it is used: the values of `order` and `place`, by `store_ids` and `part_of`. What reads codes
  from the files of lists checks them itself.
- by `verify`, because it takes a pass over the folder and the store: checksums, that `order` is a
  permutation and `place` its inverse, and every row and list.

When not to use it: to write such a folder (partition.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.limits import named_limit
from gnndrive.common.records import Int32Array, Int64Array, TableFile
from gnndrive.store.files import open_plain, read_at_most
from gnndrive.store.format import DATA_OFFSET, npy_header, storage_dtype
from gnndrive.store.layout.arrays import LayoutArray, table_file
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.store.partitioned.format import MEND, PARTITION_JSON, PARTITIONS, PartitionInfo
from gnndrive.store.reader import Store


class Partitioned:
    """An opened partitioned folder; several threads may read at once. Made by `open_partitioned`.

    Attributes:
        num_parts, num_static: P, the number of partitions, and K, that of static nodes.
        bounds: the first new id of each partition, int64 [P + 1].
        edge_bounds: where each partition begins in `indices`, int64 [P + 1].
        order: new id → store id, and behind them static rank → store id, mapped, int32 or int64
            [N + K]; the values are not checked.
        place: store id → code, mapped, int32 or int64 [N]; the values are not checked.
        home: static rank → new id, int64 [K].
        static_bounds: where the list of each static rank begins in `static_indices`, int64 [K + 1].
        indices, static_indices: files of codes, int32 or int64.
        x: the file of N + K rows: those of the new ids, and a copy of each static rank's.

    Raises:
        StoreError: the folder is damaged, or was removed or replaced.
        ConfigError: too many files are open.
    """

    def __init__(self, path: Path, info: PartitionInfo) -> None:
        self.path, self.info = path, info
        self.num_nodes, self.num_edges = info.num_nodes, info.num_edges
        self.num_parts, self.num_static = info.num_parts, info.num_static
        changed = (
            f"the partitions {path} were removed or replaced since they were opened: make a new "
            "loader"
        )
        self._folder = PARTITIONS.opened(path, info, changed)
        with self.unchanged():
            self.bounds = self._rising("bounds", self.num_nodes)
            self.edge_bounds = self._rising("edge_bounds", self.num_edges)
            static_edges = info.arrays["static_indices"].shape[0]
            self.static_bounds = self._rising("static_bounds", static_edges)
            self.home = self._numbers("home")
            if len(self.home) and not 0 <= self.home.min() <= self.home.max() < self.num_nodes:
                raise self.damaged("home.npy", "has ids of no nodes")
            self.order, self.place = self._map("order"), self._map("place")
            self.indices = self._file("indices")
            self.static_indices = self._file("static_indices")
            self.x = self._file("x")

    def __reduce__(self) -> tuple[type[Partitioned], tuple[Path, PartitionInfo]]:
        """Opened again where it is unpickled."""
        return type(self), (self.path, self.info)

    def file(self, table: str) -> TableFile:
        """The file of the rows of x in the order of their partitions; no other table has one."""
        return self.x

    def unchanged(self) -> AbstractContextManager[None]:
        """See `Source.unchanged`."""
        return self._folder.unchanged()

    def damaged(self, file: str, why: str) -> StoreError:
        """The error for a file of the folder that is damaged; `why` follows its name."""
        return StoreError(f"{self.path / file} {why}: {MEND}")

    def part_of(self, nodes: Int64Array) -> Int32Array:
        """The partition of each node, given store ids [n]; int32 [n]. Raises as `new_ids`, and
        ConfigError if an id is no node."""
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.num_nodes:
            raise ConfigError(f"a node id is not from 0 to {self.num_nodes - 1}: give node ids")
        found = np.searchsorted(self.bounds, self.new_ids(nodes), "right") - 1
        return found.astype(np.int32)

    def store_ids(self, first: int, last: int) -> npt.NDArray[Any]:
        """The store ids of the rows of x from `first` to `last` - 1; int32 or int64. Raises as
        `new_ids`."""
        found = self._picked("order", self.order, np.arange(first, min(last, self.num_nodes)))
        if len(found) and not 0 <= found.min() <= found.max() < self.num_nodes:
            raise self.damaged("order.npy", "has ids of no nodes")
        return found

    def new_ids(self, nodes: npt.NDArray[Any]) -> Int64Array:
        """The new ids of store ids in range, int64 [n].

        Raises:
            StoreError: the file of ids is damaged.
            ReadError: it has become shorter, or the disk failed.
        """
        codes = self._picked("place", self.place, nodes).astype(np.int64)
        if len(codes) and not 0 <= codes.min() <= codes.max() < self.num_static + self.num_nodes:
            raise self.damaged("place.npy", "has codes out of range")
        new = codes - self.num_static
        static = new < 0
        new[static] = self.home[codes[static]]
        return new

    def _picked(
        self, name: str, mapped: npt.NDArray[Any], rows: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """Values of `order` or `place`. What numpy reads of a file that has become shorter ends the
        process."""
        path, dtype = str(self.path / self.info.arrays[name].file), mapped.dtype
        file = TableFile(path, DATA_OFFSET, self.num_nodes, dtype.itemsize, dtype.name, ())
        found = np.empty(len(rows), dtype)
        pick_rows(file, mapped, np.ascontiguousarray(rows, np.int64), found)
        return found

    def _rising(self, name: str, last: int) -> Int64Array:
        """Numbers that rise from 0 to `last`, read into memory."""
        found = self._numbers(name)
        if found[0] != 0 or found[-1] != last or bool((found[1:] < found[:-1]).any()):
            raise self.damaged(f"{name}.npy", f"does not rise from 0 to {last}")
        return found

    def _numbers(self, name: str) -> Int64Array:
        """An array of int64, read into memory."""
        array = self.info.arrays[name]
        with self._opened(array) as fd:
            content = read_at_most(fd, array.nbytes - DATA_OFFSET)
        if len(content) != array.nbytes - DATA_OFFSET:
            raise self.damaged(array.file, "became shorter")
        return np.frombuffer(content, np.int64)

    def _map(self, name: str) -> np.memmap[Any, Any]:
        array = self.info.arrays[name]
        with self._opened(array) as fd, os.fdopen(fd, "rb", closefd=False) as file, named_limit():
            return np.memmap(file, storage_dtype(array.dtype), "r", DATA_OFFSET, array.shape)

    def _file(self, name: str) -> TableFile:
        array = self.info.arrays[name]
        with self._opened(array):
            return table_file(self.path, array.info)

    @contextmanager
    def _opened(self, array: LayoutArray) -> Iterator[int]:
        """Open a file and check its size and header; yields a descriptor behind the header."""
        fd = open_plain(self.path, array.file, MEND)
        try:
            size = os.fstat(fd).st_size
            if size != array.nbytes:
                raise self.damaged(array.file, f"has {size:,} bytes instead of {array.nbytes:,}")
            if read_at_most(fd, DATA_OFFSET) != npy_header(array.info):
                raise self.damaged(
                    array.file,
                    f"does not have the header of {array.dtype} {list(array.shape)} that "
                    f"{PARTITION_JSON} says",
                )
            yield fd
        except OSError as error:
            raise self.damaged(array.file, f"cannot be read ({error.strerror})") from error
        finally:
            os.close(fd)


def touching(bounds: Int64Array, partitions: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Join `partitions`, which ascend, int32 [n], into runs that touch on disk; those without nodes
    are in none. Returns the first and the last partition of each run, int64 [runs] each."""
    numbers = np.asarray(partitions, np.int64)
    numbers = numbers[bounds[numbers + 1] > bounds[numbers]]
    touches = bounds[numbers[1:]] == bounds[numbers[:-1] + 1]
    begins = np.append(True, ~touches)[: len(numbers)]
    return numbers[begins], numbers[np.append(begins[1:], True)[: len(numbers)]]


def open_partitioned(path: str | os.PathLike[str], store: Store) -> Partitioned:
    """Open the partitioned folder of a store.

    Raises:
        StoreError: there is none, it is damaged, or the store has changed since it was made.
        ConfigError: too many files are open.
    """
    root = Path(os.path.abspath(path))
    return Partitioned(root, PARTITIONS.read(root, store))

"""The arrays of an open store by name: mapped, as tensors, or as files of rows.

`Store` is the public class; the nodes and edges of a type (views.py) need no more than this one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.forks import ForkLock
from gnndrive.common.limits import named_limit
from gnndrive.common.names import did_you_mean
from gnndrive.common.owners import Owners
from gnndrive.common.records import EdgeKey, IndexPointers, TableFile
from gnndrive.store.data_view import Overlay
from gnndrive.store.files import FileStatus, OpenedFolder
from gnndrive.store.format import (
    DATA_OFFSET,
    STORE_JSON,
    ArrayInfo,
    Part,
    StoreInfo,
    torch_dtype,
)
from gnndrive.store.layout.arrays import table_file
from gnndrive.store.loading import load_checked, open_checked, read_info
from gnndrive.store.types import array_name

_MAP_NORESERVE = 0x4000  # Linux; Python's mmap names it from 3.13 on
_KEPT_BYTES_MAX = 64 << 20  # what is made of the store and larger is made again at each use


class MappedArrays:
    """The arrays of an open store. Safe to share between threads.

    Attributes:
        path: the store's folder, absolute.
        info: what store.json says.
        overlay: attributes that this process has set or deleted.
    """

    path: Path
    info: StoreInfo
    overlay: Overlay

    def __init__(self, path: Path, info: StoreInfo, status: FileStatus) -> None:
        # `Store` refuses to set these by assignment, because attributes of a graph are set so.
        self.__dict__.update(path=path, info=info, overlay=Overlay())
        changed = (
            f"{path} was overwritten or removed since it was opened: open it again with "
            "gnndrive.open, and make a new loader"
        )
        self._folder = OpenedFolder(
            path / STORE_JSON, lambda: read_info(path) == info.own, changed, status
        )
        self._index_pointers: dict[EdgeKey, IndexPointers] = {}
        self._reading = ForkLock()
        self._maps: dict[str, np.memmap[Any, Any]] = {}  # by file
        self._kept: dict[str, torch.Tensor] = {}  # by file, or by what was made

    def check_unchanged(self) -> None:
        """Check that the folder still holds the store that was opened, or a copy of it.

        Raises:
            StoreError: the store was overwritten or removed.
        """
        self._folder.check_unchanged()

    def unchanged(self) -> AbstractContextManager[None]:
        """Check after the block, which opens files by their paths, whose files they are.

        Raises:
            StoreError: the store was overwritten or removed.
        """
        return self._folder.unchanged()

    def _find(self, name: str) -> ArrayInfo:
        full = name if "/" in name else f"nodes/{name}"
        try:
            return self.info.arrays[full]
        except KeyError:
            raise ConfigError(
                f"{self.path} has no array {full!r}{did_you_mean(full, self.info.arrays)}; it has: "
                f"{', '.join(self.info.arrays)}"
            ) from None

    def _find_whole(self, name: str) -> ArrayInfo:
        """`_find`; ConfigError if this is a shard that lacks rows of the array."""
        info = self._find(name)
        if info.name in self._parts:
            raise ConfigError(
                f"{self.lacking(info.name)}, so only a loader with ranks=True has them all, from "
                "the ranks that open the other parts: else use the whole store"
            )
        return info

    @property
    def _parts(self) -> Mapping[str, Part]:
        return {} if self.info.shard is None else self.info.shard.parts

    def check_whole(self, needs: str) -> None:
        """Raise ConfigError if this is a shard that lacks rows; `needs` is what needs all of them,
        and what to do instead: "a pack has all rows: pack the whole store"."""
        if name := next(iter(self._parts), None):
            raise ConfigError(f"{self.lacking(name)}, and {needs}")

    def lacking(self, name: str) -> str:
        """What this shard lacks of an array, for errors."""
        shard, whole = self.info.shard, self.info.arrays[name]
        assert shard is not None
        rows = whole.shape[0]
        lacks = rows - shard.stored(whole).shape[0]
        return (
            f"{self.path} is part {shard.index} of {shard.shards} of a store and lacks {lacks:,} "
            f"of the {rows:,} rows of {name}"
        )

    def parts(self, name: str) -> Owners | None:
        """How the rows of an array were divided, of which this shard has a part; None: all are
        here. `name` is the full name."""
        shard = self.info.shard
        return shard.owners(self.info.arrays[name]) if shard and name in shard.parts else None

    def part(self, name: str) -> TableFile:
        """Where those rows of an array lie on disk that are here: all, if this is no shard. Errors
        and `name` as for `table`."""
        return table_file(self.path, self.info.stored[self._find(name).name])

    def table(self, name: str) -> TableFile:
        """Where the rows of an array lie on disk.

        Args:
            name: the array's full name, "edges/edge_attr"; or "x" for the per-node array "nodes/x".

        Raises:
            ConfigError: there is no such array, or this is a shard that lacks rows of it.
        """
        return table_file(self.path, self._find_whole(name))

    def array(self, name: str) -> np.memmap[Any, Any]:
        """An array mapped read-only, by its name as for `table`; bfloat16 comes as uint16.

        Raises:
            ConfigError: as for `table`.
            StoreError: the store was overwritten, or the size or header of its file has changed,
                since the store was opened.
        """
        info = self._find_whole(name)
        if info.file not in self._maps:
            with self._opened_to_map(info) as file:
                mapped = np.memmap(file, info.storage, "r", DATA_OFFSET, info.shape)
            self._maps[info.file] = mapped
        return self._maps[info.file]

    def tensor(self, name: str, random: bool = False) -> torch.Tensor:
        """An array as a tensor in its own dtype, bfloat16 too, mapped and not read.

        Writing into the tensor changes this process's memory only, never the file. If the file
        becomes shorter, or the disk fails, the kernel ends a process that reads a row from there
        (SIGBUS); loaders and `RowReader` raise ReadError instead.

        Args:
            name: as for `table`.
            random: tell the kernel not to read pages ahead.

        Raises:
            ConfigError: as for `table`.
            StoreError: the store was overwritten, or the size or header of its file has changed,
                since the store was opened.
        """
        info = self._find_whole(name)
        with self._opened_to_map(info) as file:
            # Private and writable, because torch has no read-only tensors; no memory is reserved,
            # because an array may be larger than memory.
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            mapped = mmap.mmap(file.fileno(), info.nbytes, flags)
        if random:
            mapped.madvise(mmap.MADV_RANDOM)
        dtype = torch_dtype(info.dtype)
        if info.nbytes == DATA_OFFSET:
            return torch.empty(info.shape, dtype=dtype)
        values = torch.frombuffer(mapped, dtype=torch.uint8, offset=DATA_OFFSET)
        return values.view(dtype).view(info.shape)

    def kept_tensor(self, name: str) -> torch.Tensor:
        """`tensor`, mapped once, so that what this process writes into it stays there."""
        file = self._find(name).file  # of an added array, another one for each computation
        if file not in self._kept:
            self._kept.setdefault(file, self.tensor(name))
        return self._kept[file]

    def kept(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A tensor that `make` makes of the store, kept under `name` if it is small."""
        found = self._kept.get(name)
        if found is None:
            found = make()
            if found.nbytes <= _KEPT_BYTES_MAX:
                found = self._kept.setdefault(name, found)
        return found

    def in_memory(self, name: str) -> npt.NDArray[Any]:
        """Read a split, by its full name, "splits/train", into memory and check it; errors as for
        `array`, and a StoreError for a value that is not allowed or cannot be read."""
        with self.unchanged():
            return load_checked(self.path, self._find(name), self.info.types)

    def pointers_in_memory(self, type: EdgeKey) -> IndexPointers:
        """The index pointers of an edge type; see `StoredEdges.index_pointers`."""
        found = self._index_pointers.get(type)
        if found is None:
            with self._reading:
                found = self._index_pointers.get(type)
                if found is None:
                    found = self._index_pointers[type] = self.read_pointers(type)
        return found

    def read_pointers(self, type: EdgeKey, empty: Allocate = np.empty) -> IndexPointers:
        """Read the index pointers of an edge type into memory from `empty`, and check them; errors
        as for `StoredEdges.index_pointers`."""
        info = self.info.arrays[array_name("graph", type, "indptr")]
        with self.unchanged():
            pointers: IndexPointers = load_checked(
                self.path, info, self.info.types, self.pointer_dtype(type), empty
            )
        pointers.flags.writeable = False
        return pointers

    def pointer_dtype(self, type: EdgeKey) -> type[np.uint32] | type[np.int64]:
        """The dtype of an edge type's index pointers in memory."""
        return np.uint32 if self.info.types.edges[type] < 1 << 32 else np.int64

    def use_pointers(self, shared: Mapping[EdgeKey, IndexPointers]) -> None:
        """Use index pointers that processes share, the same values and dtypes as
        `pointers_in_memory` returns, in place of those of this process.

        What is asked for from now on, of views that were made before too, uses them. What was made
        of the earlier ones, such as a topology, keeps them in memory as long as it lives.

        Raises:
            ConfigError: an edge type, a dtype, a length, the first or the last value is another.
        """
        for type, pointers in shared.items():
            if not self._are_pointers(type, pointers):
                raise ConfigError(
                    f"{pointers.dtype} {list(pointers.shape)} is no copy of {self.path}'s index "
                    f"pointers of {type!r}: share those of the same store"
                )
        with self._reading:
            self._index_pointers.update(shared)

    def _are_pointers(self, type: EdgeKey, pointers: IndexPointers) -> bool:
        """Whether an array has the form and the ends of an edge type's index pointers."""
        if type not in self.info.types.edges or pointers.dtype != self.pointer_dtype(type):
            return False
        shape = self.info.arrays[array_name("graph", type, "indptr")].shape
        ends = pointers[:1].tolist() + pointers[-1:].tolist()
        return pointers.shape == shape and ends == [0, self.info.types.edges[type]]

    @contextmanager
    def _opened_to_map(self, info: ArrayInfo) -> Iterator[BinaryIO]:
        # Python's mapping has a copy of the descriptor, which may be one too many.
        with (
            self.unchanged(),
            os.fdopen(open_checked(self.path, info), "rb") as file,
            named_limit(),
        ):
            yield file

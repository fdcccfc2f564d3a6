"""Open a store. It stands where `data` stands in PyTorch Geometric's examples.

What is cheap is checked at every opening: store.json, each file's size and header, index pointers,
splits. What costs a pass over the whole store (checksums, every index) is `Store.verify`. Arrays
are mapped, not read; only the index pointers are kept in memory, 4 bytes a node below 2^32 edges.
After `open`, indices are still what the files say: C checks them in use.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.errors import ConfigError, StoreError
from gnndrive.records import IndexPointers, TableFile
from gnndrive.store.checks import check_for
from gnndrive.store.files import open_plain, read_at_most
from gnndrive.store.format import (
    DATA_OFFSET,
    JSON_BYTES_MAX,
    STORE_JSON,
    ArrayInfo,
    Progress,
    StoreInfo,
    dump,
    npy_header,
    parse,
    torch_dtype,
)
from gnndrive.store.verify import verify

_STEP = 1 << 20  # values checked at once
_MAP_NORESERVE = 0x4000  # Linux; Python's mmap names it from 3.13 on


class Store:
    """An open store; `gnndrive.open` makes it. Safe to share between threads; pickles as its path.

    Attributes:
        path: its folder, absolute.
        info: what store.json says, a `StoreInfo`.
    """

    def __init__(self, path: Path, info: StoreInfo, index_pointers: IndexPointers) -> None:
        self.path, self.info = path, info
        self._index_pointers = index_pointers
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    def __repr__(self) -> str:
        return (
            f"Store({str(self.path)!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"num_features={self.num_features}, num_classes={self.num_classes})"
        )

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return (open, (str(self.path),))

    @property
    def identity(self) -> str:
        """What tells this store's content from any other's, wherever it lies: a digest of
        store.json, which has every array's."""
        return sha256(dump(self.info)).hexdigest()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.info.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.info.num_edges

    @property
    def num_features(self) -> int:
        """Columns of x, 0 if there is none."""
        return self.info.num_features

    @property
    def num_node_features(self) -> int:
        """The same, under PyG's other name."""
        return self.info.num_features

    @property
    def num_classes(self) -> int:
        """Classes of y, 0 if there are none."""
        return self.info.num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of their ids, if they had names."""
        return self.info.classes

    @property
    def index_pointers(self) -> IndexPointers:
        """CSC index pointers, [num_nodes + 1], in memory, read-only, checked at open; uint32 if
        there are fewer than 2^32 edges, else int64."""
        return self._index_pointers

    @property
    def indptr(self) -> np.memmap[Any, Any]:
        """CSC index pointers, int64 [num_nodes + 1], mapped."""
        return self.array("graph/indptr")

    @property
    def indices(self) -> np.memmap[Any, Any]:
        """The in-neighbours of v are indices[indptr[v]:indptr[v + 1]]; [num_edges], mapped."""
        return self.array("graph/indices")

    @property
    def indices_path(self) -> Path:
        """The file of `indices`; its values start at byte 4,096."""
        return self.path / "graph" / "indices.npy"

    @property
    def edge_id(self) -> np.memmap[Any, Any] | None:
        """The original number of the edge at each CSC position; None: the position itself.

        int32 or int64 [num_edges], mapped.
        """
        return self.array("graph/edge_id") if "graph/edge_id" in self.info.arrays else None

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the per-node arrays, without "nodes/"."""
        return self._names("nodes")

    @property
    def edge_names(self) -> tuple[str, ...]:
        """Names of the per-edge arrays, without "edges/"; rows in the original order (e_id)."""
        return self._names("edges")

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self._names("splits")

    def _names(self, group: str) -> tuple[str, ...]:
        prefix = f"{group}/"
        return tuple(n.removeprefix(prefix) for n in self.info.arrays if n.startswith(prefix))

    def _find(self, name: str) -> ArrayInfo:
        full = name if "/" in name else f"nodes/{name}"
        try:
            return self.info.arrays[full]
        except KeyError:
            raise ConfigError(
                f"{self.path} has no array {full!r}; it has: {', '.join(self.info.arrays)}"
            ) from None

    def table(self, name: str) -> TableFile:
        """Where the rows of an array lie on disk.

        Args:
            name: a per-node array, "x", or in full, "edges/edge_attr".

        Raises:
            ConfigError: there is no such array.
        """
        info = self._find(name)
        return TableFile(
            path=str(self.path / info.file),
            data_offset=DATA_OFFSET,
            row_count=info.shape[0],
            row_bytes=info.row_bytes,
            dtype=info.dtype,
            row_shape=info.shape[1:],
        )

    def array(self, name: str) -> np.memmap[Any, Any]:
        """An array mapped read-only; bfloat16 comes as uint16.

        Args:
            name: in full, "nodes/x", or "x" for a per-node array.

        Raises:
            ConfigError: there is no such array.
            StoreError: its file is no longer what it was at open.
        """
        info = self._find(name)
        if info.name not in self._maps:
            with os.fdopen(_open_checked(self.path, info), "rb") as file:
                self._maps[info.name] = np.memmap(file, info.storage, "r", DATA_OFFSET, info.shape)
        return self._maps[info.name]

    def tensor(self, name: str, random: bool = False) -> torch.Tensor:
        """An array as a tensor in its own dtype, bfloat16 too, mapped and not read.

        What is written into it stays in this process's memory; the file never changes.

        Args:
            name: a per-node array, "y", or in full, "edges/edge_attr".
            random: have the kernel read no pages but those that are wanted.

        Raises:
            ConfigError: there is no such array.
            StoreError: its file is no longer what it was at open.
        """
        info = self._find(name)
        fd = _open_checked(self.path, info)
        try:
            # Private and writable, because torch has no read-only tensors; without a reserve,
            # because a table may be larger than memory.
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            mapped = mmap.mmap(fd, info.nbytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        if random:
            mapped.madvise(mmap.MADV_RANDOM)
        dtype = torch_dtype(info.dtype)
        if info.nbytes == DATA_OFFSET:
            return torch.empty(info.shape, dtype=dtype)
        values = torch.frombuffer(mapped, dtype=torch.uint8, offset=DATA_OFFSET)
        return values.view(dtype).view(info.shape)

    def split(self, name: str) -> torch.Tensor:
        """The node ids of a split, int64 [n], in memory.

        Raises:
            ConfigError: there is no such split.
            StoreError: an id is out of range.
        """
        if name not in self.split_names:
            known = ", ".join(self.split_names) or "none"
            raise ConfigError(f"{self.path} has no split {name!r}; it has: {known}")
        info = self.info.arrays[f"splits/{name}"]
        return torch.from_numpy(_load(self.path, info, self.info))

    def verify(self, progress: Progress | None = None) -> None:
        """Read every file: checksums, indices within bounds, edge ids each once.

        Args:
            progress: called as progress(what, bytes done, bytes in all).

        Raises:
            StoreError: the first thing that is wrong, naming the file.
        """
        verify(self.path, self.info, progress)


def open(path: str | os.PathLike[str]) -> Store:
    """Open a store.

    Args:
        path: its folder.

    Returns:
        The store, checked as far as that is cheap.

    Raises:
        StoreError: it is missing, damaged or of another version; the message names the file.
    """
    folder = Path(os.path.abspath(path))
    info = read_info(folder)
    for array in info.arrays.values():
        os.close(_open_checked(folder, array))
    width = np.uint32 if info.num_edges < 1 << 32 else np.int64
    index_pointers = _load(folder, info.arrays["graph/indptr"], info, width)
    index_pointers.flags.writeable = False
    store = Store(folder, info, index_pointers)
    for name in store.split_names:
        _load(folder, info.arrays[f"splits/{name}"], info)
    return store


def read_info(folder: Path) -> StoreInfo:
    """What a store's store.json says.

    Raises:
        StoreError: it is missing or cannot be believed.
    """
    if not os.path.lexists(folder / STORE_JSON):
        raise StoreError(
            f"{folder / STORE_JSON} is not there: {folder} is no store; make one with gnndrive "
            "import"
        )
    fd = open_plain(folder, STORE_JSON)
    try:
        content = read_at_most(fd, JSON_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(folder / STORE_JSON, error) from error
    finally:
        os.close(fd)
    if len(content) > JSON_BYTES_MAX:
        raise StoreError(
            f"{folder / STORE_JSON} is larger than any store.json: import the store again"
        )
    return parse(content, str(folder / STORE_JSON))


def _open_checked(folder: Path, info: ArrayInfo) -> int:
    """Open an array's file, which must have the size and the header that store.json says."""
    path = folder / info.file
    fd = open_plain(folder, info.file)
    try:
        size = os.fstat(fd).st_size
        if size != info.nbytes:
            state = "truncated" if size < info.nbytes else "too long"
            raise StoreError(
                f"{path} is {state}: {size} bytes instead of {info.nbytes}; copy or import the "
                "store again"
            )
        # One version of the format writes one header for a dtype and shape, so bytes can be
        # compared.
        if read_at_most(fd, DATA_OFFSET) != npy_header(info):
            raise StoreError(
                f"{path} has a header that is not that of {info.dtype} {list(info.shape)} in C "
                "order, as "
                f"store.json says; copy or import the store again"
            )
    except OSError as error:
        os.close(fd)
        raise _unreadable(path, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _load(
    folder: Path, info: ArrayInfo, store: StoreInfo, dtype: type | None = None
) -> npt.NDArray[Any]:
    """Read and check index pointers or a split; what is checked is what is given back.

    Args:
        folder, info: where it is.
        store: what its values are checked against.
        dtype: what to keep it in; it must hold every value that passes the checks.
    """
    path = folder / info.file
    try:
        values = np.empty(info.shape, dtype or info.storage)
    except MemoryError:
        raise StoreError(
            f"{path} needs {info.nbytes:,} bytes of memory, which there are not: use a machine "
            "with more, or, if the graph is not that large, import the store again"
        ) from None
    check = check_for(info.name, str(path), store.num_nodes, store.num_edges)
    assert check is not None
    step = np.empty(min(len(values), _STEP), info.storage)
    with os.fdopen(_open_checked(folder, info), "rb", buffering=0) as file:
        for start in range(0, len(values), _STEP):
            chunk = step[: len(values) - start]
            _fill(chunk, file, path)
            check.feed(chunk)
            values[start : start + len(chunk)] = chunk
    check.finish()
    return values


def _fill(array: npt.NDArray[Any], file: io.RawIOBase, path: Path) -> None:
    """Read the file's next bytes into `array`."""
    view = array.view(np.uint8).data
    done = 0
    try:
        while done < len(view) and (got := file.readinto(view[done:])):
            done += got
    except OSError as error:
        raise _unreadable(path, error) from error
    if done < len(view):
        raise StoreError(f"{path} became shorter while it was read: copy or import the store again")


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"reading {path} failed ({error.strerror}): check the disk, or copy the store again"
    )

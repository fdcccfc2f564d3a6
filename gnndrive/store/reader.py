"""Open a store. It stands where `data` stands in PyTorch Geometric's examples.

What is cheap is checked at every opening: store.json, each file's size and header, index pointers,
splits. What costs a pass over the whole store (checksums, every index) is `Store.verify`. Arrays
are mapped, not read; only the index pointers are kept in memory, 4 bytes a node below 2^32 edges.
After `open`, indices are still what the files say: C checks them in use.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, EdgeType, IndexPointers, NodeKey, TableFile
from gnndrive.store.format import (
    DATA_OFFSET,
    ArrayInfo,
    Progress,
    StoreInfo,
    dump,
    torch_dtype,
)
from gnndrive.store.loading import load_checked, open_checked, read_info
from gnndrive.store.types import array_name
from gnndrive.store.verify import verify
from gnndrive.store.views import StoredEdges, StoredNodes

_MAP_NORESERVE = 0x4000  # Linux; Python's mmap names it from 3.13 on


class Store:
    """An open store; `gnndrive.open` makes it. Safe to share between threads; pickles as its path.

    What belongs to nodes or edges of a type is in `store["paper"]` and `store["author", "writes",
    "paper"]`; a homogeneous store has it itself.

    Attributes:
        path: its folder, absolute.
        info: what store.json says, a `StoreInfo`.
    """

    def __init__(
        self, path: Path, info: StoreInfo, index_pointers: dict[EdgeKey, IndexPointers]
    ) -> None:
        self.path, self.info = path, info
        self._index_pointers = index_pointers
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    def __repr__(self) -> str:
        counts = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}"
        if self.is_hetero:
            kinds = f"node_types={self.node_types}, edge_types={self.edge_types}"
            return f"Store({str(self.path)!r}, {counts}, {kinds})"
        return (
            f"Store({str(self.path)!r}, {counts}, num_features={self.num_features}, "
            f"num_classes={self.num_classes})"
        )

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return (open, (str(self.path),))

    @property
    def identity(self) -> str:
        """What tells this store's content from any other's, wherever it lies: a digest of
        store.json, which has every array's."""
        return sha256(dump(self.info)).hexdigest()

    # ---- types ----

    @property
    def is_hetero(self) -> bool:
        """Whether it has named types of nodes and edges."""
        return self.info.types.hetero

    @property
    def node_types(self) -> list[str]:
        """The node types' names; none in a homogeneous store."""
        return [name for name in self.info.types.nodes if name is not None]

    @property
    def edge_types(self) -> list[EdgeType]:
        """The edge types, (source, relation, target) each; none in a homogeneous store."""
        return [name for name in self.info.types.edges if name is not None]

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Node and edge types, as `torch_geometric.nn.to_hetero` wants them."""
        return self.node_types, self.edge_types

    def nodes(self, type: NodeKey = None) -> StoredNodes:
        """The nodes of a type; None: those of a homogeneous store.

        Raises:
            ConfigError: there is no such type.
        """
        if type not in self.info.types.nodes:
            raise self._no_type(type, self.node_types)
        return StoredNodes(self, type)

    def edges(self, type: EdgeKey = None) -> StoredEdges:
        """The edges of a type; None: those of a homogeneous store.

        Raises:
            ConfigError: there is no such type.
        """
        if type not in self.info.types.edges:
            raise self._no_type(type, self.edge_types)
        return StoredEdges(self, type)

    def all_nodes(self) -> list[StoredNodes]:
        """The nodes of each type; one in a homogeneous store."""
        return [StoredNodes(self, type) for type in self.info.types.nodes]

    def all_edges(self) -> list[StoredEdges]:
        """The edges of each type; one in a homogeneous store."""
        return [StoredEdges(self, type) for type in self.info.types.edges]

    def _no_type(self, type: object, types: list[Any]) -> ConfigError:
        if not self.is_hetero:
            return ConfigError(f"{self.path} is homogeneous: it has no type {type!r}")
        asked = "name a type: store[TYPE]" if type is None else f"there is no {type!r}"
        known = ", ".join(map(str, types)) or "none"
        return ConfigError(f"{self.path} is heterogeneous: {asked}; the types are {known}")

    @overload
    def __getitem__(self, type: str) -> StoredNodes: ...
    @overload
    def __getitem__(self, type: EdgeType) -> StoredEdges: ...
    def __getitem__(self, type: str | EdgeType) -> StoredNodes | StoredEdges:
        return self.nodes(type) if isinstance(type, str) else self.edges(type)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all types."""
        return self.info.types.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of directed edges, of all types."""
        return self.info.types.num_edges

    # ---- of a homogeneous store ----

    @property
    def num_features(self) -> int:
        """Columns of x, 0 if there is none."""
        return self.nodes().num_features

    @property
    def num_node_features(self) -> int:
        """The same, under PyG's other name."""
        return self.nodes().num_features

    @property
    def num_classes(self) -> int:
        """Classes of y, 0 if there are none."""
        return self.nodes().num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of their ids, if they had names."""
        return self.nodes().classes

    @property
    def index_pointers(self) -> IndexPointers:
        """See `StoredEdges.index_pointers`."""
        return self.edges().index_pointers

    @property
    def indptr(self) -> np.memmap[Any, Any]:
        """CSC index pointers, int64 [num_nodes + 1], mapped."""
        return self.edges().indptr

    @property
    def indices(self) -> np.memmap[Any, Any]:
        """The in-neighbours of v are indices[indptr[v]:indptr[v + 1]]; [num_edges], mapped."""
        return self.edges().indices

    @property
    def indices_path(self) -> Path:
        """The file of `indices`; its values start at byte 4,096."""
        return self.edges().indices_path

    @property
    def edge_id(self) -> np.memmap[Any, Any] | None:
        """See `StoredEdges.edge_id`."""
        return self.edges().edge_id

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the per-node arrays, without "nodes/"."""
        return self.nodes().names

    @property
    def edge_names(self) -> tuple[str, ...]:
        """Names of the per-edge arrays, without "edges/"; rows in the original order (e_id)."""
        return self.edges().names

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self.nodes().split_names

    def split(self, name: str) -> torch.Tensor:
        """The node ids of a split; see `StoredNodes.split`."""
        return self.nodes().split(name)

    # ---- arrays ----

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
            with os.fdopen(open_checked(self.path, info), "rb") as file:
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
        fd = open_checked(self.path, info)
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

    def in_memory(self, name: str) -> npt.NDArray[Any]:
        """Index pointers or a split, read and checked.

        Args:
            name: in full, "splits/train".

        Raises:
            StoreError: what it says cannot be.
        """
        return load_checked(self.path, self._find(name), self.info.types)

    def pointers_in_memory(self, type: EdgeKey) -> IndexPointers:
        """The index pointers of an edge type, see `StoredEdges.index_pointers`."""
        return self._index_pointers[type]

    def verify(self, progress: Progress | None = None) -> None:
        """Read every file: checksums, indices within bounds, edge ids each once.

        Args:
            progress: called as progress(what, bytes done, bytes in all).

        Raises:
            StoreError: the first thing that is wrong, naming the file.
        """
        verify(self.path, self.info, progress)


def open_homogeneous(path: str | os.PathLike[str], whose: str) -> Store:
    """Open a store that has one type of nodes, for what knows no other.

    Raises:
        ConfigError: it is heterogeneous; says what `whose` is good for.
        StoreError: as `open`.
    """
    store = open(path)
    if store.is_hetero:
        raise ConfigError(
            f"{store.path} is heterogeneous, and {whose} is for stores with one type of nodes: use "
            "gnndrive.NeighborLoader in a loop of your own, as in docs/tasks/heterogeneous.md"
        )
    return store


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
        os.close(open_checked(folder, array))
    index_pointers: dict[EdgeKey, IndexPointers] = {}
    for type, num_edges in info.types.edges.items():
        width = np.uint32 if num_edges < 1 << 32 else np.int64
        array = info.arrays[array_name("graph", type, "indptr")]
        index_pointers[type] = load_checked(folder, array, info.types, width)
        index_pointers[type].flags.writeable = False
    for array in info.arrays.values():
        if info.types.place(array.name).group == "splits":
            load_checked(folder, array, info.types)
    return Store(folder, info, index_pointers)

"""Open a store, which takes the place of `data` in PyTorch Geometric's examples.

`open` checks what is cheap: store.json, each file's size and header, the index pointers and the
splits. `Store.verify` checks what takes a pass over the whole store: checksums and every index.
Arrays are mapped, not read; only the index pointers are read into memory when they are first used,
4 bytes a node below 2^32 edges, unless processes share them. `open` does not check the
in-neighbours' ids, so C checks each one when it uses it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import share_one_heap
from gnndrive.common.names import did_you_mean
from gnndrive.common.progress import Progress
from gnndrive.common.records import IndexPointers, Int64Array, NodeKey
from gnndrive.store.added import DERIVED, with_added
from gnndrive.store.data_view import Overlay
from gnndrive.store.files import FileStatus
from gnndrive.store.format import StoreInfo
from gnndrive.store.loading import check_values, info_status, open_checked, read_info, verify
from gnndrive.store.store_view import StoreView
from gnndrive.store.views import StoredEdges, StoredNodes

_SERVICE = "gnndrive:"  # begins the name of a service, from which `Path` takes a slash
_IDS_STEP = 1 << 22  # ids that are compared at once
_OPENINGS = 5  # times that a store may be overwritten while it is opened


class Store(StoreView):
    """An open store, made by `gnndrive.open`. Safe to share between threads; pickles as its path.

    It answers as PyG's Data or HeteroData does (`StoreView`), and is read-only: what you set on it
    lives in this process. The nodes and edges of a type are `store["paper"]` and
    `store["author", "writes", "paper"]`; a homogeneous store has their attributes itself.

    Attributes:
        path: the store's folder, absolute.
        info: the content of store.json.
    """

    def __repr__(self) -> str:
        counts = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}"
        if self.is_hetero:
            kinds = f"node_types={self.node_types}, edge_types={self.edge_types}"
            return f"Store({str(self.path)!r}, {counts}, {kinds})"
        return (
            f"Store({str(self.path)!r}, {counts}, num_features={self.num_features}, "
            f"num_classes={self.num_classes})"
        )

    def __reduce__(self) -> tuple[Callable[[str, str, Overlay], Store], tuple[str, str, Overlay]]:
        return (_open_same, (str(self.path), self.identity, self.overlay))

    @property
    def identity(self) -> str:
        """A text that identifies the store's content: the SHA-256 of store.json, which holds the
        checksum of every array. Copies of a store have the same identity, and a shard has that of
        the whole store. Added arrays (added.py) do not change it."""
        return self.info.own.identity

    # ---- types ----

    def nodes(self, type: NodeKey = None) -> StoredNodes:
        """The nodes of a type.

        Args:
            type: the type's name; None in a homogeneous store.

        Raises:
            ConfigError: there is no such type.
        """
        if type in self.info.types.nodes:
            return StoredNodes(self, type)
        if not self.is_hetero:
            raise ConfigError(f"{self.path} is homogeneous: it has no type {type!r}; leave it out")
        asked = "name a type: store[TYPE]" if type is None else f"there is no {type!r}"
        meant, known = did_you_mean(type, self.node_types), ", ".join(self.node_types)
        raise ConfigError(f"{self.path} is heterogeneous: {asked}{meant}; the types are {known}")

    def edges(self, type: Any = None) -> StoredEdges:
        """The edges of a type.

        Args:
            type: (source, relation, target), or shorter (see `Types.key`); None in a homogeneous
                store.

        Raises:
            ConfigError: there is no such type, or several.
        """
        try:
            return StoredEdges(self, self.info.types.edge_key(type))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def __getitem__(self, type: Any) -> Any:
        """The nodes or edges of a type (see `Types.key`); of a homogeneous store, an attribute."""
        if not self.is_hetero:
            return self.attribute(type)
        key = self.info.types.key(type)
        return StoredEdges(self, key) if isinstance(key, tuple) else StoredNodes(self, key)

    def attribute(self, name: Any) -> Any:
        """An attribute of a homogeneous store.

        Raises:
            ConfigError: there is none of that name.
        """
        if not isinstance(name, str) or name not in self.keys():
            raise ConfigError(
                f"{self.path} is homogeneous: it has no type and no attribute {name!r}, but "
                f"{self._known()}"
            )
        return super().__getitem__(name)

    # ---- ids of the source ----

    def ids(self, type: NodeKey = None, n_id: Any = None) -> npt.NDArray[Any]:
        """The ids that nodes have in the source of an import, such as the keys of a table.

        Args:
            type: the nodes' type; None in a homogeneous store.
            n_id: indices of nodes [n], such as `batch.n_id`; None: all nodes, in their order.

        Returns:
            Whole numbers or texts (str) [n]; the indices themselves if the import kept no ids.

        Raises:
            ConfigError: there is no such type, or no node has such an index.
        """
        if not isinstance(type, str | None):
            raise ConfigError("ids() takes a type of nodes first: give the nodes as ids(n_id=…)")
        there = self._ids(type)
        rows = slice(None) if n_id is None else self._indices(n_id, len(there))
        if there.dtype.kind != "S":
            return np.asarray(there[rows])
        return np.char.decode(np.asarray(there[rows]), "utf-8")

    def index_of(self, ids: Any, type: NodeKey = None) -> Int64Array:
        """The indices of the nodes with these ids, int64 [n]: the reverse of `ids`. Reads the ids
        of all nodes once.

        Raises:
            ConfigError: an id is that of no node; the message names the first one.
        """
        there, given = self._ids(type), np.asarray(ids).reshape(-1)
        if there.dtype.kind == "S":
            asked = np.array([str(each).encode() for each in given.tolist()], "S")
            known = np.ones(len(given), np.bool_)
        elif given.dtype.kind in "iu":
            asked = given.astype(there.dtype)
            known = asked == given  # a negative number becomes a large one
        else:
            asked, known = np.zeros(len(given), there.dtype), np.zeros(len(given), np.bool_)
        wanted, which = np.unique(asked, return_inverse=True)
        found = np.full(len(wanted), -1, np.int64)
        for start in range(0, len(there) if len(wanted) else 0, _IDS_STEP):
            part = np.asarray(there[start : start + _IDS_STEP])
            place = np.minimum(np.searchsorted(wanted, part), len(wanted) - 1)
            hit = np.flatnonzero(wanted[place] == part)
            found[place[hit]] = start + hit
        nodes: Int64Array = np.where(known, found[which], -1)
        if len(unknown := np.flatnonzero(nodes < 0)):
            kind = "text" if there.dtype.kind == "S" else "whole numbers"
            raise ConfigError(
                f"no node of {self.path} has the id {given[unknown[0]].item()!r}: its ids are "
                f"{kind}, give them as ids() returns them"
            )
        return nodes

    def _indices(self, n_id: Any, count: int) -> npt.NDArray[Any]:
        """Check that `n_id` are indices of `count` nodes, or a mask of them."""
        rows = np.asarray(n_id)
        if not rows.size:
            return rows.astype(np.int64)
        if rows.dtype.kind == "b" and rows.shape == (count,):
            return rows
        wrong = np.ones(rows.shape, np.bool_)
        if rows.dtype.kind in "iu":
            wrong = (rows < 0) | (rows >= count)
        if wrong.any():
            raise ConfigError(
                f"n_id: {rows[wrong][0].item()!r} is no index of a node of {self.path}, whose "
                f"{count:,} nodes are numbered from 0: give indices, such as batch.n_id; "
                "index_of() returns those of ids"
            )
        return rows

    def _ids(self, type: NodeKey) -> npt.NDArray[Any]:
        """The ids of a type's nodes, mapped: whole numbers or UTF-8 bytes, [n]."""
        nodes = self.nodes(type)
        array = self.info.arrays.get(nodes.name_of("id"))
        text = array is not None and array.dtype == "uint8" and len(array.shape) == 2
        if array is None or not (text or (len(array.shape) == 1 and "int" in array.dtype)):
            return np.arange(nodes.num_nodes)
        there = self.array(array.name)
        if not text:
            return there
        return there.view(f"S{there.shape[1]}")[:, 0]

    # ---- of a homogeneous store ----

    @property
    def num_classes(self) -> int:
        """Classes of y; 0 if there are none."""
        return self.nodes().num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of their ids; None if they have no names."""
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
        """In-neighbours, int32 or int64 [num_edges], mapped; those of v are at indptr[v] to
        indptr[v + 1] - 1."""
        return self.edges().indices

    @property
    def indices_path(self) -> Path:
        """The file of `indices`; the values start at byte 4,096."""
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

    def find_added(self) -> None:
        """Look again for arrays that were added to the store since it was opened, as
        `gnndrive.infer` does. Loaders that exist already do not deliver them.

        Raises:
            StoreError: the record of an added array, or its file, is damaged.
        """
        info = with_added(self.path, self.info.own)
        for array in info.arrays.values():
            if array.folder:
                os.close(open_checked(self.path, array))
        self.__dict__["info"] = info
        files = {array.file for array in info.arrays.values()}
        for kept in (self._maps, self._kept):
            for file in list(kept):
                if file.startswith(f"{DERIVED}/") and file not in files:
                    kept.pop(file, None)

    def verify(self, progress: Progress | None = None) -> None:
        """Read every file and check its checksum; check that indices are within bounds and that
        each edge id occurs once. The labelled edges of a split (`open_links`) have no checksums,
        and are left out.

        Args:
            progress: called as progress("verify", bytes done, bytes in all).

        Warns:
            UserWarning: rows of features hold nan or infinity, which a store may have.

        Raises:
            StoreError: the store is damaged; the message names the first file that is.
        """
        with self.unchanged():
            verify(self.path, self.info, progress)


def open_homogeneous(path: str | os.PathLike[str], whose: str) -> Store:
    """Open a store that must be homogeneous and whole; ConfigError: it is not. `whose` is what
    needs it."""
    store = open(path)
    if store.is_hetero:
        raise ConfigError(
            f"{store.path} is heterogeneous, and {whose} is for stores with one type of nodes: use "
            "gnndrive.NeighborLoader in a loop of your own, as in docs/tasks/heterogeneous.md"
        )
    store.check_whole(f"{whose} needs all: give it the whole store")
    return store


def open(path: str | os.PathLike[str]) -> Store:
    """Open a store.

    Args:
        path: the store's folder.

    Returns:
        The open store; `Store.verify` checks what `open` does not.

    Raises:
        StoreError: it is missing, damaged or of another version; the message names the file.
    """
    return _open(path, _check_values)


def open_unread(path: str | os.PathLike[str]) -> Store:
    """Open a store, for what its json files say: as `open`, but its index pointers and splits,
    which may take gigabytes, are neither read nor checked."""
    return _open(path, lambda folder, info: None)


def _open(path: str | os.PathLike[str], check: Callable[[Path, StoreInfo], None]) -> Store:
    """See `open`; `check` raises a StoreError if the values of an array are wrong."""
    if (text := os.fspath(path)).startswith(_SERVICE):
        name = text.removeprefix(_SERVICE).lstrip("/")
        raise StoreError(
            f"{_SERVICE}//{name} is a service and no folder: open its store with "
            f"gnndrive.connect({name!r})"
        )
    share_one_heap()  # here, because whatever starts threads has a store
    folder = Path(os.path.abspath(path))
    for _ in range(_OPENINGS):
        status = info_status(folder)
        try:
            store = _opened(folder, status, check)
            store.check_unchanged()
        except StoreError:
            # If the store was overwritten meanwhile, the next opening finds the new one.
            if info_status(folder) in ((), status):
                raise
        else:
            return store
    raise StoreError(f"{folder} is overwritten again and again: open it when it is complete")


def _open_same(path: str, identity: str, overlay: Overlay) -> Store:
    """Open a store that was pickled; a StoreError if it was overwritten since."""
    store = open(path)
    if store.identity != identity:
        raise StoreError(
            f"{path} was overwritten since it was pickled: open it again with gnndrive.open"
        )
    store.__dict__["overlay"] = overlay
    return store


def _opened(folder: Path, status: FileStatus, check: Callable[[Path, StoreInfo], None]) -> Store:
    info = with_added(folder, read_info(folder))
    for array in info.stored.values():
        os.close(open_checked(folder, array))
    check(folder, info)
    return Store(folder, info, status)


def _check_values(folder: Path, info: StoreInfo) -> None:
    """Check index pointers and splits."""
    for array in info.arrays.values():
        place = info.types.place(array.name)
        if place.group == "splits" or (place.group, place.leaf) == ("graph", "indptr"):
            check_values(folder, array, info.types)

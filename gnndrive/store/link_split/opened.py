"""`open_links`: the three parts of a split, each a store with labelled edges.

A split is the store of the training graph, with folders beside its arrays: `test` and, if some
training edges pass no messages, `val` are stores with more edges; `links` holds `links.json` and
the labelled edges of each part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import Types, folder
from gnndrive.store.views import StoredEdges

EDGES, LABELS = "edges.npy", "labels.npy"  # the labelled edges of a part, [n, 2] and [n]
LINKS, LINKS_JSON, PARTS = "links", "links.json", ("train", "val", "test")
_LABELLED = ("edge_label_index", "edge_label")
Labels = tuple[torch.Tensor, torch.Tensor]


class LabelledEdges(StoredEdges):
    """The edges of a type of a part, with the labelled edges of that type."""

    def __init__(self, part: PartStore, type: EdgeKey, labels: Labels) -> None:
        super().__init__(part, type)
        self._labels = labels

    @property
    def edge_label_index(self) -> torch.Tensor:
        """Ends of the labelled edges, int64 [2, n], mapped."""
        return self._labels[0]

    @property
    def edge_label(self) -> torch.Tensor:
        """Their labels [n], mapped: 1 for an edge, 0 for a pair of nodes without one."""
        return self._labels[1]

    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        index, labels = self._labels
        more = {"edge_label_index": lambda: index, "edge_label": lambda: labels}
        return {**super()._makers(), **more}

    def _stored_group(self, name: str) -> str:
        return "" if name in _LABELLED else super()._stored_group(name)


class PartStore(Store):
    """A part of a split: a store whose edges pass messages, and labelled edges to supervise with.

    `part.edge_label_index` and `part.edge_label` stand where PyG's RandomLinkSplit puts them; in a
    heterogeneous part `part["user", "rates", "movie"]` has them.
    """

    _labels: Mapping[EdgeKey, Labels]
    _root: Path
    _part: str

    def edges(self, type: Any = None) -> StoredEdges:
        """See `Store.edges`; the edges of a type that was split have labels too."""
        found = super().edges(type)
        labels = self._labels.get(found.type)
        return found if labels is None else LabelledEdges(self, found.type, labels)

    @property
    def labelled_types(self) -> list[EdgeKey]:
        """The edge types that have labels; [None] in a homogeneous part."""
        return list(self._labels)

    def all_edges(self) -> list[StoredEdges]:
        """See `Store.all_edges`."""
        return [self.edges(type) for type in self.info.types.edges]

    def __getitem__(self, type: Any) -> Any:
        found = super().__getitem__(type)
        return self.edges(found.type) if isinstance(found, StoredEdges) else found

    @property
    def edge_label_index(self) -> torch.Tensor:
        """Ends of the labelled edges, int64 [2, n], mapped.

        Raises:
            ConfigError: several edge types have labels.
        """
        return self._only()[0]

    @property
    def edge_label(self) -> torch.Tensor:
        """Their labels [n], mapped: 1 for an edge, 0 for a pair of nodes without one; if the store
        has labels of edges, those, plus 1 if there are pairs without an edge."""
        return self._only()[1]

    def _only(self) -> Labels:
        if len(self._labels) > 1:
            raise ConfigError(
                "several edge types have labels: read part[TYPE].edge_label_index, where TYPE is "
                f"one of {', '.join(map(str, self._labels))}"
            )
        return next(iter(self._labels.values()))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (_same_part, (str(self._root), self._part, self.identity, self.overlay))


class LinkSplit(NamedTuple):
    """The parts of a split, as RandomLinkSplit returns them.

    Attributes:
        train, val, test: the parts.
    """

    train: PartStore
    val: PartStore
    test: PartStore


def open_links(path: str | os.PathLike[str]) -> LinkSplit:
    """Open what `split_links` wrote.

    Args:
        path: the folder.

    Raises:
        StoreError: it is missing, damaged or no split.
    """
    root = Path(os.path.abspath(path))
    types = [tuple(type) if type else None for type in read_settings(root)["edge_types"]]
    known = open_store(root).info.types
    if not types or len(set(types)) < len(types) or not set(types) <= set(known.edges):
        raise _not_a_split(root)
    parts = []
    for part in PARTS:
        at = root / part if (root / part).is_dir() else root
        store = object.__new__(PartStore)
        store.__dict__.update(open_store(at).__dict__)
        if not _same_types(store.info.types, known):
            raise _not_a_split(root)
        labels = {type: _read_labels(root, labels_folder(part, type)) for type in types}
        store.__dict__.update(_labels=labels, _root=root, _part=part)
        parts.append(store)
    return LinkSplit(*parts)


def _not_a_split(root: Path) -> StoreError:
    return StoreError(f"{root} is not a split of links: make one with gnndrive.split_links")


def _same_types(one: Types, other: Types) -> bool:
    def counts(types: Types) -> dict[NodeKey, int]:
        return {type: each.num_nodes for type, each in types.nodes.items()}

    return counts(one) == counts(other) and one.edges.keys() == other.edges.keys()


def labels_folder(part: str, type: Any) -> Path:
    """The folder of the labelled edges of a type in a part, relative to the split's."""
    return Path(LINKS, part, folder(type))


def read_settings(root: Path) -> dict[str, Any]:
    """What links.json holds; StoreError: the folder is no split."""
    try:
        content: dict[str, Any] = json.loads(
            read_plain(root, f"{LINKS}/{LINKS_JSON}", JSON_BYTES_MAX)
        )
        for type in content["edge_types"]:  # [] in a homogeneous store
            names = isinstance(type, list) and all(isinstance(name, str) for name in type)
            if not names or len(type) not in (0, 3):
                raise ValueError(f"{type!r} is no edge type")
    except (StoreError, ValueError, TypeError, KeyError, RecursionError):
        raise _not_a_split(root) from None
    return content


def _same_part(root: str, part: str, identity: str, overlay: Any) -> PartStore:
    """Open a part that was pickled; a StoreError if it was overwritten since."""
    found: PartStore = getattr(open_links(root), part)
    if found.identity != identity:
        raise StoreError(f"{root} was overwritten since it was pickled: open it again")
    found.__dict__["overlay"] = overlay
    return found


def _read_labels(root: Path, folder: Path) -> Labels:
    """Map the labelled edges of a part of the split `root`: edge_label_index, int64 [2, n], and
    edge_label [n]; StoreError: a file is missing or damaged."""
    found = []
    for name in (EDGES, LABELS):
        try:
            with os.fdopen(open_plain(root, str(folder / name)), "rb") as file:
                tensor = torch.from_numpy(_mapped(file))
        except (OSError, StoreError, ValueError, TypeError, EOFError, OverflowError) as error:
            raise StoreError(
                f"{root / folder / name} cannot be read ({error}): split the links again, with "
                'if_exists="replace"'
            ) from None
        found.append(tensor)
    edges, labels = found
    if edges.dtype != torch.int64 or edges.shape != (len(labels), 2) or labels.dim() != 1:
        raise StoreError(
            f"{root / folder} does not hold labelled edges: split the links again, with "
            'if_exists="replace"'
        )
    return edges.t(), labels


def _mapped(file: BinaryIO) -> Any:
    """Map the array of an open .npy file, which may be damaged."""
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran or dtype.hasobject:
        raise ValueError("no array of rows")
    # "c": torch wants to be able to write; that changes this process's memory alone.
    return np.memmap(file, dtype, "c", file.tell(), shape)

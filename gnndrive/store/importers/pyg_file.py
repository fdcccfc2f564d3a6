"""Import a file that `torch.save` wrote of a PyG graph: `torch.save(data, "data.pt")`.

Also the file that an InMemoryDataset has processed, such as processed/data.pt. torch memory-maps
the arrays, and calls nothing that the file names: it makes plain values, tensors and PyG's classes
only. When not to use it: for a file of other classes, and for a graph in memory (`from_data`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import least_text, parse_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey
from gnndrive.store.adjacency import with_edge_index
from gnndrive.store.format import AnyDType
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.ends import ArrayEnds
from gnndrive.store.importers.pyg import Splits, num_nodes_of, write_data
from gnndrive.store.importers.splits import SplitSpec
from gnndrive.store.importers.tensor_file import REPEATS, BadTensorFile, load, repeats
from gnndrive.store.reader import Store
from gnndrive.store.writer import StoreWriter

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

SUFFIXES = (".pt", ".pth")
_ZIP = b"PK\x03\x04"


@with_if_exists()
def from_pt(
    file: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    splits: SplitSpec | Mapping[str, Splits] = None,
    memory: str | int = "4GB",
    undirected: bool = False,
    dtype: AnyDType | None = None,
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from a PyG graph in a file that `torch.save` wrote.

    What is written is as for `from_data`. No pickle is run: the file may hold a Data or HeteroData
    with plain values, tensors and lists, tuples and dicts of them. Arrays are memory-mapped, unless
    the file is in torch's form before 1.6, which is read into memory.

    Args:
        file: what torch.save(data, file) wrote of a Data or HeteroData; or what an InMemoryDataset
            of one graph has processed, such as processed/data.pt.
        path: the folder to make.
        splits: as for `from_data`.
        memory: bytes, or a text such as "4GB". Sorting takes 40 bytes an edge; if the edges of a
            type need more than `memory`, DuckDB sorts them and spills beside the store.
        undirected: as for `from_data`; the edges are then in memory, whatever `memory` says.
        dtype: dtype of x in the store; None: the dtype in the file.
        made_by: a text that says how the store was made; None: a text that names the file.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, done, total).

    Returns:
        The open store.

    Raises:
        ConfigError: as `from_data`; `memory` does not hold 8 bytes a node; or DuckDB is needed and
            is not installed.
        StoreError: `file` is missing, damaged or compressed, holds another class, several graphs or
            a tensor that repeats its elements, as expand() makes it; an edge names a node that does
            not exist, or the disk is full.
    """
    budget, source = parse_size(memory, "memory"), Path(file)

    def sort(writer: StoreWriter, type: EdgeKey, ends: Any) -> None:
        where = os.fspath(file) if type is None else f"{file} ({', '.join(type)})"
        ArrayEnds(ends, where).write(writer, type, budget, progress)

    graph = with_edge_index(_graph(source, _load(source)))  # which may say how many nodes
    for store in graph.node_stores:
        nodes = num_nodes_of(store)
        if 8 * nodes > budget:
            raise ConfigError(
                f"{file}: the index pointers of {nodes:,} nodes alone are more than memory=: give "
                f"{least_text(9 * nodes)} or more, or correct num_nodes"
            )
    return write_data(
        graph, path, splits=splits, undirected=undirected, dtype=dtype, sort=sort,
        made_by=made_by or f"gnndrive.from_pt({os.fspath(file)})",
        overwrite=if_exists == "replace", progress=progress,
    )  # fmt: skip


def _load(file: Path) -> Any:
    """What the file holds, its tensors mapped; StoreError: it cannot be read without pickle."""
    from torch_geometric.data import data, storage

    # PyG itself allows Data and HeteroData, but not these plain classes, of which both consist.
    storages = [storage.BaseStorage, storage.EdgeStorage, storage.GlobalStorage]
    classes = [*storages, storage.NodeStorage, data.DataEdgeAttr, data.DataTensorAttr]
    try:
        with file.open("rb") as stream:
            mapped = stream.read(len(_ZIP)) == _ZIP  # torch cannot map its form before 1.6
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror or error}") from None
    try:
        return load(file, mapped, classes)
    except BadTensorFile as error:
        if error.named is None:
            raise _damaged(file, error) from None
        # torch reads no defaultdict, in which PyG remembers what is an attribute of nodes.
        copied = (
            "; PyG adds it to a graph that is used, and torch.save(copy.copy(data), file) leaves "
            "it out"
        )
        raise StoreError(
            f"{file} holds a {error.named}, which only pickle can make, and gnndrive runs no "
            "pickle because it can run any program: if you trust the file, open it yourself, "
            f"data = torch.load({os.fspath(file)!r}, weights_only=False), and give the graph "
            f"to gnndrive.from_data(data, path){copied * error.named.endswith('.AttrType')}"
        ) from None


def _graph(file: Path, found: Any) -> Data | HeteroData:
    """The one graph in what a file holds; StoreError: there is none, or there are several."""
    from torch_geometric.data import Data, HeteroData

    kind: Any = type(found)
    graphs = len(found) if kind is list else 1
    if kind is tuple and len(found) in (2, 3) and _are_slices(found[1], found[0]):
        # see PyG's InMemoryDataset.save
        found, slices, kind = (*found, type(found[0]))[:3]
        if kind is dict:
            kind = HeteroData if "_global_store" in found else Data
        graphs = _count(slices)
    if graphs > 1:
        raise StoreError(
            f"{file} holds {graphs} graphs, and a store is one graph: write the graph that you "
            "mean into a file of its own, torch.save(dataset[0], file), or give it to "
            "gnndrive.from_data(dataset[0], path)"
        )
    if kind not in (Data, HeteroData):
        name = getattr(kind, "__name__", kind)
        raise StoreError(
            f"{file} holds a {name}, not a torch_geometric Data or HeteroData: write one with "
            "torch.save(data, file)"
        )
    try:
        # A new object, because that in a file may be of any state.
        graph: Data | HeteroData = kind.from_dict(
            found if isinstance(found, Mapping) else found.to_dict()
        )
    except Exception:  # because its state may be anything
        raise _damaged(file, "its state is damaged") from None
    for store in graph.stores:
        for name, value in store.items():
            if isinstance(value, torch.Tensor) and repeats(value):
                raise StoreError(f"{file}: {name!r} is a tensor {list(value.shape)} with {REPEATS}")
    return graph


def _are_slices(found: Any, data: Any) -> bool:
    """Whether `found` may be an InMemoryDataset's slices of `data`: they have its names."""
    from torch_geometric.data.data import BaseData

    if found is None or not isinstance(data, Mapping | BaseData):
        return found is None
    names = data if isinstance(data, Mapping) else data.to_dict()
    return isinstance(found, Mapping) and all(
        name in names or name in names.get("_global_store", ()) for name in found
    )


def _count(slices: Any) -> int:
    """The number of graphs, of an InMemoryDataset's slices; 1 if they do not tell."""
    if not isinstance(slices, Mapping):
        return 1 if not isinstance(slices, torch.Tensor) else len(slices) - 1
    return max(map(_count, slices.values()), default=1)


def _damaged(file: Path, problem: object) -> StoreError:
    return StoreError(
        f"{file} is not what torch.save writes of a PyG graph ({problem}): write it again with "
        "torch.save(data, file)"
    )

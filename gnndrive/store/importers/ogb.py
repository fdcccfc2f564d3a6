"""Import an OGB node property dataset from its folder, without the ogb package.

When not to use it: for OGB's link and graph property datasets, and for a dataset that is already in
memory (`from_data`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import Int64Array, NodeKey
from gnndrive.store.format import AnyDType, Progress
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.changes import as_labels, flat, twice, two_dimensional
from gnndrive.store.importers.dataset import Dataset, require, write_dataset
from gnndrive.store.importers.ends import BothWays
from gnndrive.store.importers.features import Features
from gnndrive.store.importers.ogb_files import Raw, open_raw
from gnndrive.store.importers.text import read_ids, read_small
from gnndrive.store.reader import Store

_SPLITS = {"train": "train", "valid": "val", "test": "test"}


@with_if_exists()
def from_ogb(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory: str | int = "4GB",
    undirected: bool = False,
    dtype: AnyDType = "float32",
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from an OGB node property dataset that is downloaded and unzipped.

    Node features become x [nodes, columns], edge features edge_attr [edges, columns], labels y.
    Every other array keeps its name, such as node_year, node_species and edge_reltype; an array of
    one column becomes [n]. Arrays in CSV become int64 if they hold whole numbers only, else
    float32, as in OGB's own reader; arrays in .npz keep their dtype, but float64 becomes float32.
    Edge ids are positions in OGB's list of edges.

    Args:
        folder: a folder with raw/ and split/ in it, such as dataset/ogbn_arxiv. The CSV form
            (ogbn-arxiv, -products, -proteins, -mag) is read faster if pyarrow is installed.
        path: the folder to make.
        memory: bytes, or a text such as "4GB". Sorting takes 40 bytes an edge; if the edges of a
            type need more than `memory`, DuckDB sorts them and spills beside the store.
        undirected: insert the reverse of each edge after the edge, with the same features, and keep
            repetitions. This is OGB's add_inverse_edge, which OGB's loaders set for ogbn-products
            and ogbn-proteins. Not allowed with several edge types: OGB's loaders insert no reverse
            edges into ogbn-mag.
        dtype: dtype of x in the store; "bfloat16" is allowed.
        made_by: a text that says how the store was made; None: a text that names the folder.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, done, total).

    Returns:
        The open store: homogeneous, or with OGB's types. y is int64 with -1 for a missing label if
        all labels are whole numbers, else float32 with nan; its shape is [nodes], or [nodes,
        columns] if there are several columns. The splits are train, val and test; if the folder has
        several schemes of splits, they are SCHEME_train and so on.

    Raises:
        ConfigError: arguments do not fit together, `path` exists, or pyarrow or DuckDB is needed
            and is not installed.
        StoreError: `folder` is not an OGB folder, a file is missing or damaged, counts or edges
            contradict each other (the message names the file and the line), or the disk is full;
            nothing is left behind.
    """
    budget, root = parse_size(memory, "memory"), Path(folder)
    raw = open_raw(root)
    if undirected and None not in raw.num_nodes:
        raise ConfigError(
            "undirected= is for one type of edges: leave it out, and add edge types of reverse "
            "edges to the dataset yourself"
        )
    if undirected:
        raw.edges[None] = BothWays(raw.edges[None])
    dataset = Dataset(raw.num_nodes, raw.edges)
    _add_arrays(dataset, raw, undirected, dtype)
    for node_type, name, ids in _splits(root / "split", raw):
        dataset.splits[node_type, name] = ids
    default_made_by = (
        f"gnndrive.from_ogb({os.fspath(folder)}{', undirected' if undirected else ''})"
    )
    return write_dataset(
        dataset, path, memory=budget, made_by=made_by or default_made_by,
        overwrite=if_exists == "replace", progress=progress,
    )  # fmt: skip


def _add_arrays(dataset: Dataset, raw: Raw, undirected: bool, dtype: AnyDType) -> None:
    for (node_type, name), rows in raw.nodes.items():
        if name == "node_feat":
            dataset.add("nodes", node_type, "x", two_dimensional(rows), dtype)
        else:
            dataset.add("nodes", node_type, name, flat(rows), _as_ogb_reads(rows))
    for (edge_type, name), rows in raw.of_edges.items():
        each = twice(rows) if undirected else rows
        if name == "edge_feat":
            each, name = two_dimensional(each), "edge_attr"
        else:
            each = flat(each)
        dataset.add("edges", edge_type, name, each, _as_ogb_reads(rows))
    if not raw.labels:
        raise StoreError("the dataset has no labels: give an OGB node property dataset (ogbn-…)")
    for node_type, rows in raw.labels.items():
        dataset.add("nodes", node_type, "y", as_labels(rows))


def _as_ogb_reads(rows: Features) -> str:
    return "float32" if rows.dtype == np.float64 else rows.stored


# ---- splits


def _splits(folder: Path, raw: Raw) -> Iterator[tuple[NodeKey, str, Int64Array]]:
    """Yield (node type, name, ids) of each split."""
    schemes = sorted(each for each in folder.glob("*") if each.is_dir())
    if not schemes:
        raise StoreError(
            f"{folder} holds no scheme of splits, such as split/time: fetch or unzip the dataset "
            "again"
        )
    for scheme in schemes:
        prefix = "" if len(schemes) == 1 else f"{scheme.name}_"
        for node_type, name, ids in _scheme(scheme, raw):
            yield node_type, prefix + _SPLITS[name], ids


def _scheme(folder: Path, raw: Raw) -> Iterator[tuple[NodeKey, str, Int64Array]]:
    flags = folder / "nodetype-has-split.csv.gz"
    pickled = folder / "split_dict.pt"
    if pickled.is_file() and not flags.is_file() and not (folder / "train.csv.gz").is_file():
        yield from _pickled(pickled, raw)
        return
    types = list(raw.num_nodes)
    if None not in raw.num_nodes:
        lines = read_small(require(flags))
        has_split = dict(zip(*lines, strict=True)) if len(lines) == 2 else {}
        types = [each for each in types if str(has_split.get(str(each))).lower() in ("true", "1")]
        if not types:
            raise StoreError(f"{flags} says that no node type is split: fetch the dataset again")
    for node_type in types:
        for name in _SPLITS:
            file = require(folder / (node_type or "") / f"{name}.csv.gz")
            yield node_type, name, read_ids(file, raw.num_nodes[node_type], of_dataset=True)


def _pickled(path: Path, raw: Raw) -> Iterator[tuple[NodeKey, str, Int64Array]]:
    """Yield the splits that OGB's DatasetSaver wrote as tensors; arrays are refused, because only a
    pickle can hold them."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # because a damaged pickle can raise anything
        raise StoreError(
            f"{path} is not loaded, because it holds more than tensors and a pickle can run any "
            "code: if you trust it, write its ids beside it as other OGB datasets have them, in "
            "train.csv.gz, valid.csv.gz and test.csv.gz, an id a line"
        ) from None
    for name in _SPLITS:
        each: Any = found.get(name) if isinstance(found, dict) else None
        by_type = {None: each} if None in raw.num_nodes else each
        if not isinstance(by_type, dict) or not set(by_type) <= set(raw.num_nodes):
            raise StoreError(f"{path} has no {name!r} for these node types: fetch it again")
        for node_type, ids in by_type.items():
            if not isinstance(ids, torch.Tensor) or ids.dim() != 1 or ids.is_floating_point():
                raise StoreError(f"{path}: {name!r} is not a tensor of node ids: fetch it again")
            values = ids.numpy().astype(np.int64)
            bad = np.flatnonzero((values < 0) | (values >= raw.num_nodes[node_type]))
            if len(bad):
                raise StoreError(
                    f"{path}: entry {bad[0]} of {name!r} names node {values[bad[0]]}, but there "
                    f"are {raw.num_nodes[node_type]} nodes, numbered from 0; correct it"
                )
            yield node_type, name, values

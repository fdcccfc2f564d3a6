"""Write given arrays as folders of OGB node property datasets, in each of their forms."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive import StoreError

NODES, EDGES = 300, 2000
COUNTS = {"author": 200, "field_of_study": 40, "paper": NODES}
TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]
SPLITS = {"train": [5, 3, 9], "valid": [0, 299], "test": [7]}


def put(path: Path, rows: Any) -> None:
    """Write rows as OGB does: no header, gzipped, nan as an empty text in quotes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.asarray(rows)
    table = table if table.ndim == 2 else table[:, None]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for row in table.tolist():
            file.write(",".join('""' if each != each else str(each) for each in row) + "\n")


def put_splits(folder: Path) -> None:
    for name, ids in SPLITS.items():
        put(folder / f"{name}.csv.gz", ids)


def make_arrays() -> dict[str, Any]:
    """The arrays of a homogeneous dataset."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, NODES).astype(np.float32)
    labels[::7] = np.nan
    return {
        "edge_index": random.integers(0, NODES, (2, EDGES)),
        "node_feat": random.standard_normal((NODES, 5)).astype(np.float32),
        "node_year": random.integers(1990, 2020, (NODES, 1)),
        "edge_feat": random.standard_normal((EDGES, 2)).astype(np.float32),
        "edge_weight": random.integers(0, 9, (EDGES, 1)),
        "node_label": labels[:, None],
    }


def csv_form(folder: Path, arrays: dict[str, Any]) -> Path:
    raw = folder / "raw"
    put(raw / "edge.csv.gz", arrays["edge_index"].T)
    put(raw / "num-node-list.csv.gz", [NODES])
    put(raw / "num-edge-list.csv.gz", [EDGES])
    for name in ("node_feat", "edge_feat", "node_label"):
        put(raw / f"{name.replace('_', '-')}.csv.gz", arrays[name])
    for name in ("node_year", "edge_weight"):
        put(raw / f"{name}.csv.gz", arrays[name])
    put_splits(folder / "split" / "time")
    return folder


def npz_form(
    folder: Path, arrays: dict[str, Any], save: Callable[..., None] = np.savez_compressed
) -> Path:
    (folder / "raw").mkdir(parents=True)
    given = dict(arrays)
    save(folder / "raw" / "node-label.npz", node_label=given.pop("node_label"))
    counts = {"num_nodes_list": np.array([NODES]), "num_edges_list": np.array([EDGES])}
    save(folder / "raw" / "data.npz", **given, **counts)
    put_splits(folder / "split" / "time")
    return folder


def fortran_form(folder: Path, arrays: dict[str, Any]) -> Path:
    edge_index = np.asfortranarray(arrays["edge_index"])
    return npz_form(folder, {**arrays, "edge_index": edge_index}, np.savez)


def plain_form(folder: Path, arrays: dict[str, Any]) -> Path:
    return npz_form(folder, arrays, np.savez)


def make_typed() -> dict[str, Any]:
    """The arrays of a heterogeneous dataset, by type."""
    random = np.random.default_rng(1)
    return {
        "edge_index": {
            (s, r, t): np.stack(
                [random.integers(0, COUNTS[s], EDGES), random.integers(0, COUNTS[t], EDGES)]
            )
            for s, r, t in TYPES
        },
        "node_feat": {"paper": random.standard_normal((NODES, 5)).astype(np.float32)},
        "node_year": {"paper": random.integers(1990, 2020, (NODES, 1))},
        "edge_reltype": {type: np.full((EDGES, 1), n) for n, type in enumerate(TYPES)},
        "node_label": {"paper": random.integers(0, 4, (NODES, 1))},
    }


def typed_csv_form(folder: Path, typed: dict[str, Any]) -> Path:
    raw = folder / "raw"
    put(raw / "num-node-dict.csv.gz", [list(COUNTS), list(COUNTS.values())])
    put(raw / "triplet-type-list.csv.gz", TYPES)
    for what in ("feat", "label"):
        flags = [[*COUNTS], [name == "paper" for name in COUNTS]]
        put(raw / f"nodetype-has-{what}.csv.gz", np.array(flags, object))
    for type in TYPES:
        relation = raw / "relations" / "___".join(type)
        put(relation / "edge.csv.gz", typed["edge_index"][type].T)
        put(relation / "num-edge-list.csv.gz", [EDGES])
        put(relation / "edge_reltype.csv.gz", typed["edge_reltype"][type])
    put(raw / "node-feat" / "paper" / "node-feat.csv.gz", typed["node_feat"]["paper"])
    put(raw / "node-feat" / "paper" / "node_year.csv.gz", typed["node_year"]["paper"])
    put(raw / "node-label" / "paper" / "node-label.csv.gz", typed["node_label"]["paper"])
    return put_typed_splits(folder)


def typed_npz_form(folder: Path, typed: dict[str, Any]) -> Path:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    np.savez_compressed(raw / "num_nodes_dict.npz", **{k: [n] for k, n in COUNTS.items()})
    joined = {"___".join(type): type for type in TYPES}
    np.savez_compressed(raw / "num_edges_dict.npz", **{member: [EDGES] for member in joined})
    for name, file in (("edge_index", "edge_index_dict"), ("edge_reltype", "edge_reltype")):
        each = {member: typed[name][type] for member, type in joined.items()}
        np.savez_compressed(raw / f"{file}.npz", **each)
    np.savez_compressed(raw / "node_feat_dict.npz", **typed["node_feat"])
    np.savez_compressed(raw / "node_year.npz", **typed["node_year"])
    np.savez_compressed(raw / "node-label.npz", **typed["node_label"])
    return put_typed_splits(folder)


def put_typed_splits(folder: Path) -> Path:
    time = folder / "split" / "time"
    flags = [[*COUNTS], [name == "paper" for name in COUNTS]]
    put(time / "nodetype-has-split.csv.gz", np.array(flags, object))
    put_splits(time / "paper")
    return folder


def left(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(os.listdir(folder))


def refused(folder: Path, match: str | None, kind: Any = StoreError, **arguments: Any) -> None:
    """Check that a folder is refused and that nothing is left behind."""
    before = left(folder.parent)
    with pytest.raises(kind, match=match):
        gnndrive.from_ogb(folder, folder.parent / "refused.gnn", **arguments)
    assert left(folder.parent) == before

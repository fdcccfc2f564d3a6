"""Folders of GraphBolt datasets, each with a metadata.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import gnndrive
from gnndrive import Store, StoreError

NODES, EDGES = 200, 1500
COUNTS = {"paper": NODES, "author": 90}
TYPES = {"author:writes:paper": (90, NODES), "paper:cites:paper": (NODES, NODES)}
SETS = {"train": "train_set", "val": "validation_set", "test": "test_set"}


class Source:
    """A dataset's folder: its files, and the metadata that describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.random = folder, np.random.default_rng(0)
        self.graph: dict[str, Any] = {"nodes": [], "edges": []}
        self.said: dict[str, Any] = {
            "dataset_name": "a test", "graph": self.graph, "feature_data": [], "tasks": [],
        }  # fmt: skip
        folder.mkdir()

    def put(self, name: str, array: Any, kind: str = "numpy") -> dict[str, str]:
        """Save an array; return the metadata of its file."""
        ending = {"numpy": "npy", "torch": "pt", "csv": "csv"}[kind]
        path = self.folder / "data" / f"{name}.{ending}"
        path.parent.mkdir(exist_ok=True)
        if kind == "numpy":
            np.save(path, array)
        elif kind == "torch":
            torch.save(torch.as_tensor(array), path)
        else:
            np.savetxt(path, array.T, "%d", delimiter=",")
        return {"format": kind, "path": f"data/{path.name}"}

    def edges(self, kind: str, type: str | None = None) -> np.ndarray:
        sources, targets = TYPES[type] if type else (NODES, NODES)
        drawn = [self.random.integers(0, nodes, EDGES) for nodes in (sources, targets)]
        said = self.put((type or "edges").replace(":", "-"), np.stack(drawn), kind)
        self.graph["edges"].append({**({"type": type} if type else {}), **said})
        return np.stack(drawn)

    def feature(self, domain: str, name: str, array: Any, **more: Any) -> Any:
        said = self.put(f"{domain}-{name}", array, more.pop("kind", "numpy"))
        entry = {"domain": domain, "name": name, "in_memory": False, **said, **more}
        self.said["feature_data"].append(entry)
        return array

    def task(self, type: str | None = None, labels: str | None = "numpy", **more: Any) -> Any:
        """Add a task of nodes; return the seeds and the labels of its sets."""
        order = self.random.permutation(NODES)[:90]
        given = {}
        task: dict[str, Any] = {"name": "classify", "num_classes": 5, **more}
        for name, seeds in zip(SETS, np.split(order, 3), strict=True):
            data = [{"name": "seeds", **self.put(f"{name}-seeds", seeds)}]
            given[name] = seeds, seeds % 5
            if labels:
                said = self.put(f"{name}-labels", seeds % 5, labels)
                data.append({"name": "labels", **said})
            task[SETS[name]] = [{**({"type": type} if type else {}), "data": data}]
        self.said["tasks"].append(task)
        return given

    def write(self) -> Path:
        text = yaml.safe_dump(self.said, sort_keys=False)
        (self.folder / "metadata.yaml").write_text(text, encoding="utf-8")
        return self.folder

    def store(self, **arguments: Any) -> Store:
        return gnndrive.from_graphbolt(
            self.write(), self.folder.parent / "g.gnn", **arguments
        )  # fmt: skip

    def refused(self, match: str | None, kind: Any = StoreError, **arguments: Any) -> None:
        """Check that the dataset is refused and that nothing is left behind."""
        before = sorted(os.listdir(self.folder.parent))
        with pytest.raises(kind, match=match):
            gnndrive.from_graphbolt(
                self.write(), self.folder.parent / "refused.gnn", **arguments
            )  # fmt: skip
        assert sorted(os.listdir(self.folder.parent)) == before


def homogeneous(folder: Path) -> Source:
    """A homogeneous dataset with nodes and nothing else."""
    made = Source(folder)
    made.graph["nodes"].append({"num": NODES})
    return made


def heterogeneous(folder: Path) -> Source:
    """A heterogeneous dataset with nodes and nothing else."""
    made = Source(folder)
    made.graph["nodes"] += [{"type": name, "num": count} for name, count in COUNTS.items()]
    return made

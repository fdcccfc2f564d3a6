"""A tiny store with every kind of array; functions that damage a store or compare it."""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive import ConfigError, StoreError
from gnndrive.store import Store, write_store

NODES, EDGES = 40, 160


@pytest.fixture(autouse=True)
def synced(monkeypatch) -> list[str]:
    """The paths that were fsynced, in order. fsync is replaced, because hundreds of tests would
    wait for the disk."""
    paths: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: paths.append(os.readlink(f"/proc/self/fd/{fd}")))
    return paths


def make_store(path: Path) -> Store:
    rng = np.random.default_rng(7)
    indptr = np.concatenate([[0], np.sort(rng.integers(0, EDGES + 1, NODES - 1)), [EDGES]])
    return write_store(
        path,
        indptr=indptr,
        indices=rng.integers(0, NODES, EDGES),
        edge_id=rng.permutation(EDGES),
        nodes={
            "x": torch.from_numpy(rng.standard_normal((NODES, 3))).bfloat16(),
            "y": rng.integers(0, 5, NODES),
        },
        edges={"edge_attr": rng.standard_normal((EDGES, 2)).astype(np.float32)},
        splits={"train": np.arange(10), "val": np.arange(NODES) >= 30},
        classes=["a", "b", "c", "d", "é"],
        made_by="a test",
    )


@pytest.fixture
def store(tmp_path) -> Store:
    return make_store(tmp_path / "tiny.gnn")


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of JSON in place."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def poke(file: Path, offset: int, content: bytes) -> None:
    """Overwrite a file's bytes from `offset`."""
    with file.open("r+b") as stream:
        os.pwrite(stream.fileno(), content, offset)


def left(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(os.listdir(folder))


@contextmanager
def refused(
    folder: Path, match: str | None, kind: Any = (ConfigError, StoreError)
) -> Iterator[None]:
    """Check for an error after which a folder holds the same names as before."""
    before = left(folder)
    with pytest.raises(kind, match=match):
        yield
    assert left(folder) == before


def compressed(content: bytes) -> bytes:
    """A zip file's members, compressed."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as whole,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in whole.namelist():
            new.writestr(name, whole.read(name))
    return made.getvalue()


def edges_of(view: Any) -> np.ndarray:
    """The edges of a store or of an edge type, [2, edges], by edge id."""
    edges = view.edges() if isinstance(view, Store) else view
    found = np.empty((2, edges.num_edges), np.int64)
    number = np.arange(edges.num_edges) if edges.edge_id is None else np.asarray(edges.edge_id)
    found[0, number] = edges.indices
    found[1, number] = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return found


def same_array(store: Store, name: str, dtype: str, expected: Any) -> None:
    """Check the dtype of an array of a store, and that its values equal the source's."""
    array = store.array(name)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)

"""Labels are kept in narrow integers, and a batch has them as the store does."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.pipeline.workers import ThreadWorkers
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.labels import Labels, SharedLabels, kept_bytes, kept_dtype, read_labels

NODES = 1200
Write = Callable[..., gnndrive.Store]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(y: np.ndarray) -> gnndrive.Store:
        return gnndrive.write_store(
            tmp_path / "labelled.gnn", indptr=np.arange(NODES + 1),
            indices=np.arange(NODES)[::-1].copy(), made_by="test",
            nodes={"x": np.zeros((NODES, 4), np.float32), "y": y},
        )  # fmt: skip

    return write


def labels_of(classes: int, dtype: type, least: int = 0) -> np.ndarray:
    y = np.random.default_rng(classes).integers(least, classes, NODES).astype(dtype)
    y[7] = classes - 1
    return y


def assert_batches_have(y: np.ndarray, store: gnndrive.Store) -> None:
    with gnndrive.NeighborLoader(store, [2], batch_size=400, buffer="1MB", shuffle=True) as loader:
        for batch in loader:
            torch.testing.assert_close(batch.y, torch.from_numpy(y)[batch.n_id], rtol=0, atol=0)


# Importing says that most of so many classes have no node.
@pytest.mark.filterwarnings("ignore:nodes/y. its labels go up to")
@pytest.mark.parametrize(
    ("y", "kept"),
    [
        (labels_of(128, np.int64, -128), np.int8),
        (labels_of(129, np.int64), np.int16),
        (labels_of(40_000, np.int64, -1), np.int32),
        (labels_of(40_000, np.int32), None),  # int32 would save nothing
        (labels_of(1 << 40, np.int64), None),
        (labels_of(50, np.int16), np.int8),
        (labels_of(50, np.int8), None),
        (labels_of(2, np.float32), None),
        (labels_of(50, np.int64).reshape(-1, 1), None),
    ],
)
def test_a_batch_has_the_stores_labels(write, y, kept, monkeypatch):
    monkeypatch.setattr("gnndrive.disk.sequential_reader.STRETCH_BYTES", 4096)  # several stretches
    store = write(y)
    assert kept_dtype(store.nodes()) == kept
    assert kept_bytes(store.nodes()) == (0 if kept is None else np.dtype(kept).itemsize * NODES)
    assert_batches_have(y, store)


@pytest.mark.parametrize("odd", [-129, -100_000])
def test_a_label_that_is_no_class_keeps_labels_mapped(write, odd):
    y = labels_of(50, np.int64)
    y[-1] = odd
    store = write(y)
    assert Labels(store.nodes()).pick(np.array([0]), np.empty) is None
    assert_batches_have(y, store)


def test_labels_are_read_before_the_first_sample(write, monkeypatch):
    store, begun, run = write(labels_of(50, np.int64)), [], ThreadWorkers.run

    def noted(self: ThreadWorkers, function: Callable[..., object], *arguments: object) -> object:
        begun.append(getattr(function, "__name__", ""))
        return run(self, function, *arguments)

    monkeypatch.setattr(ThreadWorkers, "run", noted)
    with gnndrive.NeighborLoader(store, [2], batch_size=400, buffer="1MB") as loader:
        next(iter(loader))
    assert begun[:2] == ["prepare", "_sample"]


def test_preparing_reads_the_labels_that_pick_returns(write):
    y = labels_of(50, np.int64)
    store = write(y)
    collate = Collate(store, (), None, False)
    collate.prepare()
    os.truncate(store.table("y").path, 4096)
    (labels,) = collate._labels.values()
    assert labels.pick(np.array([7]), np.empty).tolist() == [49]
    labels.close()
    collate.prepare()  # which leaves the error to the batch
    with pytest.raises(StoreError, match="became shorter"):
        labels.pick(np.array([7]), np.empty)
    loader = gnndrive.NeighborLoader(store, [2], batch_size=400, buffer="1MB")
    with loader, pytest.raises(StoreError, match="became shorter"):
        list(loader)


def test_labels_are_read_again_after_close_and_in_a_copy(write):
    y = labels_of(50, np.int64)
    labels = Labels(write(y).nodes())
    node = np.array([5, 7, 5])
    for these in (labels, pickle.loads(pickle.dumps(labels)), labels):
        picked = these.pick(node, np.empty)
        assert picked.tolist() == y[node].tolist()
        these.close()


def test_labels_of_another_process_are_used_until_close(write, monkeypatch):
    y, node = labels_of(200, np.int64), np.array([5, 7, 5])
    store = write(y)
    kept = read_labels(store.nodes())
    kept[5] = 3  # to be told from what is read here
    kept.flags.writeable = False
    collate = Collate(store, (), None, False)
    collate.use_labels({"nodes/y": SharedLabels(kept)})
    store.year = torch.zeros(NODES)
    collate = collate.current(False)
    (labels,) = collate._labels.values()
    monkeypatch.setattr(f"{Labels.__module__}.SequentialReader", None)
    collate.prepare()
    picked = labels.pick(node, np.empty)
    assert picked.dtype == torch.int64
    assert picked.tolist() == [3, 199, 3]
    monkeypatch.undo()
    again = pickle.loads(pickle.dumps(labels))
    collate.close()
    for these in (labels, again):
        picked = these.pick(node, np.empty)
        assert picked.tolist() == y[node].tolist()


def test_labels_are_read_into_the_memory_that_is_given(write):
    y, memory = labels_of(200, np.int64), np.zeros(2 * NODES, np.uint8)
    kept = read_labels(write(y).nodes(), lambda shape, dtype: memory[: 2 * shape].view(dtype))
    assert np.shares_memory(kept, memory)
    assert np.array_equal(kept, y)

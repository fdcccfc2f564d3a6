"""A small real graph with rows of 18,856 bytes; the figures are those of its README.md."""

import os
from copy import copy
from pathlib import Path

import pytest
import scipy.sparse
import torch

from gnndrive import open as open_store
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.commands.split_batches import SplitBatches
from gnndrive.cli.main import main
from gnndrive.cli.training import ModelSettings, TrainSettings, train

NODES, FEATURES = 22_470, 4_714
SPLITS = {"train": 13_482, "val": 4_494, "test": 4_494}  # 60/20/20
OPTIONS = LoaderOptions(batch_size=64, seed=1, buffer="64MB")
SETTINGS = TrainSettings(epochs=1, lr=0.003, weight_decay=5e-4, seed=1, evaluate=())

pytestmark = pytest.mark.xdist_group("facebook")  # one worker imports it, and only once


def source() -> Path:
    """The folder of the data; without it a test is skipped, but fails if GNNDRIVE_SHARED is set."""
    given = os.environ.get("GNNDRIVE_SHARED")
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = (Path(given) if given else beside) / "data" / "facebook_page_page"
    missing = f"{folder} is not there: set GNNDRIVE_SHARED to the folder that holds data/"
    if not given and not folder.is_dir():
        pytest.skip(missing)
    assert folder.is_dir(), missing
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    data, folder = source(), tmp_path_factory.mktemp("facebook")
    command = ["import", folder / "pages.gnn", "--undirected", "--edges", data / "edges.csv"]
    command += ["--features", data / "features.npz", "--labels", data / "labels.csv"]
    assert main([str(word) for word in [*command, "--seed", 1]]) == 0
    return open_store(folder / "pages.gnn")


@pytest.fixture(scope="module")
def rows():
    """The features in memory, read from the source and not from the store."""
    table = scipy.sparse.load_npz(source() / "features.npz")
    return torch.from_numpy(table.astype("float32").toarray())


def test_the_imported_store_matches_the_readme(store, rows):
    assert (store.num_nodes, store.num_features, store.num_classes) == (NODES, FEATURES, 4)
    assert store.classes == ("company", "government", "politician", "tvshow")
    assert store.num_edges == 2 * (171_002 - 179) + 179
    assert torch.bincount(store.tensor("y")).tolist() == [6_495, 6_880, 5_768, 3_327]
    assert {name: len(store.split(name)) for name in SPLITS} == SPLITS
    assert torch.equal(store.tensor("x"), rows)


def test_training_with_64_mb_has_the_losses_of_the_same_batches_from_memory(
    store, rows, monkeypatch
):
    model, kept = ModelSettings(FEATURES, 4, "sage", 2, 64, 0.5), []

    def recorded(split, epoch):
        for batch in batches(split, epoch):
            kept.append(bare := copy(batch))
            del bare.x
            yield batch

    def from_memory(split, epoch):
        for batch in kept:
            batch.x = rows[batch.n_id]
            yield batch

    seeds = store.split("train")[:512]
    monkeypatch.setattr(type(store), "split", lambda store, name: seeds)
    with SplitBatches(store, OPTIONS, epochs=1) as batches:
        losses = train(recorded, model, SETTINGS).epochs[0].losses
    assert batches.stats["evictions"] > 0
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert losses == train(from_memory, model, SETTINGS).epochs[0].losses

"""A small real graph with rows of 18,856 bytes, imported and trained on as its README says.

The settings and the accuracy to reach come from shared/data/facebook_page_page/README.md, whose
figures were measured with all data in memory. The choice of test nodes changes the accuracy more
than the seed of the weights does. The split is the importer's with seed 1, one of the README's two
seeds, because it leaves a margin: over eight seeds of the weights the best of three epochs is 0.945
to 0.950. On the split of seed 0 it is 0.939 to 0.946, and one of the eight misses 0.94.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse
import torch
from torch_geometric.nn import GraphSAGE, SAGEConv

from gnndrive import Store
from gnndrive import open as open_store
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.commands.split_batches import SplitBatches
from gnndrive.cli.commands.train import run_training
from gnndrive.cli.main import main
from gnndrive.cli.training import MODELS, History, ModelSettings, TrainSettings, train

NODES, FEATURES = 22_470, 4_714
ROW_BYTES = 4 * FEATURES
SEED = 1
SPLITS = {"train": 13_482, "val": 4_494, "test": 4_494}  # 60/20/20
OPTIONS = LoaderOptions(fanout=(10, 10), batch_size=1024, seed=SEED, buffer="288MB")
SETTINGS = TrainSettings(epochs=3, lr=0.003, weight_decay=5e-4, seed=SEED, evaluate=("test",))
MODEL, HIDDEN, DROPOUT = "sparse sage", 128, 0.5

pytestmark = pytest.mark.xdist_group("facebook")  # one worker imports and trains, and only once


def source() -> Path:
    """The folder of the data: where GNNDRIVE_SHARED says, else beside the project.

    Without the data the test is skipped, but fails if GNNDRIVE_SHARED is set.
    """
    given = os.environ.get("GNNDRIVE_SHARED")
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = (Path(given) if given else beside) / "data" / "facebook_page_page"
    missing = f"{folder} is not there: set GNNDRIVE_SHARED to the folder that holds data/"
    if not given and not folder.is_dir():
        pytest.skip(missing)
    assert folder.is_dir(), missing
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    data, folder = source(), tmp_path_factory.mktemp("facebook")
    command = ["import", folder / "pages.gnn", "--undirected", "--edges", data / "edges.csv"]
    command += ["--features", data / "features.npz", "--labels", data / "labels.csv"]
    command += ["--seed", SEED]
    assert main([str(word) for word in command]) == 0
    return open_store(folder / "pages.gnn")


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    """The features in memory, read from the source and not from the store."""
    table = scipy.sparse.load_npz(source() / "features.npz")
    return torch.from_numpy(table.astype("float32").toarray())


class SparseRows(SAGEConv):  # type: ignore[misc]
    """The same layer for rows that are almost all zeros: it multiplies first, then takes means."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        numbers = x.to_sparse()
        theirs = torch.sparse.mm(numbers, self.lin_l.weight.T)
        means: torch.Tensor = self.propagate(edge_index, x=(theirs, theirs), size=None)
        return means + self.lin_l.bias + torch.sparse.mm(numbers, self.lin_r.weight.T)


class SparseSAGE(GraphSAGE):  # type: ignore[misc]
    """GraphSAGE whose first layer is `SparseRows`: a fifth of the time."""

    def init_conv(self, columns: int, out: int, **given: Any) -> SAGEConv:
        return (SparseRows if columns == FEATURES else SAGEConv)(columns, out, **given)


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, MODEL, SparseSAGE)
        yield


def test_the_sparse_layer_is_that_of_pyg(rows: torch.Tensor):
    """Its results and gradients, also of a node without neighbours."""
    torch.manual_seed(0)
    plain, sparse = SAGEConv(FEATURES, 8), SparseRows(FEATURES, 8)
    sparse.load_state_dict(plain.state_dict())
    edges = torch.randint(64, (2, 300)) % torch.tensor([[64], [63]])
    results = [layer(rows[:64], edges) for layer in (plain, sparse)]
    torch.testing.assert_close(results[1], results[0])
    for each in results:
        each.square().sum().backward()
    for one, other in zip(plain.parameters(), sparse.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


@dataclass(eq=False)
class Recorder:
    """Passes batches on, and keeps a copy of each training batch without its rows."""

    batches: SplitBatches
    kept: dict[int, list[Any]] = field(default_factory=dict)

    def __call__(self, split: str, epoch: int) -> Iterator[Any]:
        for batch in self.batches(split, epoch):
            if split == "train":
                bare = copy(batch)
                del bare.x
                self.kept.setdefault(epoch, []).append(bare.clone())
            yield batch


@dataclass(frozen=True)
class Run:
    """A training from disk, and the samples that it used."""

    history: History
    samples: dict[int, list[Any]]
    stats: dict[str, Any]


@pytest.fixture(scope="module")
def run(store: Store) -> Run:
    with SplitBatches(store, OPTIONS, SETTINGS.epochs) as batches:
        recorder = Recorder(batches)
        history = train(recorder, model_settings(store), SETTINGS)
    return Run(history, recorder.kept, batches.stats)


def model_settings(store: Store) -> ModelSettings:
    return ModelSettings(store.num_features, store.num_classes, MODEL, 2, HIDDEN, DROPOUT)


def test_the_imported_store_matches_the_readme(store: Store, rows: torch.Tensor):
    assert (store.num_nodes, store.num_features, store.num_classes) == (NODES, FEATURES, 4)
    assert store.classes == ("company", "government", "politician", "tvshow")
    assert store.num_edges == 2 * (171_002 - 179) + 179
    assert torch.bincount(store.tensor("y")).tolist() == [6_495, 6_880, 5_768, 3_327]
    assert {name: len(store.split(name)) for name in SPLITS} == SPLITS
    assert torch.equal(store.tensor("x"), rows)


def test_accuracy_equals_that_of_training_in_memory(run: Run):
    assert max(result.accuracy["test"] for result in run.history.epochs) >= 0.94
    assert run.stats["buffer_bytes"] <= 288_000_000 < NODES * ROW_BYTES


def test_losses_equal_those_of_the_same_batches_from_memory(
    store: Store, run: Run, rows: torch.Tensor
):
    def from_memory(split: str, epoch: int) -> Iterable[Any]:
        assert split == "train"
        for bare in run.samples[epoch]:
            batch = bare.clone()
            batch.x = rows[bare.n_id]
            yield batch

    settings = replace(SETTINGS, epochs=1, evaluate=())
    losses = train(from_memory, model_settings(store), settings).epochs[0].losses
    assert losses == run.history.epochs[0].losses
    assert len(losses) == -(-SPLITS["train"] // OPTIONS.batch_size)


def test_small_batches_train_with_64_mb(store: Store):
    options = replace(OPTIONS, batch_size=64, buffer="64MB")
    few = {"train": store.split("train")[:512]}
    batches = SplitBatches(store, options, epochs=1, seeds=few)
    history = run_training(
        batches, "sage", HIDDEN, DROPOUT, replace(SETTINGS, epochs=1, evaluate=())
    )
    assert len(history.epochs[0].losses) == 8
    assert history.epochs[0].losses[-1] < history.epochs[0].losses[0]
    assert batches.stats["evictions"] > 0

"""Lightning's data parallel training with loaders whose ranks share a feature buffer each.

The Trainer keeps the iterator of its sanity check while it makes the next ones, and breaks off
epochs: each new iterator of a loader ends the one before, on all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import LightningNodeData, Store
from tests.loader.test_lightning import Model, trainer

NODES, WORLD, EPOCHS, STEPS, CHECKED = 63, 2, 3, 3, 2
Batches = list[list[int]]


@pytest.fixture
def data() -> Data:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 400), generator=draw)
    data = Data(x=torch.randn(NODES, 4, generator=draw), edge_index=edges)
    for place, name in enumerate(("train", "val", "test")):
        data[f"{name}_mask"] = torch.arange(NODES) % 3 == place
    return data


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "ranks.gnn")


def datamodule(store: Store, **arguments: Any) -> LightningNodeData:
    """Loaders of eleven batches of two seeds, the last of which is smaller."""
    given: dict[str, Any] = {"num_neighbors": [3, 3], "batch_size": 2, "seed": 5}
    return LightningNodeData(store, **given, buffer="100KB", **arguments)


class Sharing(Model):
    """Checks at the end what its rank has got, and that all of it came from a host service."""

    expected: dict[str, list[Batches]]

    def on_train_end(self) -> None:
        for stage in ("train", "val"):
            rank = self.expected[stage][self.global_rank]
            assert self.seen[stage] == [seed for batch in rank for seed in batch]
        assert len(self.loaders) == 2
        assert all(loader.stats()["engine"] == "host service" for loader in self.loaders)

    def teardown(self, stage: str) -> None:
        assert all(loader._closed for loader in self.loaders)


def dealt(whole: Batches, rank: int) -> Batches:
    """What a rank yields of an epoch of an odd number of batches."""
    return [*whole, whole[0]][rank::WORLD]


def test_a_sanity_check_and_epochs_that_are_broken_off(store: Store, data: Data) -> None:
    def epochs(loader: Any, count: int) -> list[Batches]:
        with loader:
            found = [
                [batch.n_id[: batch.batch_size].tolist() for batch in loader] for _ in range(count)
            ]
        assert all(len(epoch) == 11 for epoch in found)
        return found

    train = epochs(datamodule(store).train_dataloader(), EPOCHS)
    [val] = epochs(datamodule(store).val_dataloader(), 1)
    model = Sharing(data.x)
    model.expected = {"train": [], "val": []}
    for rank in range(WORLD):
        broken_off = [dealt(epoch, rank)[:STEPS] for epoch in train]
        model.expected["train"].append([batch for epoch in broken_off for batch in epoch])
        model.expected["val"].append(dealt(val, rank)[:CHECKED] + EPOCHS * dealt(val, rank))
    run = trainer(
        devices=WORLD, strategy="ddp_fork", max_epochs=EPOCHS, limit_train_batches=STEPS,
        use_distributed_sampler=False,
    )  # fmt: skip
    assert run.num_sanity_val_steps == CHECKED, "Lightning's default"
    run.fit(model, datamodule(store, ranks=True, host_service=True))

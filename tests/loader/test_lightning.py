"""The datamodules on a store: all stages, memory divided, loaders closed, epochs resumed."""

import pickle
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.lightning import datamodule as pyg
from torch_geometric.transforms import RandomNodeSplit

import gnndrive
from gnndrive import ConfigError, LightningLinkData, LightningNodeData, Store
from gnndrive.loader.store_loader import StoreLoader

NODES, EDGES = 60, 400
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}")
    for words in (
        r"`isinstance\(treespec, LeafSpec\)`",  # Lightning's own call
        "You defined a `validation_step` but have no `val_dataloader`",
        "Be aware that when using `ckpt_path`",
        "'pin_memory' argument is set as true but no accelerator",
        r"state_dict\(\) holds no position, because the data is in memory",
    )
]


@pytest.fixture(scope="module")
def data() -> Data:
    torch.manual_seed(0)
    data = Data(x=torch.randn(NODES, 4), edge_index=torch.randint(NODES, (2, EDGES)))
    for place, name in enumerate(("train", "val", "test")):
        data[f"{name}_mask"] = torch.arange(NODES) % 3 == place
    return data


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("lightning") / "s.gnn")


class Model(pl.LightningModule):
    """Trains one number, and remembers each stage's seeds and its loader's memory."""

    def __init__(self, rows: torch.Tensor, fails: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows, self.fails = rows, fails
        self.seen: dict[str, list[int]] = {"train": [], "val": [], "test": []}
        self.memory: dict[str, Any] = {}
        self.loaders: list[Any] = []

    def _note(self, stage: str, batch: Data, loader: Any) -> None:
        assert torch.equal(batch.x, self.rows[batch.n_id])
        seeds = batch.n_id[: batch.batch_size] if "batch_size" in batch else batch.input_id
        self.seen[stage] += seeds.tolist()
        self.memory[stage] = getattr(loader, "memory", None)
        if loader not in self.loaders:
            self.loaders.append(loader)

    def training_step(self, batch: Data, _: int) -> torch.Tensor:
        self._note("train", batch, self.trainer.train_dataloader)
        if self.fails:
            raise ZeroDivisionError
        return self.weight * batch.x.sum()

    def validation_step(self, batch: Data, _: int) -> None:
        self._note("val", batch, self.trainer.val_dataloaders)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self._note("test", batch, self.trainer.test_dataloaders)

    def predict_step(self, batch: Data, _: int) -> torch.Tensor:
        return batch.input_id

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(**arguments: Any) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    quiet["enable_checkpointing"] = "callbacks" in arguments
    return pl.Trainer(accelerator="cpu", **{"max_epochs": 1, **quiet, **arguments})


def nodes(store: Any, **arguments: Any) -> LightningNodeData:
    return LightningNodeData(store, num_neighbors=[3, 3], batch_size=7, seed=5, **arguments)


def split(place: int) -> list[int]:
    return list(range(place, NODES, 3))


# ---- stages


def test_all_stages_have_their_splits(store, data):
    datamodule, model = nodes(store, eval_loader_kwargs={"batch_size": 9}), Model(data.x)
    run = trainer(max_epochs=2, num_sanity_val_steps=0)
    run.fit(model, datamodule)
    assert [sorted(model.seen["train"][20 * at :][:20]) for at in (0, 1)] == [split(0)] * 2
    assert model.seen["train"][:20] != model.seen["train"][20:]
    assert model.seen["val"] == split(1) * 2
    assert run.global_step == 2 * 3
    run.test(model, datamodule, verbose=False)
    assert model.seen["test"] == split(2)
    predicted: Any = run.predict(model, datamodule)
    assert torch.cat(predicted).tolist() == list(range(NODES))
    assert [len(each) for each in predicted] == [9, 9, 9, 9, 9, 9, 6]
    assert len(model.loaders) == 3
    assert all(loader._closed for loader in [*model.loaders, run.predict_dataloaders])
    model = Model(data.x, fails=True)
    with pytest.raises(ZeroDivisionError):
        trainer().fit(model, nodes(store))
    assert [loader._closed for loader in model.loaders] == [True, True], "after an error too"
    with pickle.loads(pickle.dumps(datamodule)).train_dataloader() as loader:
        assert len(list(loader)) == 3


def test_seeds_and_masks_come_before_splits(store):
    given = nodes(store, input_train_nodes=torch.tensor([1, 2]), input_pred_nodes=[4])
    assert given.input_train_nodes.tolist() == [1, 2]
    (batch,) = given.predict_dataloader()
    assert batch.n_id[0] == 4
    masked = RandomNodeSplit(num_val=5, num_test=6)(store)
    for stage, count in (("train", 49), ("val", 5), ("test", 6)):
        found = getattr(nodes(masked), f"input_{stage}_nodes")
        assert len(found) == count
        assert torch.equal(found, torch.nonzero(masked[f"{stage}_mask"]).view(-1))
    assert nodes(store).input_val_nodes.tolist() == split(1)


def test_without_splits_there_is_no_validation(data, tmp_path):
    store = gnndrive.from_data(data, tmp_path / "s", splits={"valid": [3]})
    assert nodes(store).input_val_nodes.tolist() == [3]
    store = gnndrive.from_data(data, tmp_path / "t", splits={})
    datamodule, model = nodes(store, memory="400MB"), Model(data.x)
    assert datamodule.val_dataloader is datamodule.test_dataloader is None
    trainer().fit(model, datamodule)
    assert sorted(model.seen["train"]) == list(range(NODES))
    assert model.memory == {"train": "400MB"}


def test_splits_of_several_types_need_inputs(tmp_path):
    data = HeteroData()
    for name in ("paper", "author"):
        data[name].x = torch.zeros(30, 2)
        data[name].train_mask = torch.arange(30) < 4
    for relation in ("writes", "reads"):
        data["author", relation, "paper"].edge_index = torch.arange(60).view(2, -1) % 30
    both = gnndrive.from_data(data, tmp_path / "both")
    with pytest.raises(ConfigError, match="paper, author have a split 'train': give input_train"):
        nodes(both)
    links = gnndrive.split_links(both, tmp_path / "links", edge_types=["writes", "reads"])
    with pytest.raises(ConfigError, match=r"have labels: give input_train_edges=\(TYPE, edges\)"):
        LightningLinkData(links, num_neighbors=[2])
    one = gnndrive.split_links(both, tmp_path / "one_link", edge_types="writes")
    batch = next(iter(LightningLinkData(one, num_neighbors=[2]).test_dataloader()))
    assert "edge_label_index" in batch["author", "writes", "paper"]
    del data["author"].train_mask
    (batch,) = nodes(gnndrive.from_data(data, tmp_path / "one")).train_dataloader()
    assert batch["paper"].batch_size == 4


def test_each_stage_has_its_edges_and_its_part_of_split_links(store, data, tmp_path):
    labels = torch.arange(30)
    given = LightningLinkData(
        store, input_train_edges=data.edge_index[:, :30], input_train_labels=labels,
        num_neighbors=[3], batch_size=10, neg_sampling=None,
    )  # fmt: skip
    for batch in given.train_dataloader():
        assert torch.equal(batch.edge_label, labels[batch.input_id])
    parts = gnndrive.split_links(
        store, tmp_path / "p", disjoint_train_ratio=0.5, add_negative_train_samples=False
    )
    datamodule = LightningLinkData(parts, num_neighbors=[3], batch_size=50, memory="400MB")
    model = Model(data.x)
    run = trainer(num_sanity_val_steps=0)
    run.fit(model, datamodule)
    assert model.memory == {"train": 300_000_000, "val": 100_000_000}
    run.test(model, datamodule, verbose=False)
    for name, part in parts._asdict().items():
        assert sorted(model.seen[name]) == list(range(len(part.edge_label)))
    assert [loader.data for loader in model.loaders] == list(parts)
    assert all(loader._closed for loader in model.loaders)
    batch = next(iter(datamodule.val_dataloader()))
    assert torch.equal(batch.edge_label, parts.val.edge_label[batch.input_id])


# ---- memory


@pytest.mark.parametrize(
    ("validation", "given", "expected"),
    [
        ({}, {}, {"train": 300_000_000, "val": 100_000_000}),
        ({"memory": "150MB"}, {}, {"train": 250_000_000, "val": 150_000_000}),
        ({"memory": "150MB"}, {"limit_val_batches": 0}, {"train": "400MB"}),
    ],
)
def test_training_and_validation_share_the_memory(store, data, validation, given, expected):
    datamodule = nodes(store, memory="400MB", eval_loader_kwargs=validation)
    model, run = Model(data.x), trainer(**given)
    run.fit(model, datamodule)
    assert model.memory == expected
    if not validation:  # they are alone
        run.validate(model, datamodule, verbose=False)
        run.test(model, datamodule, verbose=False)
        assert (model.memory["val"], model.memory["test"]) == ("400MB", "400MB")


def test_a_division_that_cannot_work_is_refused(store):
    with pytest.raises(ConfigError, match="give validation less"):
        nodes(store, memory="400MB", eval_loader_kwargs={"memory": "400MB"})
    datamodule = nodes(store, memory="400MB", eval_loader_kwargs={"memory": "1KB"})
    with pytest.raises(ConfigError, match="the val loader has 1 KB of the memory="):
        datamodule.val_dataloader()


# ---- resuming, several processes


@pytest.mark.parametrize(
    ("step", "left"), [(2, 20 - 14 + 20), (3, 20), (4, 20 - 7)], ids=["within", "end", "second"]
)
def test_a_checkpoint_is_resumed(store, data, tmp_path, step, left):
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole, rest = Model(data.x), Model(data.x)
    trainer(max_epochs=2, callbacks=[save]).fit(whole, nodes(store))
    run = trainer(max_epochs=2)
    # Lightning's own states of 2.6 hold more than tensors.
    run.fit(rest, nodes(store), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=False)
    assert run.global_step == 6
    assert rest.seen["train"] == whole.seen["train"][-left:]


@pytest.mark.parametrize("kind", ["any order", "a loader alone", "in memory"])
def test_checkpoints_without_a_datamodules_count(store, data, tmp_path, kind):
    each: Any = {
        "any order": lambda: nodes(store, in_order=False),
        "a loader alone": lambda: nodes(store).train_dataloader(),
        "in memory": lambda: gnndrive.NeighborLoader(data, [3], batch_size=30),
    }[kind]()
    save = ModelCheckpoint(tmp_path, filename="c")
    trainer(callbacks=[save]).fit(Model(data.x), each)
    resumed = trainer(max_epochs=2)
    resumed.fit(Model(data.x), each, ckpt_path=tmp_path / "c.ckpt", weights_only=False)


class Shared(Model):
    """Checks the seeds of two ranks, each of which Lightning gives a part, or `dealt` those of its
    batches."""

    dealt: list[list[int]] | None = None

    def on_train_end(self) -> None:
        loader: Any = self.trainer.train_dataloader
        both: list[Any] = [[], []]
        torch.distributed.all_gather_object(both, self.seen["train"])
        if self.dealt is not None:
            assert both == self.dealt
            assert len(loader) == 2
        else:
            assert isinstance(loader.sampler, torch.utils.data.DistributedSampler)
            assert sorted(both[0] + both[1]) == split(0)
            assert len(both[0]) == 10

    def teardown(self, stage: str) -> None:
        assert all(loader._closed for loader in self.loaders)


@pytest.mark.parametrize("ranks", [False, True])
def test_two_processes_share_the_seeds_or_are_dealt_the_batches_of_one(store, data, ranks):
    model, given, dealt = Shared(data.x), {}, {"ranks": True} if ranks else {}
    if ranks:
        with nodes(store).train_dataloader() as loader:
            batches = [[split(0)[at] for at in batch.input_id.tolist()] for batch in loader]
        first, second, third = batches
        model.dealt, given = [first + third, second + first], {"use_distributed_sampler": False}
    run = trainer(devices=2, strategy="ddp_fork", num_sanity_val_steps=0, **given)
    run.fit(model, nodes(store, **dealt))


# ---- arguments


def test_what_needs_the_graph_in_memory_is_refused(store, data, monkeypatch):
    with pytest.raises(ConfigError, match='give loader="neighbor"'):
        nodes(store, loader="full")
    with pytest.raises(ConfigError, match="num_neighbors= is not given"):
        LightningNodeData(store)
    with pytest.warns(UserWarning, match="'shuffle=True' option is ignored"):
        nodes(store, shuffle=True)
    own = LightningNodeData(store, node_sampler=gnndrive.NeighborSampler(store, [2]), batch_size=9)
    assert own.loader == "custom"
    assert len(list(own.train_dataloader())) == 3
    with pytest.raises(ConfigError, match=r"memory='1GB' is for a store"):
        LightningNodeData(data, num_neighbors=[3], memory="1GB")
    with pytest.raises(ConfigError, match=r"exclude_seed_edges= .* needs a store"):
        LightningLinkData(data, num_neighbors=[3], exclude_seed_edges=True)
    monkeypatch.setattr(pyg, "_pl_is_available", False)
    with pytest.raises(ModuleNotFoundError, match="pip install pytorch_lightning"):
        LightningNodeData(store, num_neighbors=[3])


def test_data_in_memory_is_pygs(data, store):
    datamodule = LightningNodeData(data, num_neighbors=[3], batch_size=7)
    assert isinstance(datamodule, pyg.LightningNodeData)
    assert isinstance(datamodule.graph_sampler, gnndrive.NeighborSampler)
    assert not isinstance(datamodule.train_dataloader(), StoreLoader)
    trainer(num_sanity_val_steps=0).fit(model := Model(data.x), datamodule)
    assert sorted(model.seen["train"]) == split(0)
    links = LightningLinkData(data, data.edge_index, num_neighbors=[3], batch_size=100)
    assert len(list(links.train_dataloader())) == 4
    sampler = gnndrive.NeighborSampler(store, [2])
    assert LightningNodeData(data, node_sampler=sampler).graph_sampler is sampler
    assert LightningNodeData(data, loader="full").loader == "full"

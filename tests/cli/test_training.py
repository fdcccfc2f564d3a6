"""Training on batches from memory: missing labels, equal bits in equal runs, checkpoints."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ConfigError
from gnndrive.cli.training import MODELS, Batches, ModelSettings, TrainSettings, evaluate, train

MODEL = ModelSettings(in_features=4, classes=3, hidden=8)
SETTINGS = TrainSettings(epochs=2, evaluate=("test",))


def star(y: torch.Tensor, seed: int = 0, dtype: torch.dtype = torch.float32) -> Data:
    """A batch of six seeds with two neighbours each, which have two neighbours each."""
    random = torch.Generator().manual_seed(seed)
    nodes = 6 + 12 + 24
    source = torch.arange(6, nodes)
    return Data(
        x=torch.randint(0, 9, (nodes, 4), generator=random).to(dtype),
        edge_index=torch.stack([source, torch.arange(18).repeat_interleave(2)]),
        y=torch.cat([y, torch.full((nodes - 6, *y.shape[1:]), 2, dtype=y.dtype)]),
        batch_size=6,
        num_sampled_nodes=[6, 12, 24],
        num_sampled_edges=[12, 24],
    )


LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def batches(y: torch.Tensor = LABELS, dtype: torch.dtype = torch.float32) -> Batches:
    def give(split: str, epoch: int) -> Iterator[Data]:
        return (star(y, 100 * epoch + number, dtype) for number in range(3))

    return give


def losses(give: Batches, model: ModelSettings = MODEL, **settings: Any) -> list[float]:
    history = train(give, model, replace(SETTINGS, **settings))
    return [loss for epoch in history.epochs for loss in epoch.losses]


@pytest.mark.parametrize("name", MODELS)
def test_the_same_batches_train_to_the_same_bits(name):
    model = replace(MODEL, name=name)
    assert losses(batches(), model) == losses(batches(), model)
    assert losses(batches(), model) != losses(batches(), model, seed=1)


def test_trimming_changes_no_loss():
    assert losses(batches(), trim=True) == pytest.approx(losses(batches(), trim=False), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_any_dtype_train(dtype):
    assert losses(batches(dtype=dtype)) == losses(batches())


def test_seeds_without_a_label_are_ignored():
    unknown = torch.tensor([0, -1, 2, -1, 1, -5])
    floats = torch.tensor([0, float("nan"), 2, float("nan"), 1, float("nan")])
    assert losses(batches(unknown)) == losses(batches(floats)) == losses(batches(floats[:, None]))
    assert losses(batches(unknown)) != losses(batches())


def test_a_split_without_a_label_has_no_accuracy():
    nothing = torch.full((6,), -1)
    model = MODEL.build()
    assert evaluate([star(nothing)], model) is None
    assert evaluate([], model) is None
    assert 0 <= (evaluate([star(LABELS), star(nothing)], model) or 0.0) <= 1
    with pytest.raises(ConfigError, match="no seed of the train split"):
        train(batches(nothing), MODEL)


def test_labels_that_are_no_classes_are_refused():
    with pytest.raises(ConfigError, match="3 columns"):
        losses(batches(torch.zeros(6, 3)))
    bare = star(LABELS)
    del bare.y
    with pytest.raises(ConfigError, match="no labels"):
        train(lambda split, epoch: [bare], MODEL)


@pytest.mark.parametrize(
    "given", [{"name": "mlp"}, {"in_features": 0}, {"classes": 1}, {"layers": 0}, {"dropout": 1},
              {"epochs": 0}, {"lr": float("nan")}, {"weight_decay": -1}, {"seed": 2**64}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(given):
    of_training = given.keys() & {"epochs", "lr", "weight_decay", "seed"}
    with pytest.raises(ConfigError):
        replace(SETTINGS, **given) if of_training else replace(MODEL, **given).build()


# ---- checkpoints


def test_a_resumed_training_has_the_same_bits(tmp_path):
    whole = losses(batches(), epochs=4)
    train(batches(), MODEL, replace(SETTINGS, epochs=2), checkpoint=tmp_path / "a.pt")
    torch.rand(3)  # as other code may draw from torch's random numbers
    rest = train(batches(), MODEL, replace(SETTINGS, epochs=4), resume=tmp_path / "a.pt")
    assert [loss for epoch in rest.epochs for loss in epoch.losses] == whole
    assert [epoch.epoch for epoch in rest.epochs] == [1, 2, 3, 4]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, step):
    file = tmp_path / "a.pt"
    train(batches(), MODEL, replace(SETTINGS, epochs=1), checkpoint=file)
    before = file.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(ConfigError, match="No space left"):
        train(batches(), MODEL, SETTINGS, checkpoint=file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_checkpoint_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    def refuse_epoch(split, epoch):
        raise AssertionError("training began")

    missing, pipe = tmp_path / "no" / "such" / "a.pt", tmp_path / "pipe"
    os.mkfifo(pipe)  # as a device would be, it is not replaced
    refused = ((missing, r"mkdir -p .*no/such"), (tmp_path, "no plain"), (pipe, "no plain"))
    for file, complaint in refused:
        with pytest.raises(ConfigError, match=complaint):
            train(refuse_epoch, MODEL, SETTINGS, checkpoint=file)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="is not writable"):
        train(refuse_epoch, MODEL, SETTINGS, checkpoint=tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    file = tmp_path / "a.pt"
    for content in (b"", b"no zip", b"PK\x03\x04"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="no checkpoint"):
            train(batches(), MODEL, SETTINGS, resume=file)
    for other in ([1, 2], {"version": 1}, {"version": 99}):
        torch.save(other, file)
        with pytest.raises(ConfigError, match="no checkpoint"):
            train(batches(), MODEL, SETTINGS, resume=file)


# ---- devices


def test_the_model_is_on_the_device_before_its_optimizer_is_made(monkeypatch):
    moved: list[torch.device] = []
    made = torch.optim.Adam

    def move(module, where):
        moved.append(where)
        return module

    def make(*given, **named):
        assert moved
        return made(*given, **named)

    monkeypatch.setattr(torch.nn.Module, "to", move)
    monkeypatch.setattr(torch.optim, "Adam", make)
    train(batches(), MODEL, SETTINGS, device=torch.device("cuda", 1))
    train(batches(), MODEL, SETTINGS)
    assert moved == [torch.device("cuda", 1), torch.device("cpu")]


def test_a_checkpoint_of_a_gpu_is_resumed_without_one(tmp_path, monkeypatch):
    """Its tensors say in the file that they were on a GPU."""
    whole = losses(batches(), epochs=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with monkeypatch.context() as of_gpu:
        of_gpu.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        train(batches(), MODEL, replace(SETTINGS, epochs=2), checkpoint=tmp_path / "a.pt")
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "a.pt")
    rest = train(batches(), MODEL, replace(SETTINGS, epochs=4), resume=tmp_path / "a.pt")
    assert [loss for epoch in rest.epochs for loss in epoch.losses] == whole


def test_the_random_numbers_of_a_gpu_are_resumed(tmp_path, monkeypatch):
    gpu, drawn = torch.device("cuda", 1), torch.Generator().manual_seed(9).get_state()
    states: list[tuple[torch.Tensor, torch.device]] = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, where: module)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda where: {gpu: drawn}[where])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, where: states.append((state, where))
    )
    one, three = replace(SETTINGS, epochs=1), replace(SETTINGS, epochs=3)
    train(batches(), MODEL, one, checkpoint=tmp_path / "gpu.pt", device=gpu)
    train(batches(), MODEL, one, checkpoint=tmp_path / "cpu.pt")
    train(batches(), MODEL, three, resume=tmp_path / "gpu.pt")
    train(batches(), MODEL, three, resume=tmp_path / "cpu.pt", device=gpu)
    assert not states
    train(batches(), MODEL, three, resume=tmp_path / "gpu.pt", device=gpu)
    ((state, where),) = states
    assert torch.equal(state, drawn)
    assert where == gpu

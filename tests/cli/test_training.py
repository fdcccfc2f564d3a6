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
    assert losses(batches(), model) == losses(batches(), model) != losses(batches(), model, seed=1)


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


def test_labels_that_are_missing_or_no_classes():
    nothing, model = torch.full((6,), -1), MODEL.build()
    assert evaluate([star(nothing)], model) is evaluate([], model) is None
    assert 0 <= (evaluate([star(LABELS), star(nothing)], model) or 0.0) <= 1
    bare = star(LABELS)
    del bare.y
    for give, said in (
        (batches(nothing), "no seed of the train split"),
        (batches(torch.zeros(6, 3)), "3 columns"),
        (lambda split, epoch: [bare], "no labels"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(give, MODEL)


@pytest.mark.parametrize(
    "given", [{"name": "mlp"}, {"in_features": 0}, {"classes": 1}, {"layers": 0}, {"dropout": 1},
              {"epochs": 0}, {"lr": float("nan")}, {"weight_decay": -1}, {"seed": 2**64}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(given):
    of_training = given.keys() & {"epochs", "lr", "weight_decay", "seed"}
    with pytest.raises(ConfigError):
        replace(SETTINGS, **given) if of_training else replace(MODEL, **given).build()


# ---- checkpoints


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


def test_files_that_are_no_checkpoint_and_places_where_none_can_be_written(tmp_path, monkeypatch):
    def refuse_epoch(split, epoch):
        raise AssertionError("training began")

    file, pipe = tmp_path / "a.pt", tmp_path / "pipe"
    os.mkfifo(pipe)  # as a device would be, it is not replaced
    for place, said in ((tmp_path / "no" / "a.pt", "mkdir -p .*no"), (pipe, "no plain")):
        with pytest.raises(ConfigError, match=said):
            train(refuse_epoch, MODEL, SETTINGS, checkpoint=place)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="is not writable"):
        train(refuse_epoch, MODEL, SETTINGS, checkpoint=file)
    assert list(tmp_path.iterdir()) == [pipe]
    for content in (b"", b"PK\x03\x04", [1, 2], {"version": 1}, {"version": 99}):
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(ConfigError, match="no checkpoint"):
            train(refuse_epoch, MODEL, SETTINGS, resume=file)


# ---- devices


def test_a_resumed_training_has_the_same_bits(tmp_path, monkeypatch):
    """Also of a GPU, where there is none: its tensors say in the file that they were on one."""
    whole = losses(batches(), epochs=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for tag in ("cpu", "cuda:1"):
        with monkeypatch.context() as patch:
            patch.setattr(torch.serialization, "location_tag", lambda storage, tag=tag: tag)
            train(batches(), MODEL, replace(SETTINGS, epochs=2), checkpoint=tmp_path / "a.pt")
        torch.rand(3)  # as other code may draw from torch's random numbers
        rest = train(batches(), MODEL, replace(SETTINGS, epochs=4), resume=tmp_path / "a.pt")
        assert [loss for epoch in rest.epochs for loss in epoch.losses] == whole
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "a.pt")


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


def test_the_model_is_on_the_device_before_its_optimizer_is_made(monkeypatch):
    moved, made = [], torch.optim.Adam
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, to: moved.append(to) or module)
    monkeypatch.setattr(torch.optim, "Adam", lambda *args, **all: moved and made(*args, **all))
    train(batches(), MODEL, SETTINGS, device=torch.device("cuda", 1))
    assert moved == [torch.device("cuda", 1)]

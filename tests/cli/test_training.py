"""`gnndrive train`: losses to the bit, checkpoints, devices, timelines, windows of partitions."""

import errno
import io
import math
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data

import gnndrive as gd
from gnndrive import ConfigError
from gnndrive.cli.commands import loader_options
from gnndrive.cli.commands import train as train_command
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.commands.split_batches import RunRecord, SplitBatches
from gnndrive.cli.training import (
    MODELS,
    Batches,
    EpochResult,
    ModelSettings,
    TrainSettings,
    check_loss,
    evaluate,
    train,
)
from gnndrive.store.generate import planted_communities
from tests.cli.conftest import NODES, QUICK, RANDOM, SMALL
from tests.pipeline.traces import check_batches, read

# ---- on batches from memory


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


def test_a_loss_that_is_not_finite_ends_the_training_with_its_batch():
    def damaged(split: str, epoch: int) -> Iterator[Data]:
        for number, batch in enumerate(batches()(split, epoch)):
            batch.n_id = torch.arange(100, 100 + len(batch.x))
            if number == 1:
                batch.x[[7, 20]] = torch.tensor([0, float("nan"), float("inf"), 0])
            yield batch

    seen: list[float] = []
    message = (
        r"loss of batch 2 of epoch 1 is nan: 2 of its 42 rows .* node 107 in column 1; replace"
    )
    with pytest.raises(ConfigError, match=message):
        train(damaged, MODEL, SETTINGS, on_loss=seen.append)
    assert len(seen) == 1
    with pytest.raises(ConfigError, match=r"its x is finite, .* diverged: .*--lr"):
        losses(batches(), lr=1e30)
    huge = Data(x=torch.full((2, 3), 1e300, dtype=torch.float64))
    with pytest.raises(ConfigError, match=r"2 of its 2 rows .* node a0 in column 0"):
        check_loss(math.inf, huge, "a step", node_text=lambda node: f"a{node}")


def test_the_best_validation_is_named_where_it_is_not_the_last_one():
    shares = ({"val": 0.5}, {"val": 0.75}, {}, {"val": 0.25, "test": 0.5})
    epochs = [EpochResult(number, (1.0,), each, 1.0) for number, each in enumerate(shares, 1)]
    assert train_command._results(epochs) == {
        "val accuracy": "0.2500; the best, 0.7500, was after epoch 2",
        "test accuracy": "0.5000, with the parameters of the last epoch",
    }
    assert train_command._results(epochs[:2]) == {"val accuracy": "0.7500"}


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
              {"epochs": 0}, {"lr": float("nan")}, {"weight_decay": -1}, {"seed": 2**64},
              {"eval_every": -1}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(given):
    of_training = given.keys() & {"epochs", "lr", "weight_decay", "seed", "eval_every"}
    with pytest.raises(ConfigError):
        replace(SETTINGS, **given) if of_training else replace(MODEL, **given).build()


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


def test_ctrl_c_waits_until_a_checkpoint_is_written(tmp_path, monkeypatch):
    file, write = tmp_path / "a.pt", torch.save

    def interrupted(*content):
        signal.raise_signal(signal.SIGINT)
        write(*content)

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(batches(), MODEL, SETTINGS, checkpoint=file)
    assert len(torch.load(file)["epochs"]) == 1
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


@pytest.mark.parametrize("at", [2, 4])
def test_an_interrupted_evaluation_loses_no_epoch(tmp_path, at):
    """Resumed, the evaluation of that epoch comes first; also of the last one."""
    given, file = replace(SETTINGS, epochs=4, evaluate=("val",)), tmp_path / "a.pt"
    whole = train(batches(), MODEL, given)

    def interrupted(split: str, epoch: int) -> Iterator[Data]:
        if (split, epoch) == ("val", at - 1):
            raise KeyboardInterrupt
        return batches()(split, epoch)

    with pytest.raises(KeyboardInterrupt):
        train(interrupted, MODEL, given, checkpoint=file)
    told: list[EpochResult] = []
    rest = train(batches(), MODEL, given, resume=file, checkpoint=file, on_epoch=told.append)
    assert [each.epoch for each in told] == list(range(at, 5))
    for one, other in zip(rest.epochs, whole.epochs, strict=True):
        assert (one.losses, one.accuracy) == (other.losses, other.accuracy)
    unlabelled = replace(given, epochs=5)  # an evaluation that finds no label has ended, too
    nothing = torch.full((6,), -1)
    train(lambda split, epoch: batches(nothing if split == "val" else LABELS)(split, epoch), MODEL,
          unlabelled, resume=file, checkpoint=file)  # fmt: skip
    with pytest.raises(ConfigError, match="trained for 5 epochs already"):
        train(batches(), MODEL, unlabelled, resume=file)


def test_the_random_numbers_of_a_gpu_are_resumed(tmp_path, monkeypatch):
    gpu, drawn = torch.device("cuda", 1), torch.Generator().manual_seed(9).get_state()
    states: list[tuple[torch.Tensor, torch.device]] = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, where: module)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda where: {gpu: drawn}[where])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, where: states.append((state, where))
    )
    one, three = replace(SETTINGS, epochs=1), replace(SETTINGS, epochs=3)
    cpu = torch.device("cpu")
    for before, after, count in ((gpu, cpu, 0), (cpu, gpu, 0), (gpu, gpu, 1)):
        train(batches(), MODEL, one, checkpoint=tmp_path / "a.pt", device=before)
        train(batches(), MODEL, three, resume=tmp_path / "a.pt", device=after)
        assert len(states) == count
    assert torch.equal(states[0][0], drawn)
    assert states[0][1] == gpu


def test_the_model_is_on_the_device_before_its_optimizer_is_made(monkeypatch):
    moved, made = [], torch.optim.Adam
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, to: moved.append(to) or module)
    monkeypatch.setattr(torch.optim, "Adam", lambda *args, **all: moved and made(*args, **all))
    train(batches(), MODEL, SETTINGS, device=torch.device("cuda", 1))
    assert moved == [torch.device("cuda", 1)]


WORDS = (*SMALL, *QUICK, "--buffer", "64KB", "--tuning", "extractors=1,samplers=1")
DEVICE = ("--device", "simulated-cuda")


def test_a_device_trains_to_the_same_bits_as_the_host(gnndrive, planted):
    """The simulated device's batches are in host memory, so the model is on the CPU."""

    def results(*more):
        report = gnndrive("train", planted, *WORDS, *more).json
        return [(epoch["loss"], epoch["accuracy"]) for epoch in report["epochs"]]

    assert results(*DEVICE, "--device-memory", "5MB") == results()


@pytest.fixture
def gpu(monkeypatch):
    """Have two GPUs whose batches and models stay on the CPU; lists the current GPUs."""
    current: list[torch.device] = []

    def loader(options, store, *given, **more):
        assert options.device == "cuda:1"
        return make(replace(options, device="cpu"), store, *given, **more)

    make = LoaderOptions.loader
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 2,
        "device": lambda where: current.append(where) or nullcontext(),
        "is_current_stream_capturing": lambda: False,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, where: module)
    monkeypatch.setattr(LoaderOptions, "loader", loader)
    return current


def test_the_second_gpu_is_the_current_one_while_it_trains(gnndrive, planted, gpu, monkeypatch):
    def fail(*all, device, **named):
        train(*all, **named)
        assert gpu == [device] == [torch.device("cuda", 1)]
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(train_command, "train", fail)
    error = gnndrive("train", planted, *WORDS, "--device", "cuda:1").refusal.splitlines()[-1]
    assert "cuda:1 has too little memory (CUDA out of memory. Tried to allocate 2 GiB.)" in error
    assert "--device-memory" in error
    said = gnndrive("train", planted, "--device", "cuda:2").refusal
    assert "there are 2 GPUs; use 'cuda:0' to 'cuda:1'" in said


def test_ctrl_c_before_an_epoch_has_ended(gnndrive, planted, tmp_path, monkeypatch):
    def interrupted(*_, **given):
        raise KeyboardInterrupt

    file = tmp_path / "a.pt"
    monkeypatch.setattr(train_command, "train", interrupted)
    for option, kept in (("--checkpoint", "was not written"), ("--resume", "is as it was before")):
        ended = gnndrive("train", planted, *WORDS, option, file)
        assert (ended.code, f"{file} {kept}, because no epoch" in ended.err) == (130, True)
        file.touch()
    assert "no split val" not in ended.err


def test_a_store_without_a_val_split_is_not_validated(gnndrive, tmp_path):
    planted_communities(tmp_path / "a.gnn", 200, 4, 2, degree=3, fractions={"train": 0.5})
    words = ("train", tmp_path / "a.gnn", *WORDS)
    assert "a.gnn has no split val: training is not validated" in gnndrive(*words).err
    assert "no split val" not in gnndrive(*words, "--eval-every", "0").err


def test_the_time_left_counts_evaluations_as_they_took_so_far(planted):
    given = SplitBatches(gd.open(planted), LoaderOptions(), epochs=4)
    assert given._after_s(3, True, {}) is None
    assert given._after_s(3, False, {"elapsed_s": 6.0}) == 18
    given.seconds += [12, 8]
    trained = {"elapsed_s": 16.0}  # so an evaluation took 2 s
    assert (given._after_s(1, True, trained), given._after_s(1, False, trained)) == (12, 10)


def test_a_terminal_shows_what_is_done_before_the_first_batch(store, monkeypatch):
    for kept in ("loader.drawing.load_entry", "store.row_classes.kept_classes"):
        monkeypatch.setattr(f"gnndrive.{kept}", lambda *_: None)
    options = LoaderOptions(fanout="4,3", batch_size=13, memory="34MB")
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100)
        given = {"epochs": 1, "console": console, "record": RunRecord(compares=True)}
        with SplitBatches(gd.open(store), options, **given) as batches:
            next(iter(batches("train", 0)))
        for said in (
            "drawing batches", "comparing strategies", "ranking rows", "reading neighbours",
            "batch 0/62  waiting",
        ):  # fmt: skip
            assert (said in out.getvalue()) is terminal


def test_all_epochs_are_in_one_timeline(gnndrive, planted, tmp_path):
    path = tmp_path / "run.json.gz"
    words = (*SMALL, *QUICK, "--epochs", "2", "--buffer", "1MB")
    ended = gnndrive("train", planted, *words, "--trace", path)
    found = check_batches(read(path))
    assert (ended.code, len(found)) == (0, 16)
    spans = sorted((spans[0][1], epoch) for (epoch, _, _), spans in found.items())
    assert [epoch for _, epoch in spans] == [0] * 8 + [1] * 8, "epochs follow each other"


def test_training_samples_inside_windows_and_evaluation_does_not(gnndrive, store, monkeypatch):
    made, make = [], loader_options.NeighborLoader

    def noted(*args, **given):
        made.append(given)
        return make(*args, **given)

    monkeypatch.setattr(loader_options, "NeighborLoader", noted)
    for strategy, name in {"hierbatching": "default", "marius": "other"}.items():
        gnndrive("partition", store, *RANDOM, "--name", name)
        made.clear()
        words = ("--strategy", f"{strategy}:partitioned={name}")
        report = gnndrive("train", store, *SMALL, *words, *QUICK).json
        assert report["batches"] == 0.4 * NODES // 100  # all partitions fit into one window
        used = [(each["strategy"], each["tuning"].samplers) for each in made]
        assert used.count((words[1], "auto")) == 1
        assert used.count(("gnndrive", loader_options.SAMPLERS)) == len(used) - 1 >= 1

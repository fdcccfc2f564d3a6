"""`gnndrive train` on devices, with timelines, and with windows of partitions."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gnndrive.cli.commands import loader_options
from gnndrive.cli.commands import train as train_command
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.training import train
from tests.cli.conftest import NODES, QUICK, RANDOM, SMALL
from tests.pipeline.traces import check_batches, read

PARTS = {"hierbatching": "default", "marius": "other"}
WORDS = (*SMALL, *QUICK, "--buffer", "64KB", "--extractors", "1", "--samplers", "1")
DEVICE = ("--device", "simulated-cuda")


def test_a_device_trains_to_the_same_bits_as_the_host(gnndrive, planted, tmp_path):
    """The simulated device's batches are in host memory, so the model is on the CPU."""

    def results(*more):
        report = gnndrive("train", planted, *WORDS, *more).json
        return [(epoch["loss"], epoch["accuracy"]) for epoch in report["epochs"]]

    host = results("--checkpoint", tmp_path / "host.pt")
    assert results(*DEVICE, "--device-memory", "5MB") == host
    more = ("--epochs", "2", "--resume", tmp_path / "host.pt")
    assert results(*more, *DEVICE) == results(*more)


def test_a_devices_plan_lists_its_memory(gnndrive, planted):
    out = gnndrive("plan", planted, *DEVICE, "--device-memory", "900MB").out
    assert ("on the device" in out, "of device_memory=900 MB" in out) == (True, True)


# ---- a GPU that is not there


@pytest.fixture
def gpu(monkeypatch):
    """Have two GPUs whose batches and models stay on the CPU; lists the current GPUs."""
    current: list[torch.device] = []

    def use(where):
        current.append(where)
        return nullcontext()

    def loader(options, store, *given, **more):
        assert options.device == "cuda:1"
        return make(replace(options, device="cpu"), store, *given, **more)

    make = LoaderOptions.loader
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, where: module)
    monkeypatch.setattr(LoaderOptions, "loader", loader)
    return current


def test_the_second_gpu_is_the_current_one_while_it_trains(gnndrive, planted, gpu, monkeypatch):
    given = []

    def noted(*all, device, **named):
        given.append(device)
        return train(*all, **named)

    monkeypatch.setattr(train_command, "train", noted)
    ended = gnndrive("train", planted, *WORDS, "--device", "cuda:1")
    assert ended.code == 0, ended.err
    assert gpu == given == [torch.device("cuda", 1)]
    said = gnndrive("train", planted, "--device", "cuda:2").refusal
    assert "there are 2 GPUs; use 'cuda:0' to 'cuda:1'" in said


def test_too_little_memory_of_the_gpu_names_the_remedy(gnndrive, planted, gpu, monkeypatch):
    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(train_command, "train", fail)
    error = gnndrive("train", planted, *WORDS, "--device", "cuda:1").refusal
    assert "cuda:1 has too little memory (CUDA out of memory. Tried to allocate 2 GiB.)" in error
    assert ("--device-memory" in error, error.count("\n")) == (True, 1)


def test_all_epochs_are_in_one_timeline(gnndrive, planted, tmp_path):
    path = tmp_path / "run.json.gz"
    words = (*SMALL, *QUICK, "--epochs", "2", "--buffer", "1MB")
    ended = gnndrive("train", planted, *words, "--trace", path)
    found = check_batches(read(path))
    assert (ended.code, len(found)) == (0, 16)
    spans = sorted((spans[0][1], epoch) for (epoch, _, _), spans in found.items())
    assert [epoch for _, epoch in spans] == [0] * 8 + [1] * 8, "epochs follow each other"


@pytest.fixture
def partitioned(gnndrive, store):
    for name in PARTS.values():
        gnndrive("partition", store, *RANDOM, "--name", name)
    return store


def test_training_samples_inside_windows_and_evaluation_does_not(
    gnndrive, partitioned, monkeypatch
):
    made, make = [], loader_options.NeighborLoader

    def noted(*args, **given):
        made.append(given)
        return make(*args, **given)

    monkeypatch.setattr(loader_options, "NeighborLoader", noted)
    for strategy, name in PARTS.items():
        made.clear()
        words = ("--strategy", strategy, "--partitioned", name)
        report = gnndrive("train", partitioned, *SMALL, *words, *QUICK).json
        assert report["batches"] == 0.4 * NODES // 100  # all partitions fit into one window
        used = [(each["strategy"], each["partitioned"], each["samplers"]) for each in made]
        assert used.count((strategy, name, "auto")) == 1
        assert used.count(("gnndrive", None, loader_options.SAMPLERS)) == len(used) - 1 >= 1


def test_training_in_several_windows(gnndrive, partitioned):
    words = ("--strategy", "hierbatching", "--partitioned", "default", "--megabatch", "2")
    words = ("train", partitioned, *SMALL, *QUICK, *words)
    once, twice = gnndrive(*words).json, gnndrive(*words, "--passes", "2").json
    assert (once["batches"], once["windows"]) == (8 + 4 - 1, 4)
    assert (twice["batches"], twice["windows"]) == (2 * once["batches"], once["windows"])


def test_a_plan_lists_the_windows(gnndrive, partitioned):
    words = ("plan", partitioned, *SMALL, "--strategy", "hierbatching")
    said = gnndrive(*words).refusal
    assert "give partitioned='default', partitioned='other'" in said
    words = (*words, "--partitioned", "other", "--megabatch", "2")
    out = gnndrive(*words, "--static", "0.03").out
    assert "60 static ones and two of 4 windows, each of 2 of 8 partitions" in out
    assert "window graphs" in out
    assert "a window keeps " in gnndrive(*words, "--memory", "100MB").out
    said = gnndrive(*words, "--compute-s", "1").refusal
    assert "of strategy hierbatching are not: leave them out" in said

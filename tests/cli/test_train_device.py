"""`gnndrive train --device`: on the simulated device, and what is said where there is no GPU."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gnndrive.cli.commands import train as train_command
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.training import train
from tests.cli.conftest import QUICK, SMALL

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
    ended = gnndrive("plan", planted, *DEVICE, "--device-memory", "900MB")
    assert (ended.code, "on the device" in ended.out) == (0, True)
    assert "of device_memory=900 MB" in ended.out
    assert LoaderOptions().where() == torch.device("cpu")
    assert LoaderOptions().device_bytes() is None
    assert LoaderOptions(device="simulated-cuda").device_bytes() == 1 << 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cuda:1"), "device='cuda:1': this torch"),
        (("--device", "mps"), "device='mps' is not supported"),
        (("--device", "gpu"), "device='gpu' is not a torch device"),
        (("--device-memory", "1GB"), "device_memory= is for a GPU"),
        ((*DEVICE, "--device-memory", "lots"), "device_memory='lots'"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(gnndrive, planted, monkeypatch, words, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in ("train", "plan"):
        error = gnndrive(command, planted, *words).refusal
        assert said in error
        assert error.count("\n") == 1


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
    assert error.count("\n") == 1
    assert "cuda:1 has too little memory (CUDA out of memory. Tried to allocate 2 GiB.)" in error
    assert "--device-memory" in error
    assert gpu

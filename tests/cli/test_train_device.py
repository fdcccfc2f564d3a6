"""`gnndrive train --device`: on the simulated device, and what is said where there is no GPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnndrive.cli.commands import train as train_command
from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.training import train
from gnndrive.common.errors import ConfigError
from tests.cli.conftest import Command

QUICK = (
    "--fanout", "5,5", "--batch-size", "100", "--hidden", "16", "--epochs", "2", "--json",
    "--buffer", "64KB", "--extractors", "1", "--samplers", "1",
)  # fmt: skip


def results(report: dict[str, Any]) -> list[Any]:
    return [(epoch["loss"], epoch["accuracy"]) for epoch in report["epochs"]]


def test_a_device_trains_to_the_same_bits_as_the_host(
    gnndrive: Command, planted: Path, tmp_path: Path
):
    """The simulated device's batches are in host memory, so the model is on the CPU."""
    words = ("train", planted, *QUICK)
    host = gnndrive(*words, "--checkpoint", tmp_path / "host.pt").json
    device = gnndrive(*words, "--device", "simulated-cuda", "--device-memory", "5MB").json
    assert results(device) == results(host)
    more = (*words, "--epochs", "3", "--resume", tmp_path / "host.pt")
    resumed = gnndrive(*more, "--device", "simulated-cuda").json
    assert results(resumed) == results(gnndrive(*more).json)


def test_a_devices_plan_lists_its_memory(gnndrive: Command, planted: Path):
    ended = gnndrive("plan", planted, "--device", "simulated-cuda", "--device-memory", "900MB")
    assert (ended.code, "on the device" in ended.out) == (0, True)
    assert "of device_memory=900 MB" in ended.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cuda"), "sees no GPU; use 'cpu'"),
        (("--device", "cuda:1"), "device='cuda:1': this torch"),
        (("--device", "mps"), "device='mps' is not supported"),
        (("--device", "gpu"), "device='gpu' is not a torch device"),
        (("--device-memory", "1GB"), "device_memory= is for a GPU"),
        (("--device", "simulated-cuda", "--device-memory", "lots"), "device_memory='lots'"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_device_that_is_not_there_is_one_line(
    gnndrive: Command, planted: Path, monkeypatch: pytest.MonkeyPatch, command: str,
    words: tuple[str, ...], said: str,
):  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = gnndrive(command, planted, *words)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_the_number_of_gpus_is_named(
    gnndrive: Command, planted: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ended = gnndrive("train", planted, "--device", "cuda:2")
    assert (ended.code, "there are 2 GPUs; use 'cuda:0' to 'cuda:1'" in ended.err) == (2, True)


# ---- a GPU that is not there


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Have two GPUs whose batches and models stay on the CPU; lists the current GPUs."""
    current: list[torch.device] = []

    def use(where: torch.device) -> Any:
        current.append(where)
        return nullcontext()

    def loader(options: LoaderOptions, store: Any, *given: Any, **more: Any) -> Any:
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


def test_the_second_gpu_is_the_current_one_while_it_trains(
    gnndrive: Command, planted: Path, gpu: list[torch.device], monkeypatch: pytest.MonkeyPatch
):
    given: list[torch.device | None] = []

    def noted(*all: Any, device: torch.device, **named: Any) -> Any:
        given.append(device)
        return train(*all, **named)

    monkeypatch.setattr(train_command, "train", noted)
    ended = gnndrive("train", planted, *QUICK, "--device", "cuda:1")
    assert ended.code == 0, ended.err
    assert gpu == given == [torch.device("cuda", 1)]


def test_too_little_memory_of_the_gpu_names_the_remedy(
    gnndrive: Command, planted: Path, gpu: list[torch.device], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(train_command, "train", fail)
    ended = gnndrive("train", planted, *QUICK, "--device", "cuda:1")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert (
        "cuda:1 has too little memory (CUDA out of memory. Tried to allocate 2 GiB.)" in ended.err
    )
    assert "--device-memory" in ended.err
    assert gpu


def test_the_device_of_options_is_checked_where_it_is_used():
    assert LoaderOptions().where() == torch.device("cpu")
    assert LoaderOptions().device_bytes() is None
    simulated = LoaderOptions(device="simulated-cuda")
    assert simulated.where() == torch.device("cpu")
    assert simulated.device_bytes() == 1 << 30
    with pytest.raises(ConfigError, match="is not a torch device"):
        LoaderOptions(device="gpu").where()

"""bench/gpu.py: its options, its rounds within a time, and its tables; no GPU is needed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import _gpu
import epoch
import gpu
import pytest
import scale
import torch

import gnndrive
from gnndrive.buffer.devices import choose
from gnndrive.buffer.devices._options import MoveOptions

NODES = 3000
SMALL = ["--batches", "3", "--batch-size", "20", "--fanout", "3,2", "--buffer", "1MB"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = scale.store_path(tmp_path_factory.mktemp("bench"), NODES)
    scale.write_powerlaw(path, NODES)
    return path


def test_without_a_gpu_it_exits_with_2(monkeypatch, capsys):
    monkeypatch.setattr(_gpu.signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--parts", "h2d,gather"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err


def test_options_are_passed_to_epoch(store, capsys):
    own, given = gpu.parse([str(store), *SMALL, "--device-memory", "1GB", "--threads", "2"])
    assert (own.parts, given.device_memory, given.threads) == (list(gpu.PARTS), "1GB", 2)
    assert (given.buffer, given.batches, given.fanout) == ("1MB", 3, [3, 2])
    assert gpu.parse(["--parts", "gather"])[1] is None
    _, given = gpu.parse(["--generate", "8.2"])  # its product with 1e6 is less than 8,200,000
    assert given.store == str(scale.store_path(Path(), 8_200_000))
    sets = ["defaults", "blocks=8 gather_stream"]
    own, given = gpu.parse([str(store), "--switch", sets[0], "--switch", sets[1]])
    assert own.switch == sets
    assert given.switches == MoveOptions(blocks=8, gather_stream=True)  # a worker has the last
    device = _gpu.switched(given.way, MoveOptions(portions=8))
    assert (choose(device), device.portions) == ((device, None), 8)
    with pytest.raises(SystemExit):
        gpu.parse([str(store), "--switch", "block=8"])
    assert "choose from blocks, gather_stream" in capsys.readouterr().err


def test_a_move_that_fails_is_named_and_the_others_are_measured(tmp_path, monkeypatch):
    """After an illegal access each call fails, also those that make and close a driver."""
    error = "CUDA error: an illegal memory access was encountered"
    driver = mock.Mock(close=mock.Mock(side_effect=RuntimeError(error)))
    made = {"zero-copy": gnndrive.ConfigError("needs CuPy"), "copy+kernel": driver,
            "staged": RuntimeError(error)}  # fmt: skip

    def make(device, way, options):
        assert options.blocks == 4
        if isinstance(made[way], Exception):
            raise made[way]
        return made[way]

    def measure(driver, row_bytes, *_):
        if row_bytes == 3072:
            raise RuntimeError(error)
        return {"ratio": [0.9]}

    monkeypatch.setattr(gpu, "TorchDriver", make)
    monkeypatch.setattr(gpu, "MEASURE", {"h2d": measure})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    file = tmp_path / "moves.json"
    words = ["--parts", "h2d", "--switch", "blocks=4", "--ways", ",".join(made)]
    own, _ = gpu.parse([*words, "--json", str(file)])
    found: dict[str, Any] = {"moves": [], "failed": [], "unavailable": []}
    gpu.measure(own, None, found)
    head = {"part": "h2d", "way": "copy+kernel", "row_bytes": 512, "switches": "blocks=4"}
    assert (
        found
        == json.loads(file.read_text())
        == {
            "moves": [head | {"ratio": [0.9]}],
            "failed": [
                f"h2d, copy+kernel, 3072 B, blocks=4: {error}",
                f"end, copy+kernel, blocks=4: {error}",
                f"set-up, staged, blocks=4: {error}",
            ],
            "unavailable": ["zero-copy: needs CuPy"],
        }
    )


def test_loaders_by_hand_make_the_batches_that_gnndrive_draws(store):
    _, given = gpu.parse([str(store), *SMALL])
    assert given is not None
    made = gnndrive.open(store)
    with epoch.opened(made, given) as graph, epoch.make_loader(given) as loader:
        by_hand = list(gpu.prepared(made, given, graph, pin=False))
        assert len(by_hand) == 3
        for mine, batch in zip(by_hand, loader, strict=False):
            for name in ("x", "y", "edge_index", "n_id", "batch_size"):
                assert torch.equal(torch.as_tensor(mine[name]), torch.as_tensor(batch[name]))


class Loaders:
    """Runs fakes of the loaders on a virtual clock, with 5 s of set-up."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = {"pinned": 2.0, "row-copies": 3.0, "gnndrive": 1.0}  # a batch
        self.ended = "1"  # how a loader without seconds has ended
        self.runs: list[tuple[str, str, int]] = []  # loader, switches and batches
        self.checksums = {}

    def spawn(self, name, options, group, script, left, everything):
        assert Path(script).name == "gpu.py"
        assert everything is (left is None)  # with a time, libraries stay in the page cache
        batches, switches = options.batches, options.given[-1]
        self.runs.append((name, switches, batches))
        if name not in self.seconds:
            sys.exit(f"{name} ended with {self.ended}")
        elapsed = batches * self.seconds[name]
        if left is not None and 5 + elapsed > left:
            self.now += left
            raise subprocess.TimeoutExpired("python", left)
        self.now += 5 + elapsed
        return {
            "loader": name, "batches": batches, "elapsed_s": elapsed, "idle": 0.25,
            "checksum": self.checksums.get(name, 7) + batches, "engine": "threads",
        }  # fmt: skip


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Loaders:
    made = Loaders()
    monkeypatch.setattr(epoch, "spawn", made.spawn)
    return made


@pytest.fixture
def run(store: Path, loaders: Loaders) -> Callable[..., dict[str, Any]]:
    """Runs the epochs with more options and returns what was found."""

    def run_epochs(*more: str) -> dict[str, Any]:
        own, given = gpu.parse([str(store), *SMALL, *more])
        found: dict[str, Any] = {"moves": [], "epochs": [], "failed": [], "unavailable": []}
        saved: list[int] = []
        save, clock = lambda: saved.append(loaders.now), lambda: loaders.now
        try:
            gpu.Epochs(own, given, None, found, save, clock).run()
        finally:
            assert len(saved) == len(found["epochs"]) + len(found["failed"])
        return found | {"table": gpu.table(found | {"machine": "a GPU", "memory": "enough"}, given)}

    return run_epochs


def test_loaders_run_in_rounds_and_only_gnndrive_with_each_set_of_switches(loaders, run):
    found = run("--runs", "2", "--switch", "defaults", "--switch", "portions=8")
    assert loaders.runs == 2 * [
        ("pinned", "defaults", 3), ("gnndrive", "defaults", 3), ("row-copies", "defaults", 3),
        ("gnndrive", "portions=8", 3),
    ]  # fmt: skip
    defaults = [each for each in found["epochs"] if each["switches"] == "defaults"]
    assert gpu.speedups_of_gnndrive(defaults, "pinned") == [2.0, 2.0]
    for part in ("2.00 (2.00–2.00)", "3.00 (3.00–3.00)", "0.25", "engine: threads", "portions=8"):
        assert part in found["table"]
    loaders.checksums["gnndrive"] = 1
    with pytest.raises(SystemExit, match="same batches"):
        run()


def test_as_many_rounds_run_as_there_is_time_for(loaders, run):
    found = run("--seconds", "100", "--batches", "6")
    assert len(found["epochs"]) == 3  # a round takes 51 s
    assert loaders.now <= 100


@pytest.mark.parametrize(
    ("ended", "hangs", "rounds"),
    [("1", True, 1), ("1", False, 2), ("-9 (killed: out of memory?)", False, 1)],
)
def test_a_loader_that_fails_or_hangs_is_named_and_the_others_run(
    loaders, run, ended, hangs, rounds
):
    """In one round if it lacks memory: the time is needed to run all of them with more memory."""
    del loaders.seconds["row-copies"]
    loaders.ended = ended
    if hangs:
        loaders.seconds["gnndrive"] = 1000.0
    found = run("--seconds", "300", "--runs", "2")
    assert (
        found["failed"]
        == [
            "epoch, gnndrive, defaults: gnndrive had not ended when the time was up",
            f"epoch, row-copies, defaults: row-copies ended with {ended}",
        ][not hangs :]
    )
    assert [name for name, *_ in loaders.runs].count("row-copies") == 1
    assert [result["loader"] for result in found["epochs"]].count("pinned") == rounds
    assert "not measured: epoch, row-copies" in found["table"]
    assert loaders.now <= 300

"""Commands with `--device`, and programs that are interrupted or ranks, on GPUs."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive as gd
from gnndrive.cli.commands.loading import Loading, load
from tests import forked
from tests.cli.conftest import QUICK, SMALL, Command
from tests.host.processes.programs import digest

pytestmark = pytest.mark.gpu

DEVICES = ("cpu", "cuda")
RANKS = 2
PROGRAM = """
import os, signal, sys
import torch
import torch.distributed as dist
from itertools import islice
import gnndrive
from tests.gpu.test_commands import loader_of
from tests.host.processes.programs import digest

def host(batch):
    return batch.apply(lambda tensor: tensor.cpu())
"""
NOTEBOOK = """
loader = loader_of(sys.argv[1], device="cuda")
for number in range(3):
    try:
        for batch in loader:
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
print(*(digest(host(batch)) for batch in loader))
"""
WAITING = """
def work(batch):
    if batch.input_id[0] == 100:
        print("ready", flush=True)
    return batch

loader = loader_of(sys.argv[1], device="cuda", shuffle=False, transform=work)
while True:
    for batch in loader:
        pass
"""
RANK = """
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo", f"file://{sys.argv[2]}/group", rank=rank, world_size=world)
loader = loader_of(sys.argv[1], device=f"cuda:{rank}", ranks=True)
for _ in range(2):
    for batch in loader:
        assert batch.x.device == torch.device("cuda", rank)
        print(digest(host(batch)))
loader.close()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch's gloo threads may abort a process whose interpreter exits
"""


def loader_of(store: Path | str, **more: Any) -> gd.NeighborLoader:
    """20 batches of all nodes."""
    given: dict[str, Any] = {"batch_size": 100, "shuffle": True, "seed": 5, "buffer": "100KB"}
    return gd.NeighborLoader(gd.open(store), [4, 3], **given | more)


@pytest.mark.parametrize("sizes", [("--buffer", "64KB"), ("--memory", "100MB")])
def test_train_and_infer_give_what_they_give_on_the_cpu(
    gnndrive: Command, planted: Path, tmp_path: Path, sizes: tuple[str, str]
) -> None:
    """Also if a training goes on from a checkpoint, and with a checkpoint of another device."""
    found, rows = {}, {}
    for device in DEVICES:
        file = tmp_path / f"{device}.pt"
        words = ("train", planted, *SMALL, *QUICK, "--dropout", "0", *sizes, "--device", device)
        assert gnndrive(*words, "--checkpoint", file).code == 0
        ended = gnndrive(*words, "--epochs", "2", "--resume", file, "--checkpoint", file)
        assert ended.code == 0, ended.err
        found[device] = [epoch["loss"] for epoch in ended.json["epochs"]]
    for device in DEVICES:
        words = ("infer", planted, "--checkpoint", tmp_path / "cuda.pt", "--memory", "300MB")
        assert gnndrive(*words, "--device", device, "--out", tmp_path / device).code == 0
        rows[device] = np.load(tmp_path / device / "h.npy")
    # Sums over neighbours are made in any order on a GPU, so the last bits may differ.
    assert found["cuda"] == pytest.approx(found["cpu"], rel=2e-3)
    np.testing.assert_allclose(rows["cuda"], rows["cpu"], rtol=1e-3, atol=1e-4)


def test_bench_strategies_sees_the_batches_of_the_cpu(planted: Path) -> None:
    here, there = (
        load(Loading(str(planted), "gnndrive", (3, 2), 100, 5, arguments={"device": device}))
        for device in DEVICES
    )
    assert here.checksums == there.checksums


def test_an_epoch_is_left_by_ctrl_c_and_another_is_whole(planted: Path, having_gpus: str) -> None:
    """A notebook goes on after it."""
    ended = forked.run(having_gpus + PROGRAM + NOTEBOOK, str(planted))
    assert (ended.returncode, ended.stderr) == (0, "")
    with loader_of(planted) as loader:
        loader.set_epoch(3)
        assert ended.stdout.split() == [digest(batch) for batch in loader]


def test_ctrl_c_ends_a_program_with_one_traceback(planted: Path, having_gpus: str) -> None:
    with forked.Program(having_gpus + PROGRAM + WAITING, str(planted)) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    assert running.returncode == -signal.SIGINT, errors
    assert errors.count("Traceback") == 1, errors
    assert "Exception ignored" not in errors


def test_ranks_have_a_gpu_each(planted: Path, tmp_path: Path, having_gpus: str) -> None:
    if torch.cuda.device_count() < RANKS:
        pytest.skip("there is one GPU")
    with ExitStack() as running, loader_of(planted) as loader:
        ranks = []
        for rank in range(RANKS):
            said = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "RANK": rank}
            made = forked.Program(
                having_gpus + PROGRAM + RANK, str(planted), str(tmp_path),
                environment={name: str(each) for name, each in said.items()},
            )  # fmt: skip
            ranks.append(running.enter_context(made))
        ended = [each.communicate() for each in ranks]
        assert [each.returncode for each in ranks] == [0] * RANKS, ended
        whole = [digest(batch) for _ in range(2) for batch in loader]
        assert [out.split() for out, _ in ended] == [whole[rank::RANKS] for rank in range(RANKS)]

"""Ctrl-C in the middle of an epoch gives one line, exit code 130 and a whole checkpoint."""

import signal

import torch

from tests import forked
from tests.cli.conftest import PROGRAM


def test_ctrl_c_ends_training(planted, tmp_path):
    file = tmp_path / "model.pt"
    words = ["train", str(planted), "--epochs", "100000", "--batch-size", "40", "--hidden", "8"]
    words += ["--fanout", "3,3", "--buffer", "64KB", "--checkpoint", str(file), "--json"]
    words += ["--threads", "1"]
    with forked.Program(PROGRAM, *words) as child:
        line = next(line for line in child.stderr if line.startswith("epoch 2/100000 "))
        assert "loss" in line
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert child.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.count("gnndrive: interrupted") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert len(torch.load(file, weights_only=True)["epochs"]) >= 1

"""Ctrl-C in the middle of an epoch gives one line, exit code 130 and a whole checkpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import torch

# A shell may start its background jobs with SIGINT ignored, which children inherit.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from gnndrive.cli.main import main
sys.exit(main())
"""
GUARD_S = 120  # only ends a test that hangs


def test_ctrl_c_ends_training(planted: Path, tmp_path: Path):
    file = tmp_path / "model.pt"
    words = ["train", str(planted), "--epochs", "100000", "--batch-size", "4", "--hidden", "8"]
    words += ["--fanout", "3,3", "--buffer", "64KB", "--checkpoint", str(file), "--json"]
    words += ["--threads", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        line = next(line for line in child.stderr if line.startswith("epoch 2/100000 "))
        assert "loss" in line
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=GUARD_S)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.count("gnndrive: interrupted") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert len(torch.load(file, weights_only=True)["epochs"]) >= 1

"""What ends a command early: output that cannot be written, a reader that has ended, Ctrl-C."""

import io
import os
import signal
import sys

import pytest
import torch
from rich.console import Console

from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.main import main
from tests import forked
from tests.cli.conftest import PROGRAM, SMALL

ONE_EPOCH = ("--epochs", "1", *SMALL, "--hidden", "4")


@pytest.fixture
def full():
    with open("/dev/full", "w") as stream:
        yield stream


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["--help"]])
def test_a_full_disk_is_one_line(planted, full, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", full)
    assert main([*words[:1], *[str(planted)] * (words[0] != "--help"), *words[1:]]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("gnndrive: standard output cannot be written to (No space left")
    assert not [line for line in said if "Traceback" in line]
    assert sys.stdout is full


def test_training_where_a_stream_is_full(planted, full, monkeypatch, capsys):
    """Without its progress it goes on."""
    words = ["train", str(planted), *ONE_EPOCH]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("epoch 1: loss")
    assert "send the output elsewhere" in said[-1]
    with open("/dev/full", "w") as other:
        monkeypatch.setattr(sys, "stderr", other)
        assert main(words) == 0
    assert "batches in" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["info"], ["--help"]])
def test_a_reader_that_has_ended_ends_the_command_quietly(planted, words, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main([*words, *[str(planted)] * (words != ["--help"])]) == 141
    assert capsys.readouterr().err == ""


def test_the_interpreter_ends_quietly_too(planted):
    """It flushes its streams once more."""
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    ended = forked.run(full + PROGRAM, "info", str(planted))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left on device" in ended.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_the_name_of_a_job_is_shown_without_markup(terminal):
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=terminal, width=100)) as bars:
        bars("rows nodes:x: [bold]", 4, 4)
    assert ("rows nodes:x: [bold]" in out.getvalue(), "100 %" in out.getvalue()) == (True, True)


def test_ctrl_c_ends_training_with_a_whole_checkpoint(planted, tmp_path):
    file = tmp_path / "model.pt"
    words = ["train", str(planted), "--epochs", "100000", "--batch-size", "40", "--hidden", "8"]
    words += ["--fanout", "3,3", "--buffer", "64KB", "--checkpoint", str(file), "--threads", "1"]
    with forked.Program(PROGRAM, *words) as child:
        assert any(line.startswith("epoch 2/100000 ") for line in child.stderr)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out, "Traceback" in err) == (130, "", False)
    assert err.count("gnndrive: interrupted") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert len(torch.load(file, weights_only=True)["epochs"]) >= 1

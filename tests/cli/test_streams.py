"""Output that cannot be written gives one line, and a reader that has ended gives none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from gnndrive.cli.main import main
from tests import forked
from tests.cli.test_interrupt import PROGRAM

ONE_EPOCH = ("--epochs", "1", "--fanout", "2,2", "--batch-size", "400", "--hidden", "4")


@pytest.fixture
def full() -> Iterator[TextIO]:
    with open("/dev/full", "w") as stream:
        yield stream


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        yield stream


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["verify"], ["plan"], ["--help"]])
def test_a_full_disk_is_one_line(
    planted: Path,
    full: TextIO,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    assert main([*words[:1], *[str(planted)] * (words[0] != "--help"), *words[1:]]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("gnndrive: standard output cannot be written to (No space left")
    assert not [line for line in said if "Traceback" in line]
    assert sys.stdout is full


def test_training_onto_a_full_disk_is_one_line_after_its_progress(
    planted: Path,
    full: TextIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["train", str(planted), *ONE_EPOCH]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("epoch 1: loss")
    assert "send the output elsewhere" in said[-1]


@pytest.mark.parametrize("words", [["info"], ["--help"]])
def test_a_reader_that_has_ended_ends_the_command_quietly(
    planted: Path,
    unread: TextIO,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdout", unread)
    assert main([*words, *[str(planted)] * (words != ["--help"])]) == 141
    assert capsys.readouterr().err == ""


def test_training_goes_on_where_its_progress_cannot_be_seen(
    planted: Path,
    full: TextIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["train", str(planted), *ONE_EPOCH]) == 0
    assert "batches in" in capsys.readouterr().out


def test_a_stream_that_is_closed_is_not_missed(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["info", str(planted)]) == 0


def test_the_interpreter_ends_quietly_too(planted: Path) -> None:
    """It flushes its streams once more."""
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    ended = forked.run(full + PROGRAM, "info", str(planted))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left on device" in ended.stderr

"""`gnndrive train --trace`: one timeline of the training batches of all epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.test_packs import refusal
from tests.pipeline.traces import check_batches, read

WORDS = ("--fanout", "4,4", "--batch-size", "200", "--epochs", "2", "--hidden", "8")


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_all_epochs_are_in_one_file(
    gnndrive: Command, planted: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    ended = gnndrive("train", planted, *WORDS, "--json", "--buffer", "1MB", "--trace", path)
    assert ended.code == 0
    found = check_batches(read(path))
    assert len(found) == ended.json["batches"] == 8
    assert {epoch for epoch, _, _ in found} == {0, 1}
    spans = sorted((spans[0][1], epoch) for (epoch, _, _), spans in found.items())
    assert [epoch for _, epoch in spans] == [0] * 4 + [1] * 4, "epochs follow each other"


@pytest.mark.parametrize(
    ("name", "message"),
    [("run.txt", "whose name ends in .json"), ("none/run.json", "cannot be written")],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_read(
    gnndrive: Command, planted: Path, tmp_path: Path, name: str, message: str
) -> None:
    said = refusal(gnndrive("train", planted, *WORDS, "--trace", tmp_path / name))
    assert message in " ".join(said.split())

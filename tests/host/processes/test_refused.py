"""Ranks that cannot share what they should share: an error on all of them, and never a hang."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError
from tests.host.processes import programs

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks

SEPARATE = "with host_service=False each rank"


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The path of another store."""
    data = Data(x=torch.zeros(330, 8), edge_index=torch.zeros(2, 5, dtype=torch.int64))
    return str(gnndrive.from_data(data, tmp_path / "other.gnn").path)


def test_a_rank_with_other_arguments(starter, store, other, tmp_path):
    ended = starter.run("programs.differing", 2, tmp_path, store=str(store.path), other=other)
    assert ended.statuses == [0, 0], ended.outputs
    assert ended.outputs == ["", ""]
    assert ended.results[0] == ended.results[1]
    said = ["memory", "buffer", "num_neighbors", "io_depth", "extractors"]
    said += ["whether the ranks of a host share a buffer", "the store"]
    for text, name in zip(ended.results[0], said, strict=True):
        assert f"{name} is" in text
        assert "rank 0" in text
        assert "rank 1" in text
        assert "Give all ranks the same arguments" in text


def test_a_service_that_cannot_start(starter, store, other, tmp_path):
    copy = shutil.copytree(store.path, tmp_path / "copy.gnn")
    ended = starter.run("programs.never_starting", 2, tmp_path, store=str(copy), other=other)
    assert ended.statuses == [0, 0], ended.outputs
    assert "cannot open its store" in ended.outputs[0]
    reasons = [
        "No such file", "Permission denied", "has ended before it answered", "sys.executable",
        "File too large", "has ended before it answered", "has ended before it answered",
        "serves another store", "ulimit -n",
    ]  # fmt: skip
    for texts in zip(*ended.results, strict=True):
        reason = reasons.pop(0)
        assert all(reason in text for text in texts)
        own = reason in ("serves another store", "ulimit -n")
        assert own or all(SEPARATE in text for text in texts)
    first, second = ended.results
    assert first[-1].startswith("rank 1 cannot start")
    assert second[0].startswith("rank 0 cannot start")


@pytest.mark.parametrize("arguments", [{}, {"ranks": None}, {"ranks": None, "in_order": False}])
def test_one_rank_has_no_service(store, arguments):
    with (
        programs.loader(store, **arguments) as loader,
        pytest.raises(ConfigError, match="host_service=True cannot be had, because there is one"),
    ):
        iter(loader)

"""A small demo generates a graph, trains, compares loaders on the same batches, keeps the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnndrive.cli.commands import compare, demo
from gnndrive.cli.commands.progress import Bars
from gnndrive.common.errors import GNNDriveError
from gnndrive.store.reader import open as open_store
from tests.cli.conftest import Command

NODES = 10_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DIM", 32)
    monkeypatch.setattr(demo, "OPTIONS", compare.LoaderOptions((5, 5), 256, buffer="1MB"))
    monkeypatch.setattr(demo, "LR", 0.02)
    monkeypatch.setattr(demo, "COLD_BATCHES", 2)
    monkeypatch.setattr(demo, "LIMITED_BATCHES", 2)


@pytest.mark.usefixtures("small")
def test_the_demo_prints_its_figures(gnndrive: Command, tmp_path: Path):
    ended = gnndrive("demo", "--dir", tmp_path, "--nodes", NODES)
    assert ended.code == 0
    lines = dict(line.split(" : ", 1) for line in ended.out.splitlines() if " : " in line)
    said = {name.strip(): text for name, text in lines.items()}
    accuracy, chance = said["test accuracy"].split("; by chance ")
    assert float(accuracy) > 4 * float(chance)
    assert "peak" in said["memory"]
    assert "IOPS=" in said["reads"]
    assert "hit" in said["rows"]
    assert "2 batches" in said["gnndrive"]
    assert "2 batches" in said["mapped"]
    assert float(said["ratio"].split()[0]) > 0
    assert "dropped from the page cache" in ended.out
    for step in ("[1/3] generating", "nodes/x: 100 %", "epoch 1/1", "mapped: 100 %"):
        assert step in ended.err
    store = next(tmp_path.iterdir())
    made = (store / "store.json").stat()
    assert demo._graph(store, NODES, demo.Console(stderr=True)).num_nodes == NODES
    assert (store / "store.json").stat() == made  # found, and not generated again


@pytest.mark.usefixtures("small")
def test_a_graph_that_is_damaged_is_generated_again(tmp_path: Path):
    path = tmp_path / "graph.gnn"
    demo._graph(path, NODES, demo.Console(stderr=True))
    (path / "nodes" / "x.npy").write_bytes(b"")
    assert demo._graph(path, NODES, demo.Console(stderr=True)).num_features == 32


def test_the_demo_says_why_there_is_no_limit(planted: Path, monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def none(limit_bytes: int) -> Iterator[tuple[None, str]]:
        yield None, "no memory limit: there are no groups"

    timings = dict.fromkeys(compare.LOADERS, compare.Timing(2.0, 100, 5, 7, 10**6))
    monkeypatch.setattr(demo, "memory_limit", none)
    monkeypatch.setattr(demo, "compare", lambda *given, **named: timings)
    text = demo._compare(planted)
    assert "no memory limit: there are no groups" in text
    assert text.count("ratio") == 1


def test_a_loader_that_fails_is_an_error(planted: Path):
    store = open_store(planted)
    options = compare.LoaderOptions((5, 5), 10, buffer="nonsense")
    failed = "the gnndrive loader failed: buffer='nonsense' is no size"
    with pytest.raises(GNNDriveError, match=failed), Bars() as bars:
        compare.compare(store, options, 1, 60, bars=bars)

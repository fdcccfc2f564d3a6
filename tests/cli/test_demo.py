"""A small demo generates a graph, trains, compares loaders on the same batches, keeps the graph."""

from contextlib import contextmanager

import pytest

from gnndrive.cli.commands import compare, demo
from gnndrive.cli.commands.loading import load
from gnndrive.cli.commands.loading_process import LoadingFailed
from gnndrive.cli.commands.progress import Bars
from gnndrive.common.errors import GNNDriveError
from gnndrive.store.reader import open as open_store

NODES = 10_000


@pytest.fixture
def small(monkeypatch):
    """Small figures, and loaders in this process."""

    def run_loading(given, limit, progress):
        progress(1, 1)
        return load(given)

    monkeypatch.setattr(compare, "run_loading", run_loading)
    for name, value in {"DIM": 32, "CLASSES": 8, "LR": 0.02, "TRAIN_BATCHES": 16,
                        "COLD_BATCHES": 2, "LIMITED_BATCHES": 2}.items():  # fmt: skip
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "OPTIONS", compare.LoaderOptions((5, 5), 256, buffer="1MB"))


@pytest.mark.usefixtures("small")
def test_the_demo_prints_its_figures(gnndrive, tmp_path):
    ended = gnndrive("demo", "--dir", tmp_path, "--nodes", NODES)
    assert ended.code == 0
    lines = dict(line.split(" : ", 1) for line in ended.out.splitlines() if " : " in line)
    said = {name.strip(): text for name, text in lines.items()}
    accuracy, chance = said["test accuracy"].split("; by chance ")
    assert float(accuracy) > 4 * float(chance)
    assert float(said["ratio"].split()[0]) > 0
    for name, text in (("memory", "peak"), ("reads", "IOPS="), ("rows", "hit"),
                       ("gnndrive", "2 batches"), ("mapped", "2 batches")):  # fmt: skip
        assert text in said[name]
    for step in ("[1/3] generating", "nodes/x: 100 %", "epoch 1/1", "mapped: 100 %"):
        assert step in ended.err
    store = next(tmp_path.iterdir())
    made = (store / "store.json").stat()
    assert demo._graph(store, NODES, demo.Console(stderr=True)).num_nodes == NODES
    assert (store / "store.json").stat() == made  # found, and not generated again
    (store / "nodes" / "x.npy").write_bytes(b"")
    assert demo._graph(store, NODES, demo.Console(stderr=True)).num_features == 32


def test_the_demo_says_why_there_is_no_limit(planted, monkeypatch):
    @contextmanager
    def none(limit_bytes):
        yield None, "no memory limit: there are no groups"

    timings = dict.fromkeys(compare.LOADERS, compare.Timing(2.0, 100, 5, 7, 10**6))
    monkeypatch.setattr(demo, "memory_limit", none)
    monkeypatch.setattr(demo, "compare", lambda *given, **named: timings)
    text = demo._compare(planted)
    assert "no memory limit: there are no groups" in text
    assert text.count("ratio") == 1


def test_a_loader_that_fails_is_an_error(planted, monkeypatch):
    def fail(*_):
        raise LoadingFailed("no size")

    monkeypatch.setattr(compare, "run_loading", fail)
    with pytest.raises(GNNDriveError, match="the mapped loader failed: no size"), Bars() as bars:
        compare.compare(open_store(planted), compare.LoaderOptions((5, 5), 10), 1, 60, bars=bars)

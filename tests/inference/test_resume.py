"""A computation that was killed goes on where it stopped, and ends with the same bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GraphSAGE, HeteroConv, SAGEConv

import gnndrive
from gnndrive import ConfigError, Store, StoreError
from gnndrive.inference import hidden, infer
from gnndrive.inference import run as run_module
from tests.inference.conftest import COLUMNS
from tests.loader.hetero.graph import CITES, WRITES, WRITTEN
from tests.soak import Seeds, product

CALLS = ("pwrite", "fdatasync", "fsync", "replace", "unlink", "ftruncate", "posix_fallocate")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written in pieces of two pages, and recorded about as often."""
    monkeypatch.setattr(hidden, "PIECE_BYTES", 2 * 4096)
    monkeypatch.setattr(run_module, "SYNC_BYTES", 5000)


def killed_at(call: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed in its call number `call` of `CALLS`, half done if it is
    a write; returns whether there were so many."""
    child = os.fork()
    if not child:
        try:
            kill_at(call)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def kill_at(call: int) -> None:
    """Kill this process in its call number `call` of `CALLS`."""
    left = [call]

    def faulty(name: str) -> None:
        whole = getattr(os, name)

        def counted(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if name == "pwrite":
                    whole(given[0], given[1][: len(given[1]) // 2], given[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **named)

        setattr(os, name, counted)

    for name in CALLS:
        faulty(name)


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of the arrays below a folder."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*.npy")}


def test_killed_at_any_call(store: Store, seeds: Seeds):
    work = partial(infer, GCN(COLUMNS, 8, 2, 3, dropout=0.5), store, batch_size=64, io_depth=2)
    calls = [0]
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counting(getattr(os, name), calls))
        work()
    wanted = files_of(store.path / "derived")
    assert len(wanted) == 1
    last = calls[0] - 6  # far behind
    for call in (last, *(1 + 9 * seed % calls[0] for seed in seeds(5))):
        shutil.rmtree(store.path / "derived")
        assert killed_at(call, work)
        begun: list[int] = []
        work(progress=lambda what, done, total, begun=begun: begun.append(done))
        assert call != last or not begun or begun[0] > store.num_nodes
        assert files_of(store.path / "derived") == wanted
    gnndrive.open(store.path).verify()


def counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        return function(*given, **named)

    return counted


def test_killed_again_and_again(hetero_store: Store, hetero: HeteroData, tmp_path: Path):
    columns = {each: hetero[each].x.size(1) for each in hetero.node_types}
    layers = [
        HeteroConv(
            {
                CITES: SAGEConv(columns["paper"], 30),
                WRITES: SAGEConv((columns["author"], columns["paper"]), 30),
                WRITTEN: SAGEConv((columns["paper"], columns["author"]), 30),
            }
        ),
        HeteroConv({CITES: SAGEConv(30, 4), WRITES: SAGEConv(30, 4), WRITTEN: SAGEConv(30, 4)}),
    ]
    infer(layers, hetero_store, out=tmp_path / "whole", batch_size=20)
    wanted = files_of(tmp_path / "whole")
    assert set(wanted) == {"author/h.npy", "paper/h.npy"}
    out, times = tmp_path / "killed", 0
    while killed_at(14, partial(infer, layers, hetero_store, out=out, batch_size=20)):
        times += 1
        assert times < 40, "it does not come forward"
    assert times >= 3
    assert files_of(out) == wanted


def interrupt(what: str, done: int, total: int) -> None:
    if done > total // 2:
        raise KeyboardInterrupt


def test_an_interrupted_one_goes_on_from_its_last_batch(store: Store):
    work = partial(infer, GraphSAGE(COLUMNS, 8, 2, 3), store, batch_size=16)
    with pytest.raises(KeyboardInterrupt):
        work(progress=interrupt)
    assert "h" not in gnndrive.open(store.path).node_names
    begun: list[tuple[int, int]] = []
    work(progress=lambda what, *of: begun.append(of))
    total = 2 * (store.num_nodes + store.num_edges)
    assert begun[0][0] >= total // 2 - 300
    assert begun[-1] == (total, total)
    again: list[int] = []
    work(progress=lambda what, done, total: again.append(done))
    assert not again


def test_missing_files_begin_anew(store: Store):
    model = GraphSAGE(COLUMNS, 8, 3, 3)
    with pytest.raises(KeyboardInterrupt):
        infer(model, store, progress=interrupt, batch_size=100)
    for each in (store.path / "derived").rglob("*.npy"):
        each.unlink()
    infer(model, store, batch_size=100)
    with torch.no_grad():
        wanted = model.eval()(store.tensor("x"), _edges(store))
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)


def _edges(store: Store) -> torch.Tensor:
    degrees = store.index_pointers[1:] - store.index_pointers[:-1]
    target = torch.arange(store.num_nodes).repeat_interleave(torch.from_numpy(degrees.astype("i8")))
    return torch.stack([torch.from_numpy(store.indices.astype("i8")), target])


def test_another_model_begins_anew_and_says_so(store: Store):
    first, second = GraphSAGE(COLUMNS, 8, 2, 3), GraphSAGE(COLUMNS, 8, 2, 3)
    with pytest.raises(KeyboardInterrupt):
        infer(first, store, batch_size=16, progress=interrupt)
    with pytest.warns(RuntimeWarning, match="another model"):
        infer(second, store, batch_size=16)
    with torch.no_grad():
        wanted = second.eval()(store.tensor("x"), _edges(store))
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)
    with pytest.raises(ConfigError, match="overwrite=True"):
        infer(first, store, batch_size=16)
    infer(first, store, batch_size=16, overwrite=True)
    assert not torch.allclose(store.tensor("h"), wanted, atol=1e-3)
    folders = [each for each in (store.path / "derived" / "h").iterdir() if each.is_dir()]
    assert len(folders) == 1
    assert [each.name for each in folders[0].rglob("*")] == ["nodes", "h.npy"]


@product("call,time", ["posix_fallocate", "pwrite", "fdatasync"], [3, 1])
def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, call: str, time: int):
    layers = [lambda x, edge_index: x * 2 for _ in range(3)]
    whole, left = getattr(os, call), [time]

    def full(*given: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StoreError, match=r"too full.*run the same again"):
            infer(layers, store, batch_size=16)
    infer(layers, store, batch_size=16)
    assert torch.equal(store.tensor("h"), store.tensor("x") * 8)
    store.verify()


def test_a_store_that_is_overwritten(store: Store, data: Data, tmp_path: Path):
    replaced = Data(x=data.x + 1, edge_index=data.edge_index)

    def overwrite(what: str, done: int, total: int) -> None:
        if total // 2 < done < total // 2 + 200:
            gnndrive.from_data(replaced, store.path, overwrite=True)

    layers = [lambda x, edge_index: x + 1 for _ in range(3)]
    with pytest.raises(StoreError, match="overwritten"):
        infer(layers, store, batch_size=16, progress=overwrite)
    assert "h" not in gnndrive.open(store.path).node_names
    with pytest.raises(StoreError, match="overwritten"):
        infer(layers, store, out=tmp_path / "out")
    infer(layers, gnndrive.open(store.path))
    assert torch.allclose(gnndrive.open(store.path).tensor("h"), data.x + 4)


def test_two_at_once_are_refused(store: Store, tmp_path: Path):
    for folder, named in ((store.path / "derived" / "h", {}), (tmp_path / "o", {"out": "o"})):
        folder.mkdir(parents=True)
        fd = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        given = {name: tmp_path / value for name, value in named.items()}
        with pytest.raises(ConfigError, match="another process"):
            infer(GraphSAGE(COLUMNS, 8, 1, 3), store, **given)
        os.close(fd)
        infer(GraphSAGE(COLUMNS, 8, 1, 3), store, **given)


def test_a_write_that_failed_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    layers = [lambda x, edge_index: x * 2]
    whole, left = os.pwrite, [2]

    def once(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, "Input/output error")
        return whole(*given)

    monkeypatch.setattr(run_module, "SYNC_BYTES", 1 << 40)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", once)
        with pytest.raises(StoreError, match="Input/output error"):
            infer(layers, store, batch_size=16)
    infer(layers, store, batch_size=16)
    assert torch.equal(store.tensor("h"), store.tensor("x") * 2)

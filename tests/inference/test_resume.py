"""A computation that was killed goes on where it stopped, and ends with the same bytes."""

import errno
import itertools
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv

import gnndrive
from gnndrive import ConfigError, Store, StoreError
from gnndrive.cli.commands import clean
from gnndrive.common.file_lock import try_lock
from gnndrive.common.io import direct_writer
from gnndrive.inference import outcome as outcome_module
from gnndrive.inference import run as run_module
from gnndrive.inference.infer import infer
from gnndrive.inference.unfinished import unfinished
from gnndrive.store.temporary_folders import lock_of
from tests.inference.conftest import COLUMNS, doubled, interrupt
from tests.loader.hetero.graph import CITES, WRITES, WRITTEN
from tests.soak import Seeds, product
from tests.store.kills import calls_of, counting, killed_at, tree

CALLS = ("pwrite", "fdatasync", "fsync", "replace", "unlink", "ftruncate", "posix_fallocate")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written in pieces of two pages, and recorded about as often."""
    monkeypatch.setattr(direct_writer, "PIECE_BYTES", 2 * 4096)
    monkeypatch.setattr(run_module, "SYNC_BYTES", 5000)


def files_of(folder: Path) -> dict[str, bytes | None]:
    return {name: each for name, each in tree(folder).items() if name.endswith(".npy")}


def test_killed_at_any_call(hetero_store: Store, hetero: HeteroData, tmp_path: Path, seeds: Seeds):
    columns = {each: hetero[each].x.size(1) for each in hetero.node_types}
    first = {
        CITES: SAGEConv(columns["paper"], 30),
        WRITES: SAGEConv((columns["author"], columns["paper"]), 30),
        WRITTEN: SAGEConv((columns["paper"], columns["author"]), 30),
    }
    second = {key: SAGEConv(30, 4) for key in first}
    layers, out = [HeteroConv(first), HeteroConv(second)], tmp_path / "out"
    work = partial(infer, layers, hetero_store, out=out, batch_size=20, io_depth=2)
    calls, wanted = calls_of(work, CALLS), files_of(out)
    assert set(wanted) == {"author/h.npy", "paper/h.npy"}
    last = calls - 14  # far behind, before results are put in place
    moving = calls - 2  # one of two types is in place
    for call in (last, moving, *(1 + 9 * seed % calls for seed in seeds(5))):
        shutil.rmtree(out)
        assert killed_at(work, call, CALLS)
        begun: list[tuple[int, int]] = []
        work(progress=lambda what, *of, begun=begun: begun.append(of))
        assert call != moving or not begun
        assert call != last or not begun or begun[0][0] > begun[0][1] // 2
        assert files_of(out) == wanted


def tripled(x: Any, edge_index: Any) -> Any:
    return x * 3


@pytest.mark.parametrize("in_store", [False, True])
def test_killed_at_its_end(in_store: bool, store: Store, tmp_path: Path):
    """The old rows or the new ones are there; what has a record is never computed again."""
    out = None if in_store else tmp_path / "out"
    root, record = (store.path / "derived", "h.json") if out is None else (out, "h.made-by.txt")

    def work(layer: Any, progress: Any = None) -> None:
        infer([layer] * 2, store, out=out, overwrite=True, batch_size=200, progress=progress)

    wanted, calls = {}, 0
    for layer in (doubled, tripled):
        calls = calls_of(partial(work, layer))
        wanted[layer] = tree(root)
    rows = {
        layer: next(each for name, each in wanted[layer].items() if "h.npy" in name)
        for layer in wanted
    }
    old, new, recorded = tripled, doubled, False
    for at in range(calls - 20, calls + 1):
        assert killed_at(partial(work, new), at)
        left = tree(root)
        recorded = left[record] == wanted[new][record]
        assert any(
            rows[new if recorded and in_store else layer] in left.values() for layer in (old, new)
        )
        if at % 2:
            clean.run(tmp_path)
            assert tree(root) == wanted[new if recorded else old]
        begun: list[int] = []
        work(new, lambda what, done, total, begun=begun: begun.append(done))
        assert not (recorded and begun)
        assert tree(root) == wanted[new]
        old, new = new, old
    assert recorded


def test_missing_files_begin_anew(store: Store, data: Data):
    model = GraphSAGE(COLUMNS, 8, 3, 3)
    with pytest.raises(KeyboardInterrupt):
        infer(model, store, progress=interrupt, batch_size=100)
    for each in (store.path / "derived").rglob("*.npy"):
        each.unlink()
    infer(model, store, batch_size=100)
    with torch.no_grad():
        wanted = model.eval()(data.x, data.edge_index)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)


def test_another_model_begins_anew_and_says_so(store: Store, data: Data):
    first, second = GraphSAGE(COLUMNS, 8, 2, 3), GraphSAGE(COLUMNS, 8, 2, 3)
    with pytest.raises(KeyboardInterrupt):
        infer(first, store, batch_size=16, progress=interrupt)
    with pytest.warns(RuntimeWarning, match="another model"):
        infer(second, store, batch_size=16)
    with torch.no_grad():
        wanted = second.eval()(data.x, data.edge_index)
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
    layers, calls = [doubled] * 3, itertools.count(1)

    def full() -> None:
        if next(calls) >= time:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        counting(patch.setattr, full, [call])
        with pytest.raises(StoreError, match=r"too full.*run the same again"):
            infer(layers, store, batch_size=16)
    infer(layers, store, batch_size=16)
    assert torch.equal(store.tensor("h"), store.tensor("x") * 8)


def test_a_store_that_is_overwritten(store: Store, data: Data, tmp_path: Path):
    replaced = Data(x=data.x + 1, edge_index=data.edge_index)

    def overwrite(what: str, done: int, total: int) -> None:
        if total // 2 < done < total // 2 + 200:
            gnndrive.from_data(replaced, store.path, if_exists="replace")

    layers = [doubled] * 3
    with pytest.raises(StoreError, match="overwritten"):
        infer(layers, store, batch_size=16, progress=overwrite)
    assert "h" not in gnndrive.open(store.path).node_names
    with pytest.raises(StoreError, match="overwritten"):
        infer(layers, store, out=tmp_path / "out")
    infer(layers, gnndrive.open(store.path))
    assert torch.allclose(gnndrive.open(store.path).tensor("h"), 8 * replaced.x)


def test_two_at_once_are_refused(store: Store, tmp_path: Path):
    for folder, out in ((store.path / "derived" / "h", None), (tmp_path / "o", tmp_path / "o")):
        folder.mkdir(parents=True)
        held = try_lock(folder / ".lock")
        with pytest.raises(ConfigError, match="another process"):
            infer([doubled], store, out=out)
        os.close(held)
        infer([doubled], store, out=out)


# ---- where the result lies


def test_folders_of_others_stay(store: Store, tmp_path: Path):
    names = ("mine", "0123456789abcdef", ".0123456789abcdef", ".h-0123456789abcdef")
    roots = (tmp_path / "out", store.path / "derived" / "h")
    for root in roots:
        for name in names:
            (root / name).mkdir(parents=True)
            (root / name / "progress.json").write_text("{}")
            (root / name / "other").write_text("precious")
    infer([doubled], store, out=tmp_path / "out")
    infer([doubled], store)
    clean.run(tmp_path)
    assert all((root / name / "other").exists() for name in names for root in roots)


def test_an_unfinished_computation_of_another_name_stays(store: Store, tmp_path: Path):
    work = partial(infer, [doubled], store, out=tmp_path / "out", batch_size=16)
    with pytest.raises(KeyboardInterrupt):
        work(name="first", progress=interrupt)
    work(name="second")
    begun: list[int] = []
    work(name="first", progress=lambda what, done, total: begun.append(done))
    assert begun[0] > store.num_nodes
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        ".lock", "first.made-by.txt", "first.npy", "second.made-by.txt", "second.npy",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="another model"):
        work(name="first", dtype="float16")


@pytest.mark.parametrize("in_store", [False, True])
def test_a_result_without_its_file_is_computed_again(in_store: bool, store: Store, tmp_path: Path):
    """And not taken for whole if that is interrupted."""
    out = None if in_store else tmp_path / "out"
    work = partial(infer, [doubled], store, out=out, batch_size=16)
    work()
    file = next((out or store.path / "derived").rglob("h.npy"))
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(KeyboardInterrupt):
        work(progress=interrupt)
    work()
    assert file.read_bytes() == content
    if in_store:
        shutil.rmtree(file.parents[1])
        work()
        assert file.read_bytes() == content


def test_a_file_of_the_user_is_not_replaced(store: Store, tmp_path: Path):
    (tmp_path / "h.npy").write_text("precious")
    with pytest.raises(ConfigError, match="overwrite=True"):
        infer([doubled], store, out=tmp_path)
    assert (tmp_path / "h.npy").read_text() == "precious"
    infer([doubled], store, out=tmp_path, overwrite=True)
    assert (tmp_path / "h.npy").stat().st_size > 100


def test_the_folders_of_new_files_are_made_durable(store, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(outcome_module, "fsync_folder", synced.append)
    infer([doubled], store)
    file = next((store.path / "derived").rglob("h.npy"))
    assert {file.parent, file.parents[1], file.parents[2], store.path} <= set(synced)


# ---- `gnndrive clean`: unfinished computations and lock files go, all that is named or held stays


def interrupted(store: Store, name: str) -> Path:
    """The working folder of a computation that was interrupted."""
    before = set((store.path / "derived").glob("*/*"))
    with pytest.raises(KeyboardInterrupt):
        infer([doubled] * 3, store, name=name, batch_size=16, progress=interrupt)
    (found,) = {each for each in (store.path / "derived").glob("*/*") if each.is_dir()} - before
    return found


def test_what_no_record_names_goes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    infer([doubled], store)
    left = interrupted(store, "g")
    folder, lock = store.path.parent, lock_of(store.path)
    lock.touch()
    other = folder / ".other.lock"  # another program's, perhaps
    other.touch()
    unnamed = store.path / "derived" / "h" / ("0" * 16)
    unnamed.mkdir()
    clean.run(folder, dry_run=True)
    assert left.exists()
    assert lock.exists()
    clean.run(folder)
    assert capsys.readouterr().out.count(f"remove {left}") == 2
    assert [each.exists() for each in (left, lock, unnamed, other)] == [False, False, False, True]
    gnndrive.open(store.path).verify()
    assert torch.equal(gnndrive.open(store.path).h, 2 * store.tensor("x"))
    infer([doubled] * 3, store, name="g")


def test_what_a_process_holds_stays(store: Store) -> None:
    left = interrupted(store, "g")
    (found,) = unfinished(store.path.parent)
    lock = try_lock(left.parent / ".lock")
    held = try_lock(lock_of(store.path))
    assert unfinished(store.path.parent) == []
    assert not found.clean()
    clean.run(store.path.parent)
    assert left.exists()
    assert lock_of(store.path).exists()
    os.close(lock)
    os.close(held)
    (store.path / "derived" / "g.json").write_text("{")
    assert unfinished(store.path.parent) == []
    (store.path / "derived" / "g.json").unlink()
    assert found.clean()

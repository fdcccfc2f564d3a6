"""`gnndrive clean`: unfinished computations and lock files go, all that is named or held stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch_geometric.nn import GraphSAGE

import gnndrive as gd
from gnndrive import Store, infer
from gnndrive.cli.commands import clean
from gnndrive.common.file_lock import try_lock
from gnndrive.inference.unfinished import unfinished
from tests.inference.conftest import COLUMNS


def interrupted(store: Store, name: str) -> Path:
    """The working folder of a computation that was interrupted."""

    def interrupt(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    before = set((store.path / "derived").glob("*/*"))
    with pytest.raises(KeyboardInterrupt):
        infer(GraphSAGE(COLUMNS, 8, 3, 2), store, name=name, batch_size=16, progress=interrupt)
    (found,) = {each for each in (store.path / "derived").glob("*/*") if each.is_dir()} - before
    return found


def test_what_no_record_names_goes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    infer(GraphSAGE(COLUMNS, 8, 1, 3), store)
    left = interrupted(store, "g")
    folder, lock = store.path.parent, store.path.parent / f".{store.path.name}.lock"
    lock.touch()
    other = folder / ".other.lock"  # another program's, perhaps
    other.touch()
    (store.path / "derived" / "h" / ("0" * 16)).mkdir()
    clean.run(folder, dry_run=True)
    assert left.exists()
    assert lock.exists()
    clean.run(folder)
    assert capsys.readouterr().out.count(f"remove {left}") == 2
    assert not left.exists()
    assert not lock.exists()
    assert other.exists()
    assert not (store.path / "derived" / "h" / ("0" * 16)).exists()
    gd.open(store.path).verify()
    assert gd.open(store.path).h.shape == (store.num_nodes, 3)
    infer(GraphSAGE(COLUMNS, 8, 3, 2), store, name="g")


def test_what_a_process_holds_stays(store: Store) -> None:
    left = interrupted(store, "g")
    (found,) = unfinished(store.path.parent)
    lock = try_lock(left.parent / ".lock")
    held = try_lock(store.path.parent / f".{store.path.name}.lock")
    assert unfinished(store.path.parent) == []
    assert not found.clean()
    clean.run(store.path.parent)
    assert left.exists()
    assert (store.path.parent / f".{store.path.name}.lock").exists()
    os.close(lock)
    os.close(held)
    (store.path / "derived" / "g.json").write_text("{")
    assert unfinished(store.path.parent) == []
    (store.path / "derived" / "g.json").unlink()
    assert found.clean()

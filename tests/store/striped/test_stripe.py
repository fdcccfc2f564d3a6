"""Stripes hold the rows of their store, whatever ends the call that makes them."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import gnndrive as gd
from gnndrive import ConfigError, Store, StoreError
from gnndrive.store.layout.folder import unfinished_layouts
from gnndrive.store.striped.format import (
    STRIPE_JSON,
    STRIPES,
    StripedRows,
    stretch_rows,
    striped_path,
)
from gnndrive.store.striped.stripe import remove_stripes, stripe
from gnndrive.store.striped.striped import stripes_of
from gnndrive.store.striped.verify import verify_stripes
from tests.store.kills import calls_of, fails_at, killed_at, tree
from tests.store.striped.conftest import NODES, make_store


def rows_in(store: Store) -> np.ndarray:
    """The bytes of all rows of x, put together from the stripes; uint8 [rows, row_bytes]."""
    rows = stripes_of(store).tables["nodes/x"]
    disks, own = rows.split(np.arange(NODES))
    files = [np.load(file.path).view(np.uint8) for file in rows.files]
    assert sum(map(len, files)) == NODES
    return np.array([files[disk][row] for disk, row in zip(disks, own, strict=True)])


def x_of(store: Store) -> np.ndarray:
    return np.load(store.table("x").path).view(np.uint8)


@pytest.mark.parametrize(
    ("count", "dtype", "columns"), [(2, "float32", 7), (3, "float16", 1), (3, "uint8", 1300)]
)
def test_stripes_have_the_rows_bit_for_bit(tmp_path, disks, count, dtype, columns):
    store = make_store(tmp_path / "s.gnn", dtype, columns)
    told = list[str]()
    info = stripe(store, disks[:count], lambda what, done, total: told.append(what))
    assert np.array_equal(rows_in(store), x_of(store))
    rows = stripes_of(store).tables["nodes/x"]
    counts = [file.row_count for file in rows.files]
    assert max(counts) - min(counts) <= rows.stretch_rows
    assert (set(told), info.nbytes) == ({"writing rows of nodes/x"}, sum(info.sizes().values()))
    assert verify_stripes(striped_path(store), store) == info
    assert gd.open(store.path).identity == store.identity


def test_a_stretch_is_a_power_of_two_of_rows_that_is_long_enough(monkeypatch):
    monkeypatch.setattr("gnndrive.store.striped.format.STRETCH_BYTES_MIN", 4 << 20)
    assert [stretch_rows(size) for size in (1, 400, 512, 513, 4 << 20, 5 << 20)] == [
        4 << 20, 16384, 8192, 8192, 1, 1,
    ]  # fmt: skip


def test_runs_are_where_split_says():
    rows = StripedRows((None,) * 3, 8)  # type: ignore[arg-type]
    for first, last in ((0, 100), (5, 9), (16, 24), (31, 99)):
        found = list(rows.runs(first, last))
        assert [run[1] for run in found] + [last] == [first] + [run[2] for run in found]
        disks = np.concatenate([np.full(run[2] - run[1], run[0]) for run in found])
        own = np.concatenate([np.arange(run[2] - run[1]) + run[3] for run in found])
        assert np.array_equal(rows.split(np.arange(first, last)), [disks, own])


def test_a_kill_at_any_call_leaves_what_the_same_call_finishes(store, disks, monkeypatch):
    monkeypatch.setattr("gnndrive.store.striped.stripe.PART_BYTES", 20_000)  # two parts
    monkeypatch.setattr("gnndrive.store.striped.stripe.SYNC_BYTES", 1)

    def run() -> None:
        stripe(store, disks)

    before = tree(store.path.parent)
    calls = calls_of(run)
    whole = rows_in(store)
    assert np.array_equal(whole, x_of(store))
    remove_stripes(store)
    assert tree(store.path.parent) == before
    resumed = 0
    for at in range(1, calls + 1):
        assert killed_at(run, at), at
        if stripes_of(store) is None:
            resumed += bool(list(store.path.glob("striped/.*/*.rows.json")))
            run()
        assert np.array_equal(rows_in(store), whole), at
        remove_stripes(store)
        assert tree(store.path.parent) == before, at
    assert resumed > 3


def test_a_call_that_goes_on_reads_only_the_rest(store, disks, monkeypatch):
    monkeypatch.setattr("gnndrive.store.striped.stripe.PART_BYTES", 20_000)
    monkeypatch.setattr("gnndrive.store.striped.stripe.SYNC_BYTES", 1)
    first, second = list[int](), list[int]()

    def stop(what: str, done: int, total: int) -> None:
        first.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stripe(store, disks, stop)
    stripe(store, disks, lambda what, done, total: second.append(done))
    assert first[0] < second[0]
    assert second[-1] == NODES * 28
    assert np.array_equal(rows_in(store), x_of(store))


def test_files_that_were_lost_are_written_again(store, disks, monkeypatch):
    """Also if the new ones get the old ones' inodes."""
    monkeypatch.setattr("gnndrive.store.striped.stripe.PART_BYTES", 20_000)
    monkeypatch.setattr("gnndrive.store.striped.stripe.SYNC_BYTES", 1)

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stripe(store, disks, stop)
    (lost,) = disks[1].glob("*/nodes/x.npy")
    os.truncate(lost, 0)
    stripe(store, disks)
    assert np.array_equal(rows_in(store), x_of(store))


def test_a_disk_that_is_too_full_is_refused_before_a_file_is_made(store, disks, monkeypatch):
    free = {disks[0]: 1 << 30, disks[1]: 10}
    monkeypatch.setattr("gnndrive.store.striped.stripe.free_bytes", lambda path: free[path.parent])
    numbers = iter(range(100, 200))
    device = {each: next(numbers) for each in disks}
    stat = Path.stat

    def fake(path: Path, **given: object) -> os.stat_result:
        found = stat(path, **given)
        if path.parent not in device:
            return found
        return os.stat_result([*found[:2], device[path.parent], *found[3:]])

    monkeypatch.setattr(Path, "stat", fake)
    with pytest.raises(StoreError, match=f"too full for {disks[1]}.*it needs") as caught:
        stripe(store, disks[:2])
    assert "larger disk" in str(caught.value)
    assert not list(store.path.parent.glob("disk*/*/nodes"))
    free[disks[1]] = 1 << 30
    stripe(store, disks[:2])
    assert np.array_equal(rows_in(store), x_of(store))


def test_a_disk_that_fills_meanwhile_is_an_error_and_the_same_call_goes_on(
    store, disks, monkeypatch
):
    full = OSError(errno.ENOSPC, "simulated")
    calls = calls_of(lambda: stripe(store, disks))
    remove_stripes(store)
    failed = 0
    for at in range(1, calls + 1):
        error = fails_at(lambda: stripe(store, disks), monkeypatch, at, full, lasting=True)
        failed += error is not None
        assert error is None or "full" in str(error), error
        if stripes_of(store) is None:
            stripe(store, disks)
        assert np.array_equal(rows_in(store), x_of(store)), at
        remove_stripes(store)
    assert failed > 10


def test_paths_that_cannot_be_used_are_refused(store, disks):
    for paths, why in (
        (disks[:1], "give 2 to 64"),
        ([disks[0], disks[0]], "named twice"),
        ([disks[0], disks[0] / "none"], "mount its disk"),
        ([disks[0], f"{disks[1]}\n"], "no path"),
    ):
        with pytest.raises(ConfigError, match=why):
            stripe(store, paths)
    assert not list(store.path.glob("striped/*"))
    stripe(store, disks)
    with pytest.raises(ConfigError, match=r"there already.*gnndrive stripe STORE --remove"):
        stripe(store, disks)


def test_a_store_without_features_has_nothing_to_stripe(tmp_path, disks):
    store = gd.write_store(
        tmp_path / "n.gnn", indptr=np.zeros(3, int), indices=np.empty(0, int), nodes={}
    )
    with pytest.raises(ConfigError, match="no features to stripe"):
        stripe(store, disks)
    with pytest.raises(ConfigError, match="has no stripes"):
        remove_stripes(store)


def test_a_disk_that_is_not_there_is_named_with_what_to_do(store, disks):
    stripe(store, disks)
    disks[2].rename(disks[2].with_name("away"))
    remedy = "mount its disk, or run `gnndrive stripe .* --remove`"
    with pytest.raises(StoreError, match=f"{disks[2]}.*{remedy}"):
        stripes_of(store)
    (left,) = remove_stripes(store)
    assert left.parent == disks[2]
    assert stripes_of(store) is None
    assert not list(disks[0].iterdir())


def test_damaged_and_other_files_are_refused(store, disks):
    stripe(store, disks)
    folders = stripes_of(store).folders
    mark, file = folders[1] / STRIPE_JSON, folders[1] / "nodes/x.npy"
    for path, content in (
        (mark, (folders[0] / STRIPE_JSON).read_bytes()),
        (mark, b"{}"),
        (file, file.read_bytes()[:-1]),
        (file, file.read_bytes().replace(b"<f4", b"<i4")),
    ):
        whole = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(StoreError, match=str(path.parent if path == mark else path)):
            stripes_of(store)
        path.write_bytes(whole)
    file.rename(file.with_name("y.npy"))
    os.symlink(file.with_name("y.npy"), file)
    with pytest.raises(StoreError, match="cannot be opened"):
        stripes_of(store)


def test_verify_finds_a_wrong_byte(store, disks):
    stripe(store, disks)
    file = stripes_of(store).folders[2] / "nodes/x.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match=f"rows of {file} are not those"):
        verify_stripes(striped_path(store), store)


def test_a_record_that_names_other_folders_neither_opens_nor_removes_them(store, disks, tmp_path):
    """As a store from a stranger may."""
    stripe(store, disks)
    other = make_store(tmp_path / "other.gnn", columns=8)
    shutil.copytree(store.path / "striped", other.path / "striped")
    with pytest.raises(StoreError, match="has changed since"):
        stripes_of(other)
    record = striped_path(other) / "striped.json"
    document = json.loads(record.read_text())
    document["store"] = other.identity
    record.write_text(json.dumps(document))
    with pytest.raises(StoreError):
        stripes_of(other)
    remove_stripes(other)
    assert np.array_equal(rows_in(store), x_of(store))


def test_a_copy_of_a_store_leaves_the_stripes_that_are_not_its_own(store, disks, tmp_path):
    stripe(store, disks)
    copy = gd.open(shutil.copytree(store.path, tmp_path / "copy.gnn"))
    assert np.array_equal(rows_in(copy), x_of(store))
    assert remove_stripes(copy) == list(stripes_of(store).folders)
    with pytest.raises(ConfigError, match=f"has the rows of {store.path}"):
        stripe(copy, disks)
    moved = gd.open(shutil.move(store.path, tmp_path / "moved.gnn"))
    assert np.array_equal(rows_in(moved), x_of(moved))
    assert remove_stripes(moved) == []
    assert not list(disks[0].iterdir())


def test_clean_removes_unfinished_stripes_from_all_disks(store, disks):
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stripe(store, disks, stop)
    (left,) = unfinished_layouts(store.path / "striped", STRIPES)
    assert left.remedy == "remove"
    assert left.clean()
    assert [list(disk.iterdir()) for disk in disks] == [[], [], []]

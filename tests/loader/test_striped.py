"""Loaders of a striped store read its stripes: the same batches, and errors that name the disk."""

import errno
from itertools import islice
from pathlib import Path

import pytest

import gnndrive
from gnndrive import NeighborLoader, ReadError, Store, StoreError
from gnndrive.store.striped.stripe import remove_stripes, stripe
from gnndrive.store.striped.striped import stripes_of
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_all_same, check, simulate


@pytest.fixture
def striped(data, tmp_path, monkeypatch) -> Store:
    """The graph as a store with stripes on three disks; 16 rows are a stretch."""
    monkeypatch.setattr("gnndrive.store.striped.format.STRETCH_BYTES_MIN", 16 * 33 * 4)
    return with_stripes(gnndrive.from_data(data, tmp_path / "graph.gnn"), 3)


def with_stripes(store: Store, disks: int) -> Store:
    folders = [Path(f"{store.path}-{disk}") for disk in range(disks)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    stripe(store, folders)
    return store


def staging_of(loader: NeighborLoader) -> int:
    (nbytes,) = [line.nbytes for line in loader.plan().lines if line.what == "staging"]
    return nbytes


def own_rows_lost(store: Store) -> None:
    """Have all rows of the store's own file be zeros: who reads them is noticed."""
    path = Path(store.table("x").path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


@pytest.mark.parametrize("disks", [2, 3])
@pytest.mark.parametrize("strategy", ["gnndrive", "ginex", "lsm-gnn"])
def test_the_batches_are_those_without_stripes(striped, data, make, strategy, disks):
    given = {"data": striped, "strategy": strategy, "shuffle": True, "seed": 3}
    remove_stripes(striped)
    whole = list(make(**given))
    with_stripes(striped, disks)
    own_rows_lost(striped)
    assert_all_same(make(**given), whole)
    for batch in whole:
        check(batch, data)


def test_rolling_reads_what_it_has_not_copied_from_stripes(striped, data, make):
    loader = make(data=striped, strategy="rolling", shuffle=True)
    for batch in (*loader, *loader):
        check(batch, data)


def test_a_healthy_disk_with_noise_changes_nothing(striped, data, make, monkeypatch, seeds):
    own_rows_lost(striped)
    for seed in seeds(3):
        simulate(monkeypatch, seed, NOISE)
        for batch in make(data=striped, engine="simulated"):
            check(batch, data)


def test_a_bad_sector_is_an_error_at_its_batchs_turn_that_names_the_stripe(
    striped, data, make, monkeypatch
):
    """Row 100 lies in stretch 6: on disk 0, behind the 32 rows of stretches 0 and 3."""
    bad = 4096 + (32 + 4) * 33 * 4
    simulate(monkeypatch, 1, Faults(eio_offsets=((bad, bad + 33 * 4),)))
    loader, delivered = make([], data=striped, engine="simulated", gap=0), []
    with pytest.raises(ReadError) as caught:  # noqa: PT012
        for batch in loader:
            check(batch, data)
            delivered.append(batch)
    assert len(delivered) == 100 // 16
    error = caught.value
    assert error.path == stripes_of(striped).tables["nodes/x"].files[0].path
    assert error.errno == errno.EIO


def test_an_epoch_that_is_closed_in_the_middle_ends_and_the_next_begins(striped, data, make):
    loader = make(data=striped)
    for _ in range(3):
        for batch in islice(loader, 4):
            check(batch, data)
    loader.close()


def test_each_disk_has_its_own_requests_and_staging_in_the_plan(striped, make, monkeypatch):
    one = staging_of(make(data=striped))
    numbers = {folder: number for number, folder in enumerate(stripes_of(striped).folders)}
    monkeypatch.setattr("gnndrive.store.striped.striped.disk_of", numbers.get)
    assert staging_of(make(data=striped)) == 3 * one
    assert f"from stripes on {striped.path}-0, " in str(make(data=striped).plan())


def test_a_disk_that_is_not_there_is_an_error_with_what_to_do(striped, make):
    Path(f"{striped.path}-1").rename(f"{striped.path}-away")
    with pytest.raises(StoreError, match=f"{striped.path}-1.*gnndrive stripe .* --remove"):
        make(data=striped).plan()
    remove_stripes(striped)
    assert len(list(make(data=striped))) == 25


def test_packs_keep_to_their_own_rows(striped, make):
    """And so say nothing of a disk that is not there."""
    loader = {"data": striped, "strategy": "diskgnn", "shuffle": False}
    gnndrive.pack(striped, [4, 3], batch_size=16, shuffle=False)
    Path(f"{striped.path}-1").rename(f"{striped.path}-away")
    assert len(list(make(**loader))) == 25

"""disk.json is written whole, and used only if it is valid and was measured on the store's disk."""

import errno
import json
import os
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.store.calibration import (
    DEFAULT_GAP_BYTES,
    DISK_JSON,
    checked_gap,
    disk_identity,
    gap_bytes,
    load_calibration,
    save_calibration,
)
from gnndrive.store.reader import open as open_store

DISK = DiskIdentity("8:1", "model", "serial", "ext4")
COST = DiskCost(1e-5, 5e-10, 128, "uring", "2026-01-01T00:00:00+00:00", DISK, ((512, 1e-5),))


@pytest.fixture
def cost(store):
    return replace(COST, disk=disk_identity(store.path))


def test_saved_costs_are_loaded(store, cost, synced):
    assert load_calibration(store) is None
    assert checked_gap(None, store, 65536) == DEFAULT_GAP_BYTES
    assert save_calibration(store, cost) == store.path / DISK_JSON
    assert load_calibration(store) == cost
    assert checked_gap(None, store, 65536) == gap_bytes(cost, 65536) != DEFAULT_GAP_BYTES
    assert str(store.path) in synced
    assert any(DISK_JSON in name for name in synced)
    later = replace(cost, request_s=2e-5, byte_s=0.0)
    save_calibration(store, later)
    assert load_calibration(store) == later
    assert [path.name for path in store.path.glob("*disk*")] == [DISK_JSON]
    open_store(store.path).verify()


@pytest.mark.filterwarnings("error")
def test_costs_of_another_disk_are_not_loaded(store, cost):
    for name in ("model", "serial", "file_system"):
        save_calibration(store, replace(cost, disk=replace(cost.disk, **{name: "another"})))
        assert load_calibration(store) is None
    assert DISK.same_as(replace(DISK, number="8:17"))  # after another boot
    nameless = replace(DISK, serial="")
    assert nameless.same_as(nameless)
    assert not nameless.same_as(replace(nameless, number="8:17"))


def broken(change):
    content = {"format": 1, **json.loads(json.dumps(asdict(COST)))}
    change(content)
    return json.dumps(content)


def test_a_damaged_file_warns_and_is_ignored(store):
    for content in (
        "",
        "null",
        "\xff",
        "[" * 60_000,
        " " * 70_000,
        broken(lambda c: c.update(format=2)),
        broken(lambda c: c.pop("request_s")),
        broken(lambda c: c.update(request_s=-1)),
        broken(lambda c: c.update(request_s="1e-5")),
        broken(lambda c: c.update(byte_s=1e999)),
        broken(lambda c: c.update(byte_s=True)),
        broken(lambda c: c.update(write_byte_s="1e-9")),
        broken(lambda c: c.update(byte_s=10**400)),
        broken(lambda c: c.update(depth="deep")),
        broken(lambda c: c.update(date="\x1b[2J")),
        broken(lambda c: c["disk"].update(serial=3)),
        broken(lambda c: c.update(points=[[512]])),
    ):
        (store.path / DISK_JSON).write_text(content)
        with pytest.warns(RuntimeWarning, match="run `gnndrive bench disk"):
            assert load_calibration(store) is None
    open_store(store.path).verify()


def test_a_file_of_before_writing_was_measured_is_read(store, cost):
    content = {"format": 1, **asdict(cost)}
    del content["write_byte_s"]
    (store.path / DISK_JSON).write_text(json.dumps(content))
    assert load_calibration(store) == cost


def test_a_link_or_a_pipe_is_not_followed(store, tmp_path):
    (store.path / DISK_JSON).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match="bench disk"):
        assert load_calibration(store) is None
    (store.path / DISK_JSON).unlink()
    os.mkfifo(store.path / DISK_JSON)
    with pytest.warns(RuntimeWarning, match="not a plain file"):
        assert load_calibration(store) is None


def test_a_disk_that_is_full_leaves_the_old_file(store, cost, monkeypatch):
    save_calibration(store, cost)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(StoreError, match=r"No space left.*give tuning=Tuning.gap=…. to the loader"):
        save_calibration(store, replace(cost, request_s=1.0))
    assert load_calibration(store) == cost
    assert [path.name for path in store.path.glob("*disk*")] == [DISK_JSON]


def test_the_gap_of_given_costs():
    assert gap_bytes(None, 65536) == DEFAULT_GAP_BYTES
    assert gap_bytes(None, 4096) == gap_bytes(replace(COST, byte_s=0.0), 4096) == 4096
    for request_s, byte_s, gap in (
        (1e-5, 1e-9, 9728),
        (1e-5, 1e-7, 0),
        (1e-5, 1e-10, 24576),
        (0.0, 1e-9, 0),
        (0.0, 0.0, 24576),
    ):
        assert gap_bytes(replace(COST, request_s=request_s, byte_s=byte_s), 65536) == gap


def test_a_given_gap_is_a_size(store):
    for gap, nbytes in (("8KiB", 8192), (1000, 1000), (0, 0)):
        assert checked_gap(gap, store, 4096) == nbytes
    for gap in (-1, True, "wide"):
        with pytest.raises(ConfigError, match=f"gap={gap!r}"):
            checked_gap(gap, store, 65536)

"""The calibration: a line fitted to known points, and a real measurement of a small store."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.cli.measure import calibrate
from gnndrive.cli.measure.calibrate import READ_BYTES, ROUNDS, fit, medians, misfit
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import DiskCost, DiskIdentity, EngineSettings
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.store.calibration import disk_identity, load_calibration

from .conftest import make_store


@settings(max_examples=20)
@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7))
def test_points_on_a_line_give_the_line(request_s, byte_s):
    points = [(size, request_s + size * byte_s) for size in READ_BYTES]
    assert fit(points) == pytest.approx((request_s, byte_s), rel=1e-6)


def test_the_line_is_fitted_to_medians_and_neither_constant_is_negative():
    line = [(size, 1e-5 + size * 1e-9) for size in READ_BYTES]
    outlier = [(size, t * 50) for size, t in line]
    assert fit(line * 2 + outlier) == pytest.approx((1e-5, 1e-9))
    assert medians([(2, 5.0), (1, 1.0), (2, 7.0), (2, 90.0)]) == [(1, 1.0), (2, 7.0)]
    assert fit([(512, 2e-5), (4096, 1.5e-5), (65536, 1e-5)])[1] == 0
    request_s, byte_s = fit([(512, 1e-9), (4096, 1e-5), (65536, 1e-3)])
    assert request_s == 0 < byte_s
    disk = DiskIdentity("8:1", "", "", "ext4")
    points = ((512, 1e-5), (4096, 2e-5))
    assert misfit(DiskCost(1e-5, 0.0, 1, "", "", disk, points)) == pytest.approx(0.5)
    assert misfit(DiskCost(1e-5, 0.0, 1, "", "", disk, ())) == 0


def test_the_line_reaches_the_loaders_largest_read():
    """On a disk that is saturated at 64 KiB, the cost of a byte lies between its two slopes."""
    assert READ_BYTES[-1] == block_bytes(row_bytes=512)
    dear = [(size, 5e-6 + max(size * 1e-10, size * 2e-10 - 6e-6)) for size in READ_BYTES]
    assert 1.2e-10 < fit(dear)[1] < 2e-10


def test_a_calibration_is_measured_and_saved(store, monkeypatch):
    asked, real = [], calibrate.run
    monkeypatch.setattr(calibrate, "run", lambda given: asked.append(given) or real(given))
    assert load_calibration(store) is None
    cost = calibrate.calibrate(store, depth=4, ioengine="threads", reads=10)
    assert load_calibration(store) == cost
    assert (cost.depth, cost.engine, cost.disk) == (4, "threads", disk_identity(store.path))
    assert [size for size, _ in cost.points] == list(READ_BYTES) * ROUNDS
    assert cost.request_s + cost.byte_s > 0
    assert {each.inflight_bytes for each in asked} == {EngineSettings().inflight_bytes}
    store.verify()  # which ignores disk.json


def test_a_store_too_small_to_measure_is_refused(tmp_path):
    tiny = make_store(tmp_path / "tiny.gnn", nodes=0)
    with pytest.raises(ConfigError, match="needs no calibration"):
        calibrate.calibrate(tiny, reads=1, features="x")


def test_a_read_only_folder_is_refused_before_measuring(store, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(calibrate, "run", None)
    with pytest.raises(StoreError, match="make the store's folder writable"):
        calibrate.calibrate(store)

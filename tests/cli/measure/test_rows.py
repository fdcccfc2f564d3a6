"""Rows of batches: their numbers, their requests, and where they land."""

from dataclasses import replace

import numpy as np
import pytest

from gnndrive.cli.measure import rows, text
from gnndrive.cli.measure.calibrate import READ_BYTES
from gnndrive.cli.measure.rows import RowsOptions
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.store.calibration import disk_identity, save_calibration

SOME = RowsOptions(share=0.05, iodepth=8)


def test_batches_are_a_share_of_all_rows(store):
    drawn = list(rows.wanted_rows(store, SOME))
    assert len(drawn) == 3
    for part in drawn:
        assert 80 < len(part) < 220
        assert (np.diff(part) > 0).all()
    assert len(set(map(bytes, drawn))) == 3
    again = list(rows.wanted_rows(store, SOME))
    assert all((a == b).all() for a, b in zip(drawn, again, strict=True))
    (every,) = rows.wanted_rows(store, RowsOptions(share=1.0, batches=1))
    assert (every == np.arange(3000)).all()


def test_batches_are_the_rows_of_samples(store):
    options = RowsOptions(batches=2, batch_size=10, fanout=(3, 2))
    drawn = list(rows.wanted_rows(store, options))
    for part in drawn:
        assert 10 < len(part) <= 10 + 30 + 60
        assert (np.diff(part) > 0).all()
    assert bytes(drawn[0]) != bytes(drawn[1])


@pytest.mark.parametrize(
    "change", [{"share": 0.0}, {"share": 1.5}, {"batches": 0}, {"batch_size": 0}]
)
def test_options_that_cannot_work_are_refused(store, change):
    with pytest.raises(ConfigError):
        rows.run(store, replace(SOME, **change))


def test_bridging_saves_requests(store):
    options = replace(SOME, ioengine="threads")
    count = sum(len(part) for part in rows.wanted_rows(store, options))
    naive = rows.run(store, replace(options, separate=True))
    assert naive.driven.rows == naive.driven.requests == count
    assert naive.driven.nbytes == 512 * count
    joint = rows.run(store, replace(options, gap=0))
    bridged = rows.run(store, options)
    assert bridged.driven.rows == joint.driven.rows == count
    assert bridged.driven.requests < joint.driven.requests < count
    assert bridged.gap_bytes == 8192
    assert bridged.predicted_s is None
    assert bridged.rows_per_s == count / bridged.driven.runtime_s


def test_each_row_lands_where_it_should(store, monkeypatch):
    """Rows land a few at a time, in three parts of memory by turns."""
    monkeypatch.setattr(rows, "LANDING_BYTES", 512 * 64)
    monkeypatch.setattr(rows, "ROWS_AT_ONCE_MIN", 64)
    landings = []
    real = rows._Plans

    class Plans(real):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            landings.append(self)

    monkeypatch.setattr(rows, "_Plans", Plans)
    result = rows.run(store, RowsOptions(share=1.0, batches=1, iodepth=8))
    assert result.driven.rows == 3000
    (plans,) = landings
    held = plans._landing.owner.view(np.float32).reshape(3 * 64, 128)
    last = np.asarray(store.array("x"))[3000 - 3000 % 64 :]
    start = 64 * (3000 // 64 % 3)
    assert (held[start : start + len(last)] == last).all()


def test_a_recalibration_predicts_the_time(store, monkeypatch):
    monkeypatch.setattr(rows, "LANDING_BYTES", 512 * 512)
    measured = []

    def point(self, nbytes, seconds):
        measured.append(nbytes)
        return nbytes, 1e-5 + nbytes * 1e-9

    monkeypatch.setattr(rows.Disk, "point", point)
    options = RowsOptions(share=0.4, batches=1, iodepth=8)
    result, alone = (rows.run(store, replace(options, recalibrate=turns)) for turns in (1, 0))
    driven = result.driven
    assert measured == list(READ_BYTES) * 3
    assert driven.rows == alone.driven.rows > 2 * 512
    assert driven.latency.lat.count == driven.requests
    assert result.predicted_s == pytest.approx(driven.requests * 1e-5 + driven.nbytes * 1e-9)


def test_a_batch_without_rows(store):
    options = RowsOptions(share=1e-9, batches=1, recalibrate=True)
    result = rows.run(store, options)
    assert (result.driven.rows, result.predicted_s) == (0, None)


def test_the_stores_calibration_predicts_the_time(store):
    disk = disk_identity(store.path)
    save_calibration(store, DiskCost(1e-5, 1e-9, 8, "uring", "2026-01-01", disk, ()))
    result = rows.run(store, replace(SOME, batches=1))
    driven = result.driven
    assert result.gap_bytes == 9728  # 10,000, in whole sectors
    assert result.predicted_s == pytest.approx(driven.requests * 1e-5 + driven.nbytes * 1e-9)
    assert "of its speed" in text.rows_report(result)
    other = DiskIdentity("0:0", "", "", "")
    save_calibration(store, DiskCost(1e-5, 1e-9, 8, "uring", "2026-01-01", other, ()))
    assert rows.run(store, replace(SOME, batches=1)).predicted_s is None

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


def test_batches_are_a_share_of_all_rows_or_those_of_samples(store):
    for options, least, most in (
        (SOME, 80, 220),
        (RowsOptions(batches=3, batch_size=10, fanout=(3, 2)), 11, 100),
    ):
        drawn, again = (list(map(bytes, rows.wanted_rows(store, options))) for _ in range(2))
        assert (drawn, len(set(drawn))) == (again, 3)
        for part in rows.wanted_rows(store, options):
            assert least <= len(part) <= most
            assert (np.diff(part) > 0).all()
    (every,) = rows.wanted_rows(store, RowsOptions(share=1.0, batches=1))
    assert (every == np.arange(3000)).all()
    result = rows.run(store, RowsOptions(share=1e-9, batches=1, recalibrate=True))
    assert (result.driven.rows, result.predicted_s) == (0, None)


@pytest.mark.parametrize(
    "change", [{"share": 0.0}, {"share": 1.5}, {"batches": 0}, {"batch_size": 0}]
)
def test_options_that_cannot_work_are_refused(store, change):
    with pytest.raises(ConfigError):
        rows.run(store, replace(SOME, **change))


def test_bridging_saves_requests(store):
    options = replace(SOME, ioengine="threads")
    count = sum(len(part) for part in rows.wanted_rows(store, options))
    naive, joint, bridged = (
        rows.run(store, replace(options, **more)) for more in ({"separate": True}, {"gap": 0}, {})
    )
    assert naive.driven.requests == count == naive.driven.nbytes // 512
    assert naive.driven.rows == bridged.driven.rows == joint.driven.rows == count
    assert bridged.driven.requests < joint.driven.requests < count
    assert (bridged.gap_bytes, bridged.predicted_s) == (8192, None)
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

"""The simulated engine: faults that are retried change no row, errors fail exactly their rows."""

import errno

import numpy as np

from gnndrive.testing.faults import NOISE, Faults, Simulated, simulated

from .conftest import UNTOUCHED


async def one_run(rows, seed, faults, count=48):
    """Read some rows in two jobs; returns the slots in the order in which they landed, and by row
    (errno, offset) of those that failed."""
    engine = Simulated(simulated(seed, faults, depth=8))
    rows.memory[:] = UNTOUCHED
    generator = np.random.default_rng(seed)
    picked = generator.choice(len(rows.content), count, replace=False)
    slots = generator.permutation(len(rows.memory))[:count].astype(np.int32)
    parts = [(each[: count // 2], each[count // 2 :]) for each in (picked, slots)]
    jobs = [(engine.read(rows.locate(*part)), *part) for part in zip(*parts, strict=True)]
    landed, failed = [], {}
    for job in reversed(jobs):
        ended, failures = await rows.ended(*job)
        landed += ended
        failed |= {picked[slots == slot][0]: (code, at) for slot, code, at in failures}
    await engine.aclose()
    return landed, failed


async def test_retried_faults_change_no_byte(rows_of, seeds):
    tables = [rows_of(row_bytes, 400) for row_bytes in (3, 100, 512, 800, 1536)]
    orders = set()
    for seed in seeds(20):
        landed, failed = await one_run(tables[seed % len(tables)], seed, NOISE)
        assert not failed
        orders.add(tuple(landed))
    assert len(orders) == 20


async def test_rows_with_random_errors_never_land(rows_of, seeds):
    faults = Faults(short=0.1, eagain=0.1, eio=0.1, delay_turns_max=2)
    tables = [rows_of(row_bytes, 400) for row_bytes in (100, 512, 800)]
    runs = [await one_run(tables[seed % len(tables)], seed, faults) for seed in seeds(15)]
    assert {code for _, failed in runs for code, _ in failed.values()} == {errno.EIO}


async def test_a_bad_sector_fails_the_rows_that_touch_it(rows_of, seeds):
    rows, bad = rows_of(300, 200), (4096 + 30 * 512, 4096 + 31 * 512)
    faults = Faults(short=0.2, eintr=0.1, eio_offsets=(bad,))
    starts = 4096 + np.arange(200) * 300  # a row that is read alone takes its whole sectors along
    touching = (starts // 512 * 512 < bad[1]) & (-(-(starts + 300) // 512) * 512 > bad[0])
    for seed in seeds(3):
        _, failed = await one_run(rows, seed, faults, count=200)
        assert sorted(failed) == np.flatnonzero(touching).tolist()
        assert {code for code, _ in failed.values()} == {errno.EIO}
        assert all(bad[0] - 512 <= offset < bad[1] for _, offset in failed.values())

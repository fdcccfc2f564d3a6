"""The simulated engine: faults that are retried change no row, errors fail exactly their rows; so
it is with writes, which take their bytes when they end."""

import errno

import numpy as np

from gnndrive.testing.faults import NOISE, Faults, Simulated, simulated

from .conftest import UNTOUCHED, drain


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


async def test_a_write_takes_its_bytes_when_it_ends(rows_of):
    rows, engine = rows_of(4096, 8), Simulated(simulated())
    engine.paused = True
    engine.read(rows.writes(np.arange(8), np.arange(8, dtype=np.int32)))
    assert rows.lost() == list(range(8))
    assert engine.step(4) == 4
    lost = rows.lost()
    assert len(lost) == 4
    rows.memory[:] = UNTOUCHED  # too early
    await engine.aclose()
    assert rows.lost() == lost
    stored = np.fromfile(rows.file.path, np.uint8)[4096:].reshape(8, 4096)
    assert (stored[lost] == UNTOUCHED).all()


async def test_rows_whose_write_fails_are_told(rows_of, seeds):
    faults = Faults(short=0.2, eagain=0.1, eintr=0.1, eio=0.1, enospc=0.1, delay_turns_max=2)
    codes = set()
    for seed in seeds(5):
        rows, engine = rows_of(8192, 60), Simulated(simulated(seed, faults, depth=8))
        job = rows.writes(np.arange(60), np.arange(60, dtype=np.int32))
        _, failures = await drain(engine, job)
        await engine.aclose()
        assert set(rows.lost()) <= {slot for slot, _, _ in failures}
        assert all(offset == 4096 + slot * 8192 for slot, _, offset in failures)
        codes |= {code for _, code, _ in failures}
    assert codes == {errno.EIO, errno.ENOSPC}


async def test_a_full_disk_can_be_read(rows_of):
    engine = Simulated(simulated(faults=Faults(enospc=1)))
    await rows_of(512, 100).bring(engine, np.arange(100))
    await engine.aclose()

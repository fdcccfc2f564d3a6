"""The simulated engine: faults that are retried change no row, errors fail exactly their rows."""

import errno

import numpy as np

from gnndrive.testing.faults import NOISE, POISON, Faults, Simulated, simulated

from .conftest import drain


def picks(seed, rows, count):
    generator = np.random.default_rng(seed)
    picked = generator.choice(len(rows.content), count, replace=False)
    return picked, generator.permutation(len(rows.memory))[:count].astype(np.int32)


async def one_run(rows, seed, faults, count=48):
    engine = Simulated(simulated(seed, faults, depth=8))
    rows.memory[:] = POISON
    picked, slots = picks(seed, rows, count)
    half = count // 2
    first = engine.read(rows.table.locate(picked[:half], slots[:half], rows.landing))
    landed, failures = await drain(
        engine, rows.table.locate(picked[half:], slots[half:], rows.landing)
    )
    landed = landed.tolist()
    async for stretch in first:
        landed += stretch.slots.tolist()
        failures += stretch.failures.tolist()
    await engine.aclose()
    return picked, slots, landed, failures, engine


async def test_retried_faults_change_no_byte(rows_of, seeds):
    tables = [rows_of(row_bytes, 400) for row_bytes in (3, 100, 512, 800, 1536)]
    orders = set()
    for seed in seeds(20):
        rows = tables[seed % len(tables)]
        picked, slots, landed, failures, _ = await one_run(rows, seed, NOISE)
        assert not failures
        assert sorted(landed) == sorted(slots)
        assert rows.wrong(picked, slots) == 0
        orders.add(tuple(landed))
    assert len(orders) == 20


async def test_rows_with_random_errors_never_land(rows_of, seeds):
    faults = Faults(short=0.1, eagain=0.1, eio=0.1, delay_turns_max=2)
    tables = [rows_of(row_bytes, 400) for row_bytes in (100, 512, 800)]
    seen = 0
    for seed in seeds(15):
        rows = tables[seed % len(tables)]
        picked, slots, landed, failures, _ = await one_run(rows, seed, faults)
        failed = [slot for slot, _, _ in failures]
        assert sorted(landed + failed) == sorted(slots)
        assert {code for _, code, _ in failures} <= {errno.EIO}
        row_of_slot = np.zeros(len(rows.memory), np.int64)
        row_of_slot[slots] = picked
        assert rows.wrong(row_of_slot[landed], np.array(landed)) == 0
        seen += len(failed)
    assert seen


async def test_a_bad_sector_fails_the_rows_that_touch_it(rows_of, seeds):
    rows = rows_of(300, 200)
    for seed in seeds(3):
        bad = (4096 + 30 * 512, 4096 + 31 * 512)
        faults = Faults(short=0.2, eintr=0.1, eio_offsets=(bad,))
        picked, slots, landed, failures, _ = await one_run(rows, seed, faults, count=200)
        first, last = 30 * 512 // 300, (31 * 512 - 1) // 300
        touching = set()
        for row in range(200):  # a row read alone takes its whole sectors along
            start, stop = 4096 + row * 300, 4096 + (row + 1) * 300
            if start // 512 * 512 < bad[1] and -(-stop // 512) * 512 > bad[0]:
                touching.add(row)
        assert set(range(first, last + 1)) <= touching
        row_of_slot = dict(zip(slots.tolist(), picked.tolist(), strict=True))
        assert {row_of_slot[slot] for slot, _, _ in failures} == touching
        assert {code for _, code, _ in failures} == {errno.EIO}
        assert all(bad[0] - 512 <= offset < bad[1] for _, _, offset in failures)
        assert len(landed) == 200 - len(touching)

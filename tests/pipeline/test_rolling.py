"""Rows that are copied ahead, when the disk is full or fails; test_rules.py takes the waits out."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import lib
from gnndrive.common.io.direct_file import DirectReader
from gnndrive.disk import block_file
from gnndrive.disk.engines.simulated import Request, Simulated
from gnndrive.disk.tiers.rolled import CLASSES, Rolled, least_kept
from gnndrive.testing.simulation import InlineWorkers, Scenario, Simulation, _LimitedTrace
from tests.pipeline.scenarios import (
    NOISE,
    ROLLING,
    expected_nodes,
    held,
    lease_once,
    rolled_of,
    run_one,
    unreadable,
)  # fmt: skip
from tests.pipeline.tight import Refusing, in_virtual_loop

Patch = pytest.MonkeyPatch
FULL = OSError(errno.ENOSPC, "simulated")
RUN = InlineWorkers(before=True).run


def refuse(patch: Patch, owner: Any, name: str, error: Exception, after: int = 0) -> None:
    """Calls of `owner.name` raise `error` after so many that did not."""
    called, left = getattr(owner, name), [after]

    def call(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return called(*given)

    patch.setattr(owner, name, call)


def fail(patch: Patch, which: Callable[[Request], bool], code: int) -> None:
    """Every 13th of the requests `which` fails with `code`."""
    drawn, count = Simulated._draw_result, [0]

    def draw(engine: Simulated, request: Request) -> int | None:
        count[0] += which(request)
        return -code if which(request) and count[0] % 13 == 0 else drawn(engine, request)

    patch.setattr(Simulated, "_draw_result", draw)


def no_room(*given: Any) -> bool:
    return False


def of_copies(request: Request) -> bool:
    """Whether a request reads copies: their file has no name, so its path is the folder's."""
    return not request.write and Path(request.job.path).is_dir()


FAULTS: dict[str, tuple[Callable[[Patch], object], str]] = {
    "no file": (lambda p: refuse(p, block_file, "unnamed_file", FULL), "no file for rows"),
    "no sample": (lambda p: p.setattr(_LimitedTrace, "_put_record", no_room), "no room"),
    "warning": (lambda p: refuse(p, block_file, "unnamed_file", RuntimeWarning("no")), ": no"),
    "full": (lambda p: refuse(p, os, "posix_fallocate", FULL), "too full"),
    "full later": (lambda p: refuse(p, os, "posix_fallocate", FULL, 2), "too full"),
    "full in writes": (lambda p: fail(p, lambda request: request.write, errno.ENOSPC), "too full"),
    "writes": (lambda p: fail(p, lambda request: request.write, errno.EIO), "writing rows"),
    "table": (lambda p: refuse(p, DirectReader, "read", ReadError("x", 0, errno.EIO), 60), "EIO"),
    "copies": (lambda p: fail(p, of_copies, errno.EIO), ""),
}


@pytest.mark.parametrize("what", FAULTS)
@in_virtual_loop
async def test_what_cannot_be_copied_comes_from_below(wide, seeds, what, monkeypatch, recwarn):
    """All batches come, after one warning; no block is lost, and a pass that fails is over."""
    drop, message = FAULTS[what]
    for seed in seeds(2):
        with monkeypatch.context() as patch:
            drop(patch)
            simulation = Simulation(Scenario(wide, batches=16, faults=NOISE, **ROLLING), seed)
            with pytest.warns() if message else pytest.MonkeyPatch.context() as warned:
                delivered, error = await run_one(simulation)
            assert held(delivered) == expected_nodes(simulation.scenario, seed)
            assert error is None
            if message:
                assert [message in str(each.message) for each in warned] == [True]
            tier = simulation.table.tier
            assert isinstance(tier, Rolled)
            assert tier.found_rows or what not in ("full later", "table", "copies")
            await simulation.close()


@pytest.mark.parametrize("at", [0, 7, 15])
@pytest.mark.filterwarnings("ignore:batches are read from the table")
@in_virtual_loop
async def test_a_row_that_cannot_be_read_is_the_error_of_its_batch(wide, seeds, at, monkeypatch):
    """Also if the pass over the table comes to it long before."""
    read, bad = DirectReader.read, [0]

    def fails(reader: DirectReader, offset: int, length: int, buffer: Any) -> Any:
        if offset <= bad[0] < offset + length:
            raise ReadError(reader.path, offset, errno.EIO)
        return read(reader, offset, length, buffer)

    monkeypatch.setattr(DirectReader, "read", fails)
    for seed in seeds(2):
        scenario = Scenario(wide, batches=16, **ROLLING)
        scenario, turn = unreadable(scenario, seed, at)
        ((bad[0], _),) = scenario.faults.eio_offsets
        simulation = Simulation(scenario, seed)
        delivered, error = await run_one(simulation)
        assert held(delivered) == expected_nodes(scenario, seed)[:turn]
        assert isinstance(error, ReadError)
        await simulation.close()


@pytest.mark.parametrize(
    ("used", "slots", "most", "found"),
    [
        (10, 400, 0, (9, True)),  # 200 rows stay, two batches have 160 others
        (10, 400, 300, (10, False)),  # so much for the largest batch: the policy uses it better
        (10, 150, 0, (CLASSES, True)),
        (1, 900, 0, (2, False)),  # all rows are alike
    ],
)
def test_which_rows_stay(used, slots, most, found):
    """Of 1,000 rows, in so many classes; a batch has every tenth."""
    of_table = np.zeros(CLASSES, np.int64)
    of_table[1 : used + 1] = 1000 // used
    assert least_kept(of_table, of_table // 10, slots, most) == found


@in_virtual_loop
async def test_rows_of_high_classes_stay(wide):
    kept = set()
    for seed in range(4):
        simulation = Simulation(Scenario(wide, batches=16, **ROLLING), seed)
        _, error = await run_one(simulation)
        handle, tier = simulation.table.handle, rolled_of(simulation)
        states = [lib.gd_buffer_state_of(handle, slot) for slot in range(simulation.table.slots)]
        slots = [slot for slot, state in enumerate(states) if state == lib.GD_KEPT]
        assert error is None
        assert bool(slots) is tier.keeps
        kept |= {tier.classes[lib.gd_buffer_row_of(handle, slot)] for slot in slots}
        await simulation.close()
    assert min(kept) > 80


@in_virtual_loop
async def test_rows_without_copies_come_from_below(rows):
    simulation = Simulation(Scenario(rows, part_rows=100, **ROLLING), 0)
    tier = rolled_of(simulation)
    await tier.copy(RUN, {3: tier.missed(np.arange(0, 30, 2))})
    tier.expect(3, 3)
    await lease_once(simulation, {"x": np.arange(30)})
    assert (tier.found_rows, tier.other_rows) == (15, 15)
    tier.give(3)
    await simulation.close()


@in_virtual_loop
async def test_copies_that_fail_without_memory_for_other_reads(rows, monkeypatch):
    """They are an error of their batch, and the buffer goes on."""
    monkeypatch.setattr(Simulated, "_draw_result", lambda engine, request: failing(request))

    def failing(request: Request) -> int | None:
        return -errno.EIO if of_copies(request) else None

    simulation = Simulation(Scenario(rows, part_rows=100, **ROLLING), 0)
    tier, wanted = rolled_of(simulation), {"x": np.arange(16)}
    tier._below = Refusing(tier._below, call=0)
    await tier.copy(RUN, {0: tier.missed(wanted["x"])})
    tier.expect(0, 0)
    with pytest.raises(ReadError, match="ENOMEM"):
        await lease_once(simulation, wanted)
    await lease_once(simulation, wanted)
    tier.give(0)
    await simulation.close()


@in_virtual_loop
async def test_a_pass_that_is_cancelled_while_it_gives_up_loses_no_block(rows, monkeypatch):
    fail(monkeypatch, lambda request: request.write, errno.EIO)
    for turns in range(60):
        simulation = Simulation(Scenario(rows, faults=NOISE, **ROLLING), turns)
        tier = rolled_of(simulation)
        batches = {index: tier.missed(np.arange(index, 200, 9)) for index in range(9)}
        copying = asyncio.ensure_future(tier.copy(RUN, batches))
        for _ in range(turns):
            await asyncio.sleep(0)
        copying.cancel()
        await asyncio.wait([copying])
        assert copying.cancelled() or isinstance(copying.exception(), StoreError)
        await simulation.close()


@in_virtual_loop
async def test_copies_stay_until_the_last_turn_of_their_batch(rows):
    """A turn before the first one that they were made for does not count."""
    simulation = Simulation(Scenario(rows, part_rows=100, **ROLLING), 0)
    tier = rolled_of(simulation)
    await tier.copy(RUN, {0: tier.missed(np.arange(16))}, 2, {0: 2})
    for index in (1, 2, 3):
        tier.expect(index, 0)
    for index in (1, 2, 3):
        assert tier.has(0)
        tier.give(index)
    assert not tier.has(0)
    await simulation.close()

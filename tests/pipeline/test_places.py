"""The pipeline with places for whole batches and rows that never leave the buffer."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.buffer import place_table
from gnndrive.buffer.place_table import PlaceHold, PlaceTable, _Place
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.records import Stretch, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Delivered, Scenario, Simulation, simulate
from tests.pipeline import scenarios
from tests.pipeline.scenarios import PLACES, expected_nodes
from tests.pipeline.test_simulated import NOISE, held
from tests.pipeline.turns import Wait, cancel_after_each_turn

SEEDS = 25
SHAPES: dict[str, dict[str, Any]] = {
    "one place": {"places": 1},
    "two places": {"places": 2, "residents": 60},
    "all resident": {"places": 2, "residents": 200},
    "three places": {"places": 3, "residents": 7, "stages": Stages(4, 4, 4, 3)},
}
SCENARIOS = (
    scenarios.epoch_ends_well,
    scenarios.narrow_queues_end_well,
    scenarios.failing_epoch_ends,
    scenarios.cancelled_leases_come_back,
    scenarios.cancelled_leases_among_many_slots,
    scenarios.few_staging_blocks_end_well,
    scenarios.granted_and_cancelled_in_one_turn,
    scenarios.two_epochs_in_one_task,
    scenarios.closing_waits_for_the_kernel,
)
Drop = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True, params=[1 << 18, 9])
def part_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residents are fetched at once, or nine at a time."""
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", request.param)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_all_ends_well(scenario: Callable[..., None], rows: TableFile) -> None:
    """A scenario that needs a full buffer has one place only."""
    full = scenario is scenarios.granted_and_cancelled_in_one_turn
    for seed in range(SEEDS):
        residents = (60, 5, 0)[seed // 3 % 3]
        scenario(rows, seed, places=1 if full else 1 + seed % 3, residents=residents)


@pytest.mark.parametrize("given", SHAPES.values(), ids=SHAPES)
def test_noise_changes_nothing(rows: TableFile, given: dict[str, Any]) -> None:
    noisy = Scenario(rows, batches=8, faults=NOISE, **given)
    for seed in range(SEEDS):
        assert held(simulate(noisy, seed)) == expected_nodes(noisy, seed)
    quiet = replace(noisy, faults=Faults(reorder=False))
    for seed in range(0, SEEDS, 10):
        assert held(simulate(quiet, seed)) == expected_nodes(quiet, seed)


def test_every_batch_comes_once_in_any_order(rows: TableFile) -> None:
    stages = Stages(in_order=False)
    for seed in range(SEEDS):
        delivered = simulate(Scenario(rows, faults=NOISE, stages=stages, **PLACES), seed)
        assert sorted(batch.index for batch in delivered) == list(range(20))


def test_residents_are_read_once(rows: TableFile) -> None:
    """Also if the first epochs are left while they are being read."""
    for seed in range(SEEDS):

        async def main(seed: int = seed) -> None:
            scenario = Scenario(rows, batches=6, places=2, residents=200, faults=NOISE)
            simulation = Simulation(scenario, seed)
            for number, limit in enumerate((0, 1, None, None)):
                epoch = simulation.epoch(number)
                running = asyncio.ensure_future(run_epoch(epoch))
                assert len(await simulation.consume(epoch, limit)) in (limit, 6)
                if limit is not None:
                    running.cancel()
                await asyncio.wait([running])
                if number == 2:
                    whole = simulation.engine.stats()["requests"]
            assert simulation.engine.stats()["requests"] == whole, "a resident is read again"
            assert simulation.table.stats()["loads"] == 0
            await simulation.close()

        run(main())


@pytest.mark.parametrize("first", [0, 64])
def test_a_bad_sector(rows: TableFile, first: int) -> None:
    """Of residents: the first batch has the error. Of others: it surfaces at its batch. When the
    disk is well again, the next epoch is whole."""
    at = first * rows.row_bytes
    bad = range(first, first + 8)
    faults = replace(NOISE, eio_offsets=((at, at + 512),))
    scenario = Scenario(rows, batches=8, faults=faults, **PLACES)
    for seed in range(SEEDS):
        reference = expected_nodes(scenario, seed)
        turn = next((i for i, nodes in reference if set(nodes) & set(bad)), None)
        turn = turn if first else 0

        async def main(seed: int = seed, turn: int | None = turn) -> None:
            simulation = Simulation(scenario, seed)
            epoch = simulation.epoch()
            running = asyncio.ensure_future(run_epoch(epoch))
            delivered = await simulation.consume(epoch, limit=turn)
            if turn is not None:
                with pytest.raises(ReadError) as caught:
                    await epoch.output.aget()
                assert (caught.value.errno, caught.value.path) == (errno.EIO, rows.path)
                assert caught.value.offset <= at + 512 <= caught.value.offset + 4096
            await running
            assert held(delivered) == expected_nodes(scenario, seed)[:turn]
            simulation.check_idle()
            simulation.engine._faults = NOISE
            again = simulation.epoch(1)
            running = asyncio.ensure_future(run_epoch(again))
            assert len(await simulation.consume(again)) == 8
            await running
            await simulation.close()

        run(main())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("given", SHAPES.values(), ids=SHAPES)
def test_an_epoch_cancelled_after_any_turn(
    rows: TableFile, seed: int, given: dict[str, Any]
) -> None:
    """The next epoch of the same buffer is whole."""

    async def main(wait: Wait) -> bool:
        simulation = Simulation(Scenario(rows, batches=4, faults=NOISE, **given), seed)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        consumer = asyncio.ensure_future(simulation.consume(epoch))
        await wait()
        ended = consumer.done()
        epoch.output.abandon()
        running.cancel()
        await asyncio.wait([running])
        await asyncio.wait([consumer])
        await simulation.buffer.drain()  # a task cancelled before its first step did not
        simulation.check_idle()
        again = simulation.epoch(1)
        running = asyncio.ensure_future(run_epoch(again))
        assert len(await simulation.consume(again)) == 4
        await running
        await simulation.close()
        return ended

    assert cancel_after_each_turn(main, 2000) > 15


@pytest.mark.parametrize("seed", range(4))
def test_a_lease_cancelled_after_any_turn(rows: TableFile, seed: int) -> None:
    """Rows may be repeated; the second of three batches is cancelled."""

    async def main(wait: Wait) -> bool:
        simulation = Simulation(Scenario(rows, slots=16, faults=NOISE, **PLACES), seed)

        async def use(start: int) -> None:
            ids = np.repeat(np.arange(start, start + 8, dtype=np.int64), 2)
            lease = await simulation.buffer.lease({"x": ids})
            try:
                await lease.ready()
                got = torch.from_numpy(simulation.gathered(lease))
                simulation.check(Delivered(0, ids, got))
            finally:
                lease.release()

        users = [asyncio.ensure_future(use(start)) for start in (55, 58, 120)]
        await wait()
        ended = users[1].done()
        users[1].cancel()
        await asyncio.wait(users)
        for user in (users[0], users[2]):
            user.result()
        await simulation.close()
        return ended

    assert cancel_after_each_turn(main, 500) >= 4


def test_a_batch_larger_than_planned_is_an_error_at_its_turn(rows: TableFile) -> None:
    scenario = Scenario(rows, batches=6, slots=6, **PLACES)
    for seed in range(8):
        reference = expected_nodes(scenario, seed)
        turn = next(i for i, nodes in reference if sum(node >= 60 for node in nodes) > 6)

        async def main(seed: int = seed, turn: int = turn) -> None:
            simulation = Simulation(scenario, seed)
            epoch = simulation.epoch()
            running = asyncio.ensure_future(run_epoch(epoch))
            assert len(await simulation.consume(epoch, limit=turn)) == turn
            with pytest.raises(StoreError, match="the pack is damaged"):
                await epoch.output.aget()
            await running
            await simulation.close()

        run(main())


# ---- without a rule something goes wrong


def drop_places_wait_for_reads(patch: pytest.MonkeyPatch) -> None:
    """6: a place is free as soon as its batch was released."""
    patch.setattr(_Place, "free", property(lambda place: not place.entries))


def drop_batches_wait_for_their_rows(patch: pytest.MonkeyPatch) -> None:
    """7: a batch is ready as soon as its reads have begun."""
    patch.setattr(PlaceHold, "settled", lambda hold: True)


def drop_batches_wait_for_residents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlaceTable, "residents_settled", True)


def drop_failures_reach_the_batch(patch: pytest.MonkeyPatch) -> None:
    """8: a failed row counts as read."""
    commit = PlaceTable.commit

    def careless(table: PlaceTable, stretch: Stretch) -> None:
        failed = stretch.failures["slot"]
        commit(table, Stretch(np.concatenate([stretch.slots, failed])))

    patch.setattr(PlaceTable, "commit", careless)


@pytest.mark.parametrize(
    ("drop", "scenario", "table", "residents"),
    [
        (drop_places_wait_for_reads, scenarios.cancelled_leases_come_back, "wide", 0),
        (drop_batches_wait_for_their_rows, scenarios.epoch_ends_well, "rows", 60),
        (drop_batches_wait_for_residents, scenarios.epoch_ends_well, "wide", 150),
        (drop_failures_reach_the_batch, scenarios.failing_epoch_ends, "rows", 60),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_without_the_rule_something_goes_wrong(
    drop: Drop, scenario: Callable[..., None], table: str, residents: int,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    drop(monkeypatch)
    rows = request.getfixturevalue(table)
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", lambda loop, context: None)

    def sixty_seeds() -> None:
        for seed in range(60):
            scenario(rows, seed, places=1, residents=residents)

    with pytest.raises((AssertionError, ReadError)):
        sixty_seeds()

"""The pipeline on a simulated disk: bytes, order, determinism, faults, tight buffers."""

import asyncio
import errno
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Delivered, Scenario, Simulation, simulate
from tests.pipeline.scenarios import expected_nodes, few_staging_blocks_end_well

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
SEEDS = 400
SWEEPS = {"slots": 64, "policy": Belady(), "stages": Stages(4, 2, 6, 6, sweep=3)}


def held(batches: list[Delivered]) -> list[tuple[int, list[int]]]:
    return [(batch.index, batch.node.tolist()) for batch in batches]


def test_noise_changes_nothing(rows: TableFile) -> None:
    """Short reads, EAGAIN, EINTR and reordering: the same batches, each row right, in order."""
    noisy = Scenario(rows, batches=8, faults=NOISE)
    for seed in range(SEEDS):
        assert held(simulate(noisy, seed)) == expected_nodes(noisy, seed)
    quiet = replace(noisy, faults=Faults(reorder=False))
    for seed in range(0, SEEDS, 10):
        assert held(simulate(quiet, seed)) == expected_nodes(quiet, seed)


def test_a_buffer_just_large_enough_never_deadlocks(rows: TableFile) -> None:
    """5,000 batches through four extractors and exactly the slots of the largest batch."""
    batches = 0
    for seed in range(50):
        scenario = Scenario(rows, batches=100, faults=Faults(short=0.05, delay_turns_max=3))
        batches += len(simulate(scenario, seed))
    assert batches == 5_000


@pytest.mark.parametrize("in_order", [True, False])
def test_every_batch_comes_once(rows: TableFile, in_order: bool) -> None:
    for seed in range(50):
        scenario = Scenario(rows, faults=NOISE, stages=Stages(in_order=in_order), slots=40)
        assert sorted(batch.index for batch in simulate(scenario, seed)) == list(range(20))


def test_batches_do_not_depend_on_samplers_extractors_queues(rows: TableFile) -> None:
    for seed in range(15):
        one = Stages(samplers=1, extractors=1, extracting_queue=1, training_queue=1)
        expected = held(simulate(Scenario(rows, faults=NOISE, stages=one), seed))
        for stages in (Stages(), Stages(4, 4, 9, 2), Stages(2, 7, 3, 8)):
            scenario = Scenario(rows, faults=NOISE, stages=stages, slots=50)
            assert held(simulate(scenario, seed)) == expected


def test_a_later_epoch_finds_rows_of_an_earlier_one(rows: TableFile) -> None:
    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=200), seed=1)
        for number in range(2):
            epoch = simulation.epoch(number)
            running = asyncio.ensure_future(run_epoch(epoch))
            await simulation.consume(epoch)
            await running
        stats = simulation.table.stats()
        assert stats["loads"] <= 200, "with a slot for each row no row is read twice"
        assert stats["evictions"] == 0
        await simulation.close()

    run(main())


def test_no_row_is_read_twice_while_it_is_there(rows: TableFile) -> None:
    """Several extractors share rows in flight: each needed row is loaded exactly once."""
    for seed in range(50):

        async def main(seed: int = seed) -> None:
            simulation = Simulation(Scenario(rows, slots=200, extra_max=60), seed)
            epoch = simulation.epoch()
            running = asyncio.ensure_future(run_epoch(epoch))
            batches = await simulation.consume(epoch)
            await running
            wanted = {node for batch in batches for node in batch.node.tolist()}
            assert simulation.table.stats()["loads"] == len(wanted)
            await simulation.close()

        run(main())


@pytest.mark.parametrize("together", [2, 3, 4])
def test_combined_fetches_change_nothing(rows: TableFile, together: int) -> None:
    """Seven batches, sampled side by side in combined fetches of two, three or four."""
    for seed in range(60):
        scenario = Scenario(rows, batches=7, slots=64, faults=NOISE, stages=Stages(4, 2, 4, 3))
        batches = simulate(replace(scenario, together=together), seed)
        assert held(batches) == expected_nodes(scenario, seed)


def test_an_error_in_a_combined_fetch_reaches_the_user(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any) -> None:
        raise MemoryError("none to look ahead")

    async def main() -> None:
        simulation = Simulation(Scenario(rows, batches=7, together=3), 0)
        monkeypatch.setattr(simulation.buffer, "announce", no_memory)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        with pytest.raises(MemoryError, match="none to look ahead"):
            await epoch.output.aget()
        await running
        await simulation.close()

    run(main())


@pytest.mark.parametrize("given", [{}, SWEEPS], ids=["paper", "sweeps"])
def test_a_bad_sector_surfaces_at_its_batch(rows: TableFile, given: dict[str, Any]) -> None:
    """EIO: earlier batches are delivered, the error says where, a new epoch works, nothing is
    lost."""
    bad = range(64, 72)  # the rows of bytes 4,096 … 4,608
    faults = replace(NOISE, eio_offsets=((4096, 4608),))
    scenario = Scenario(rows, batches=8, faults=faults, **given)
    surfaced = 0
    for seed in range(SEEDS):
        reference = expected_nodes(scenario, seed)
        first = next((i for i, nodes in reference if set(nodes) & set(bad)), None)

        async def main(
            seed: int = seed,
            reference: list[tuple[int, list[int]]] = reference,
            first: int | None = first,
        ) -> None:
            simulation = Simulation(scenario, seed)
            epoch = simulation.epoch()
            running = asyncio.ensure_future(run_epoch(epoch))
            delivered = await simulation.consume(epoch, limit=first)
            if first is not None:
                with pytest.raises(ReadError) as caught:
                    await epoch.output.aget()
                assert caught.value.errno == errno.EIO
                assert caught.value.path == rows.path
                assert caught.value.offset <= 4608 <= caught.value.offset + 4096
            await running
            assert held(delivered) == reference[:first]
            simulation.check_idle()
            again = simulation.epoch(1)  # the buffer serves a new iterator
            running = asyncio.ensure_future(run_epoch(again))
            await simulation.consume(again, limit=0)
            running.cancel()
            await asyncio.wait([running])
            await simulation.close()

        run(main())
        surfaced += first is not None
    assert surfaced > SEEDS / 2


def test_few_staging_blocks_end_well(wide: TableFile) -> None:
    for seed in range(60):
        few_staging_blocks_end_well(wide, seed)


def test_too_small_a_buffer_names_the_least_that_works(rows: TableFile) -> None:
    scenario = Scenario(rows, slots=5, batch_size=8, extra_max=0, batches=1)
    with pytest.raises(ConfigError, match=r"holds 5 rows .* needs 8"):
        simulate(scenario, 0)
    assert len(simulate(replace(scenario, slots=8), 0)) == 1


def test_an_error_of_the_users_own_reaches_the_user(rows: TableFile) -> None:
    """A transform that raises: the output queue raises its error, and every slot is back."""

    async def main() -> None:
        simulation = Simulation(Scenario(rows), 3)
        epoch = simulation.epoch()

        def broken(item: object, gathered: object) -> NoReturn:
            raise KeyError("no such attribute")

        simulation.make = broken  # type: ignore[method-assign]
        running = asyncio.ensure_future(run_epoch(epoch))
        with pytest.raises(KeyError):
            await epoch.output.aget()
        await running
        await simulation.close()

    run(main())

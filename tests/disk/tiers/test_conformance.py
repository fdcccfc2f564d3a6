"""What every tier must do; one that waits for what never comes ends in `Deadlock`."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices._host_slots import CopiesOfSlots
from gnndrive.buffer.policies.belady import Belady
from gnndrive.common import plugins
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.engines.simulated import Simulated
from gnndrive.disk.tiers.base import EvictedRows, Fetch, Tier, TierContext
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.faults import NOISE, Faults, simulated
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, write_told_rows
from tests.disk.engines.conftest import DATA_OFFSET, UNTOUCHED, make_rows
from tests.second import Keeping
from tests.second.peer import FromPeer, Peer


class PromptPeer(Peer):
    """Answers in the call, so that what a fetch does by itself has been done when it returns."""

    def __init__(self, context: TierContext) -> None:
        shape = context.rows, context.row_bytes
        start = Path(context.layout.path).stat().st_size - context.rows * context.row_bytes
        rows = np.memmap(context.layout.path, np.uint8, "r", start, shape)
        super().__init__({context.table: np.array(rows[1::2])})

    def ask(self, table: str, rows: Int64Array) -> Future[Any]:
        answer = Future[Any]()
        answer.set_result(self._send(table, rows // 2))
        return answer


# Tiers that the standard context, over the disk, does not make: a function of it gives theirs.
CONTEXTS: dict[str, Callable[[TierContext], TierContext]] = {
    "host-rows": lambda given: replace(given, kept=(40, 64), evicted=kept_rows(given)),
    "from-peer": lambda given: replace(given, kept=(0, 25), opened=PromptPeer(given)),
}


def kept_rows(given: TierContext) -> EvictedRows:
    """Memory for 24 rows."""
    return given.evicted or CopiesOfSlots(np.empty((1, given.row_bytes), np.uint8), 24)


ALL = [*plugins.names("tiers"), Keeping, FromPeer]
ROWS = 300
ROW_BYTES = 1024
SLOTS = 200
BAD = (DATA_OFFSET + 20 * ROW_BYTES, DATA_OFFSET + 20 * ROW_BYTES + 512)  # half of row 20


def made(kind: type[Tier], context: TierContext) -> Tier:
    try:
        return kind.make(CONTEXTS.get(kind.name, lambda given: given)(context))
    except Exception as error:
        pytest.fail(
            f"the tier {kind.name!r} cannot be made from the standard context ({error!r}): give "
            "it one in CONTEXTS of this test"
        )


class Bench:
    """A tier over rows on a simulated disk, and slots for them; made inside the loop that it runs
    in."""

    def __init__(
        self, kind: type[Tier], folder: Path, faults: Faults = NOISE, depth: int = 8
    ) -> None:
        self.rows = make_rows(folder, ROW_BYTES, ROWS, SLOTS, extent_bytes_max=4096)
        self.layout = self.rows.table
        self.engine = Simulated(simulated(3, faults, depth))
        disk = plugins.find("tiers", "disk")
        below = disk.make(TierContext(self.layout, self.engine, None, ROWS, ROW_BYTES))
        self.tier = made(kind, TierContext(self.layout, self.engine, below, ROWS, ROW_BYTES))

    def fetch(self, rows: Int64Array, slots: Int32Array) -> Fetch:
        return self.tier.fetch(rows, slots, self.rows.landing)

    async def end(
        self, fetch: Fetch, rows: Int64Array, slots: Int32Array
    ) -> list[tuple[int, int, int]]:
        """Listen to the end; returns the failures."""
        return (await self.rows.ended(fetch, rows, slots))[1]

    async def bring(self, rows: Int64Array, slots: Int32Array) -> list[tuple[int, int, int]]:
        self.rows.memory[slots] = UNTOUCHED
        return await self.end(self.fetch(rows, slots), rows, slots)

    async def close(self) -> None:
        """Close the tier and what it was made over."""
        await self.tier.aclose()
        await self.engine.aclose()
        self.layout.close()


Check = Callable[[type[Tier], Path], None]


def on_a_bench(**settings: Any) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Check]:
    """Have a check carried out on a bench with a tier of any kind, in a loop of its own."""

    def decorate(check: Callable[[Bench], Coroutine[Any, Any, None]]) -> Check:
        async def main(kind: type[Tier], folder: Path) -> None:
            bench = Bench(kind, folder, **settings)
            await check(bench)
            await bench.close()

        return wraps(check)(lambda kind, folder: run(main(kind, folder)))

    return decorate


def some(count: int, seed: int, rows: int = ROWS) -> tuple[Int64Array, Int32Array]:
    """Different rows in any order, and as many different slots."""
    draw = np.random.default_rng(seed)
    slots = draw.permutation(SLOTS)[:count].astype(np.int32)
    return draw.permutation(rows)[:count], slots


# ---- the contract


@on_a_bench()
async def each_row_lands_once(bench: Bench) -> None:
    """Whether it was fetched before or not."""
    for seed in range(6):
        rows, slots = some((60, 1, 150)[seed % 3], seed)
        assert not await bench.bring(rows, slots)
    none = np.empty(0, np.int64)
    await bench.bring(none, none.astype(np.int32))


@on_a_bench()
async def a_fetch_starts_in_the_call(bench: Bench) -> None:
    """And goes on whether anything listens or not; also if rows have been fetched before."""
    for seed in range(3):
        bench.rows.memory[:] = UNTOUCHED
        bench.engine.paused = True
        rows, slots = some(40, 0)
        fetch = bench.fetch(rows, slots)
        assert bench.engine.inflight, "nothing was started in the call"
        while bench.engine.step():
            pass
        assert not bench.rows.wrong(rows, slots), "it waited"
        bench.engine.paused = False
        assert not await bench.end(fetch, rows, slots)
        await bench.bring(*some(150, seed))


@on_a_bench()
async def several_fetches_go_on_at_once(bench: Bench) -> None:
    for seed in range(2):
        rows, slots = some(160, seed)
        parts = [(rows[i::4].copy(), slots[i::4].copy()) for i in range(4)]
        fetches = [bench.fetch(*part) for part in parts]
        for fetch, part in reversed(list(zip(fetches, parts, strict=True))):
            assert not await bench.end(fetch, *part)


@on_a_bench()
async def two_fetches_may_bring_the_same_row(bench: Bench) -> None:
    rows = np.arange(90)
    slots = np.arange(180, dtype=np.int32)
    parts = [(rows, slots[:90]), (rows[::-1].copy(), slots[90:])]
    fetches = [bench.fetch(*part) for part in parts]
    for fetch, part in zip(fetches, parts, strict=True):
        assert not await bench.end(fetch, *part)


@on_a_bench(faults=Faults(), depth=4)
async def cancelling_fails_what_was_not_started(bench: Bench) -> None:
    bench.engine.paused = True
    rows, slots = np.arange(0, 300, 8), np.arange(38, dtype=np.int32)  # an extent each
    fetch = bench.fetch(rows, slots)
    fetch.cancel()
    bench.engine.paused = False
    failures = await bench.end(fetch, rows, slots)
    assert len(failures) >= 30, "what was not started goes on"
    assert {error for _, error, _ in failures} == {errno.ECANCELED}
    assert not await bench.bring(rows, slots), "another fetch is cancelled too"


@on_a_bench(faults=Faults(eio_offsets=(BAD,)))
async def a_bad_sector_fails_the_rows_in_it(bench: Bench) -> None:
    """As often as they are asked for; no other row suffers."""
    rows, slots = np.arange(60), np.arange(60, dtype=np.int32)[::-1].copy()
    for _ in range(3):
        ((slot, error, offset),) = await bench.bring(rows, slots)
        assert rows[slots == slot].tolist() == [20], "another row fails"
        assert error == errno.EIO
        assert offset <= BAD[0] < offset + 4096
        assert bench.rows.wrong([20], [slot])


@on_a_bench()
async def what_cannot_be_asked_for_is_refused(bench: Bench) -> None:
    """Also if the rows have been fetched before."""
    two = np.arange(2, dtype=np.int32)
    for _ in range(2):
        for bad in ([3, -1], [3, ROWS], [7, 7]):
            with pytest.raises(ValueError, match=r"range|twice|row"):
                bench.fetch(np.array(bad), two)
        await bench.bring(np.array([3, 7]), two)
    await bench.engine.aclose()
    for rows in ([3, 7], [100, 101]):
        with pytest.raises(ClosedError):
            bench.fetch(np.array(rows), two)


@on_a_bench()
async def closing_ends_what_the_tier_does_itself(bench: Bench) -> None:
    """Before the engine is closed, whenever it is closed, twice at once, and again."""
    others = asyncio.all_tasks()
    await bench.bring(*some(10, 0))
    for calls in (2, 1):
        await asyncio.gather(*(bench.tier.aclose() for _ in range(calls)))
        assert asyncio.all_tasks() == others, "a task is left"
        assert not bench.engine.inflight, "a read is left"


def errors_name_the_file(kind: type[Tier], folder: Path) -> None:
    named: list[str] = []

    @on_a_bench()
    async def name(bench: Bench) -> None:
        named.append(bench.tier.path)

    name(kind, folder)
    assert Path(*named).is_file()


def epochs_deliver_every_row(kind: type[Tier], folder: Path) -> None:
    """In the pipeline, with slots just enough for the largest batch, on a host, and on devices that
    read staging alone, or any pinned memory."""
    file = write_told_rows(folder / "rows", ROWS, 64)

    async def epochs(device: str, seed: int) -> None:
        scenario = Scenario(file, faults=NOISE, device=device, slots=16, policy=Belady())
        simulation = Simulation(scenario, seed)
        table, below = simulation.table, simulation.table.tier
        victims = table.memory.evicted(24)  # for tiers that keep what leaves the buffer
        context = TierContext(
            simulation.layout, simulation.engine, below, ROWS, 64, evicted=victims
        )
        table.tier = made(kind, context)
        for number in range(2):
            epoch = simulation.epoch(number)
            running = asyncio.ensure_future(run_epoch(epoch))
            assert len(await simulation.consume(epoch)) == simulation.scenario.batches
            await running
        await simulation.close()

    for seed, device in enumerate(("host", "simulated-cuda", "simulated-cuda")):
        run(epochs(device, seed))


CONTRACT = (
    each_row_lands_once,
    a_fetch_starts_in_the_call,
    several_fetches_go_on_at_once,
    two_fetches_may_bring_the_same_row,
    cancelling_fails_what_was_not_started,
    a_bad_sector_fails_the_rows_in_it,
    what_cannot_be_asked_for_is_refused,
    closing_ends_what_the_tier_does_itself,
    errors_name_the_file,
    epochs_deliver_every_row,
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("tier", ALL, ids=plugins.name_of)
def test_a_tier_keeps_its_contract(tier, check, tmp_path):
    check(plugins.find("tiers", tier), tmp_path)


# ---- a broken one is found


class Listening:
    """A fetch whose stretches are changed on their way."""

    def __init__(self, fetch: Fetch, change: Callable[[Stretch], list[Stretch]]) -> None:
        self._fetch, self._change = fetch, change

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        async for stretch in self._fetch:
            for each in self._change(stretch):
                yield each

    def cancel(self) -> None:
        self._fetch.cancel()


def changing(change: Callable[[Stretch], list[Stretch]]) -> type[Tier]:
    """A tier that reports other stretches than those that have ended."""

    class Changing(Keeping):
        def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
            return Listening(super().fetch(rows, places, landing), change)

    return Changing


def all_landed(stretch: Stretch) -> list[Stretch]:
    return [Stretch(np.concatenate([stretch.slots, stretch.failures["slot"]]))]


class Stale(Keeping):
    """Takes the rows of one fetch for those of another."""

    def keep(self, rows: Int64Array, content: Any) -> None:
        super().keep(rows[::-1], content)


@pytest.mark.parametrize(
    ("tier", "check", "message"),
    [
        (changing(lambda stretch: [stretch, stretch]), each_row_lands_once, "not each slot once"),
        (changing(lambda stretch: [Stretch(stretch.slots)]), a_bad_sector_fails_the_rows_in_it,
         "not each slot once"),
        (changing(all_landed), a_bad_sector_fails_the_rows_in_it, "a wrong row"),
        (Stale, each_row_lands_once, "a wrong row"),
        (Stale, epochs_deliver_every_row, "wrong rows"),
    ],
)  # fmt: skip
def test_a_broken_tier_is_found(tier, check, message, tmp_path):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        check(tier, tmp_path)

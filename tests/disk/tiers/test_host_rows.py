"""The tier of host memory over a fake that answers when the test says so."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices._host_slots import CopiesOfSlots
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers import host_rows
from gnndrive.disk.tiers._copied import spread_rows
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.disk.tiers.host_rows import HostRows
from gnndrive.testing.loop import run
from tests.disk.engines.conftest import Rows

ROWS, ROW_BYTES, FIRST, END = 60, 64, 10, 40
CONTENT = np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)


class Below(Tier):
    """Has all rows; a fetch ends when `go` is set, or is cancelled.

    Attributes:
        asked: the rows of each fetch.
        errors: raised by the next fetches; None: such a fetch works.
        followed: fetches that a listener followed to their ends.
    """

    name = path = "below"

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.errors: list[Exception | None] = []
        self.go = asyncio.Event()
        self.go.set()
        self.closed = self.followed = 0

    @classmethod
    def make(cls, context: TierContext) -> Below:
        return cls()

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        if self.errors and (error := self.errors.pop(0)):
            self.asked.append([])
            raise error
        self.asked.append(rows.tolist())
        return _Answer(self, rows, places, landing)

    async def aclose(self) -> None:
        self.closed += 1


class _Answer:
    def __init__(self, below: Below, rows: Int64Array, places: Int32Array, landing: Landing):
        self._below, self._rows, self._places, self._landing = below, rows, places, landing
        self._cancelled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        waits = [asyncio.ensure_future(each.wait()) for each in (self._below.go, self._cancelled)]
        _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        if self._cancelled.is_set():
            failures = np.zeros(len(self._rows), FAILURE)
            failures["slot"], failures["error"] = self._places, errno.ECANCELED
            yield Stretch(np.empty(0, np.int32), failures)
            return
        spread_rows(CONTENT.ctypes.data, ROW_BYTES, self._rows, self._places, self._landing)
        yield Stretch(self._places)
        self._below.followed += 1

    def cancel(self) -> None:
        self._cancelled.set()


class Kept(CopiesOfSlots):
    """The memory of kept rows.

    Attributes:
        pinned: set once the device can read it.
        error: raised instead.
    """

    def __init__(self, read_in_place: bool) -> None:
        super().__init__(np.zeros((1, ROW_BYTES), np.uint8), END - FIRST)
        self.read_in_place, self.pinned = read_in_place, threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        self.pinned.wait()
        if self.error is not None:
            raise self.error


class Bench:
    """The tier, and slots for all rows."""

    def __init__(self, read_in_place: bool = False) -> None:
        self.below, self.kept = Below(), Kept(read_in_place)
        self.tier = HostRows(self.below, FIRST, END, self.kept)
        memory = np.zeros((ROWS, ROW_BYTES), np.uint8)
        landing = Landing(memory.ctypes.data, ROW_BYTES, True, memory)
        self.rows = Rows(CONTENT, memory, landing)

    def fetch(self) -> Fetch:
        """Begin to fetch all rows, each to the slot of its number."""
        self.rows.memory[:] = 0
        every = np.arange(ROWS)
        return self.tier.fetch(every, every.astype(np.int32), self.rows.landing)

    async def bring(self) -> None:
        await self.end(self.fetch())

    async def end(self, fetch: Fetch) -> None:
        """Wait for all rows and check them."""
        assert not (await self.rows.ended(fetch, np.arange(ROWS), np.arange(ROWS)))[1]

    async def bring_and_wait(self) -> None:
        """Bring all rows, and wait until the filling that this begins has ended."""
        await self.bring()
        assert self.tier._filling is not None
        await asyncio.wait([self.tier._filling])

    async def fill(self) -> None:
        await self.bring_and_wait()
        await self.bring()
        assert self.below.asked[-1] == [*range(FIRST), *range(END, ROWS)], "it keeps its rows"


class Gate:
    """Holds copies back until `go` is set.

    Attributes:
        began, go: set when a copy begins; lets it go on.
        thread: in which thread it was made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go, self.thread = threading.Event(), threading.Event(), 0

        def copy(*arguments: Any) -> None:
            self.thread = threading.get_ident()
            self.began.set()
            self.go.wait()
            spread_rows(*arguments)

        monkeypatch.setattr(host_rows, "spread_rows", copy)


async def follow(fetch: Fetch, stretches: list[Stretch]) -> None:
    async for stretch in fetch:
        stretches.append(stretch)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_another_thread_copies_from_the_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on meanwhile, and the rows are announced when they are there."""
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    fetch = bench.fetch()
    gate.began.wait()  # without a turn of the loop
    ending = asyncio.ensure_future(bench.end(fetch))
    await some_turns()
    assert not ending.done()
    assert not bench.rows.memory[FIRST:END].any()
    gate.go.set()
    await ending
    assert gate.thread != threading.get_ident()
    await bench.tier.aclose()


async def test_a_cancelled_listener_waits_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which writes to memory that may be freed afterwards."""
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    ending = asyncio.ensure_future(bench.end(bench.fetch()))
    for _ in range(2):
        await some_turns()
        ending.cancel()
    await some_turns()
    assert not ending.done()
    gate.go.set()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert np.array_equal(bench.rows.memory[FIRST:END], CONTENT[FIRST:END])
    await bench.tier.aclose()


async def test_closing_waits_for_a_copy_that_nobody_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    bench.fetch()
    threading.Timer(0, gate.go.set).start()
    await bench.tier.aclose()
    assert np.array_equal(bench.rows.memory[FIRST:END], CONTENT[FIRST:END])


def test_closing_frees_the_rows_and_the_thread() -> None:
    """At once, even if something still refers to the tier."""

    async def main() -> None:
        bench = Bench()
        await bench.fill()
        (thread,) = bench.tier._thread._threads
        await bench.tier.aclose()
        assert not bench.kept.rows.size
        assert not thread.is_alive()
        await bench.tier.aclose()
        assert bench.below.closed == 2

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_closing_ends_the_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part under way is cancelled, and no other begins."""
    monkeypatch.setattr(host_rows, "PART_ROWS", 8)

    async def main() -> None:
        bench = Bench()
        await bench.bring()
        bench.below.go.clear()
        await some_turns()
        parts = bench.below.asked[1:]
        assert 0 < len(parts) < 4, "the filling waits"
        filling, real = bench.tier._filling, bench.kept.close

        def close() -> None:
            assert filling is not None
            assert filling.done(), "the disk may still write"
            real()

        monkeypatch.setattr(bench.kept, "close", close)
        await bench.tier.aclose()
        assert not bench.kept.rows.size
        assert bench.below.asked[1:] == parts
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


async def test_a_device_reads_rows_where_they_are_once_they_are_pinned() -> None:
    """No thread copies them, and the disk does not read them again."""
    bench = Bench(read_in_place=True)
    await bench.bring_and_wait()
    for pinned in (False, True):
        stretches: list[Stretch] = []
        following = asyncio.ensure_future(follow(bench.fetch(), stretches))
        if not pinned:
            await some_turns()
            assert not stretches
            bench.kept.pinned.set()
        await following
        first, second = stretches
        assert first.slots.tolist() == [*range(FIRST, END)]
        assert first.pinned is not None
        assert first.pinned.rows.dtype == np.int32
        assert np.array_equal(first.pinned.memory[first.pinned.rows], CONTENT[FIRST:END])
        assert second.slots.tolist() == bench.below.asked[-1] == [*range(FIRST), *range(END, ROWS)]
        assert not bench.rows.memory[FIRST:END].any()
    await bench.tier.aclose()


async def test_rows_that_cannot_be_pinned_are_an_error_of_the_fetch_that_needs_them() -> None:
    """After its reads, because the disk writes to the landing until then."""
    bench = Bench(read_in_place=True)
    await bench.bring_and_wait()
    bench.kept.error = ConfigError("none is left")
    bench.kept.pinned.set()
    for read in (2, 3):
        stretches: list[Stretch] = []
        with pytest.raises(ConfigError, match="none is left"):
            await follow(bench.fetch(), stretches)
        assert [each.slots.tolist() for each in stretches] == [[*range(FIRST), *range(END, ROWS)]]
        assert bench.below.followed == read + 1
    await bench.tier.aclose()


def test_rows_are_brought_in_parts_and_those_that_are_there_only_once(monkeypatch):
    monkeypatch.setattr(host_rows, "PART_ROWS", 8)

    async def main() -> None:
        bench = Bench()
        bench.tier._valid[[0, 1, 5, *range(8, 16)]] = True
        await bench.bring_and_wait()
        assert bench.below.asked[1:] == [
            [12, 13, 14, 16, 17], [*range(26, 34)], [*range(34, 40)],
        ]  # fmt: skip
        await bench.tier.aclose()

    run(main())


@pytest.mark.parametrize("error", [ValueError("the layout is closed"), MemoryError()])
def test_a_later_fetch_fills_after_an_error(error: Exception) -> None:
    """Nothing is reported, because no batch waits for the rows; those fetched have come."""
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        bench = Bench()
        bench.below.errors = [None, error]
        await bench.bring_and_wait()
        assert bench.below.asked[1:] == [[]]
        assert not bench.tier._full
        await bench.fill()
        await bench.tier.aclose()

    run(main())
    gc.collect()  # asyncio reports exceptions that no code retrieved
    assert not reported

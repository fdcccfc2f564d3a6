"""The fetch queue: reads of rows from a tier into the slots of a feature buffer (GNNDrive §4.2).

`FeatureBuffer` calls `begin` for what an admission must fetch; this calls the table's tier and, for
each stretch of rows that has landed, the device's commit. A fetch belongs to the buffer and not to
a batch: it ends even if the batch is cancelled (rule 5).

A device whose slots the disk cannot reach gives out portions of staging, of which there may be too
few for all rows at once. Then the rows are divided in the order of the file, by what a portion has
room for. The rows of a portion are fetched together, and the portion is given back at their end;
rows without a portion wait, first come first served. Rows wait for staging only after they have
their slots, and no fetch waits for a second portion while it holds one. So fetches never wait for
each other (rule 11).
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from gnndrive.buffer.row_table import RowHold, RowTable
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.tiers.base import Fetch

Portion: TypeAlias = tuple[Int64Array, Int32Array]
"""The rows of one fetch, int64 [n], and their slots, int32 [n]; they fit a portion of staging."""


class Copies(Protocol):
    """Is told of copies to a device, such as a `pipeline.timeline.Timeline`."""

    clock: Callable[[], int]

    def copied(self, row_bytes: int, rows: int, begin: int) -> None:
        """So many rows were copied, from `begin` by its clock until now."""
        ...


class FetchQueue:
    """The fetches of one feature buffer.

    Args:
        settled: called when rows have become valid or have failed.
        broken: called with an error after which some slots load for ever.
        copies: told of each stretch's copy to the device.
    """

    def __init__(
        self, settled: Callable[[], None], broken: Callable[[BaseException], None],
        copies: Copies | None = None,
    ) -> None:  # fmt: skip
        self._on_settled, self._on_broken, self._copies = settled, broken, copies
        self._fetches: dict[asyncio.Task[None], Fetch] = {}
        self._waiting: deque[tuple[RowTable, Portion]] = deque()

    def __bool__(self) -> bool:
        return bool(self._fetches or self._waiting)

    def close(self) -> None:
        """Refer to the feature buffer no more, so that it is freed at once; only after `drain`."""
        self._on_settled, self._on_broken = lambda: None, lambda error: None

    def begin(self, hold: RowHold) -> None:
        """Offer to the tier what left the slots of a hold, and then fetch the rows that it has to
        load, now or as soon as there is staging for them. If the device or the tier raises,
        `hold.loads` has the rows that are not being fetched yet."""
        assert hold.loads is not None
        table, most = hold.table, hold.table.memory.landing_rows_max
        if hold.evicted is not None:
            evicted, hold.evicted = hold.evicted, None
            table.tier.offer(evicted)
        if most is not None:
            hold.loads = _in_file_order(*hold.loads)
        rows, slots = hold.loads
        most = most or max(len(rows), 1)
        while len(rows):
            landing = None if self._waiting else table.memory.landing(slots[:most])
            if landing is None:
                cuts = [slice(start, start + most) for start in range(0, len(rows), most)]
                self._waiting.extend([(table, (rows[cut], slots[cut])) for cut in cuts])
                break
            self._start_fetch(table, landing, (rows[:most], slots[:most]))
            hold.loads = rows, slots = rows[most:], slots[most:]
        hold.loads = None

    def _start_fetch(self, table: RowTable, landing: Landing, portion: Portion) -> None:
        rows, slots = portion
        places = slots if landing.places is None else landing.places
        try:
            fetch = table.tier.fetch(rows, places, landing)
        except BaseException:
            landing.leave()
            raise
        task = asyncio.get_running_loop().create_task(self._commit_stretches(table, landing, fetch))
        self._fetches[task] = fetch
        task.add_done_callback(self._fetch_ended)

    def _start_waiting(self) -> None:
        """Fetch the portions that wait for staging, as long as there is some."""
        while self._waiting:
            table, portion = self._waiting.popleft()
            try:
                landing = table.memory.landing(portion[1])
                if landing is None:
                    self._waiting.appendleft((table, portion))
                    return
                self._start_fetch(table, landing, portion)
            except ClosedError:
                self._fail_rows(table, portion[1], errno.ECANCELED)
            except MemoryError:
                self._fail_rows(table, portion[1], errno.ENOMEM)
            except Exception as error:
                self._on_broken(error)

    async def _commit_stretches(self, table: RowTable, landing: Landing, fetch: Fetch) -> None:
        """Make rows valid as they land, until the fetch has ended."""
        error: Exception | None = None
        async for stretch in fetch:  # to its end, even after an error: the kernel may still write
            if error is not None:
                continue
            try:
                begin = 0 if self._copies is None else self._copies.clock()
                table.commit(await table.memory.commit(landing, stretch))
                if self._copies is not None and landing.places is not None:
                    self._copies.copied(table.row_bytes, len(stretch.slots), begin)
                self._on_settled()
            except Exception as caught:
                error = caught
                self._on_broken(error)
        if error is not None:
            raise error  # copies out of staging may still run: do not leave the landing
        landing.leave()

    def _fetch_ended(self, task: asyncio.Task[None]) -> None:
        self._fetches.pop(task, None)
        if task.cancelled():
            self._on_broken(ClosedError("a fetch was cancelled from outside"))
        elif error := task.exception():
            self._on_broken(error)
        else:
            self._start_waiting()

    def cancel(self) -> None:
        """Let the rows whose reads were not started fail with ECANCELED."""
        while self._waiting:
            table, (_, slots) = self._waiting.popleft()
            self._fail_rows(table, slots, errno.ECANCELED)
        for fetch in self._fetches.values():
            fetch.cancel()

    def _fail_rows(self, table: RowTable, slots: Int32Array, error: int) -> None:
        table.fail(slots, error)
        self._on_settled()

    async def drain(self) -> None:
        """Cancel what was not started and wait until no fetch is under way."""
        while self:
            self.cancel()
            if self._fetches:
                await asyncio.wait(list(self._fetches))


def _in_file_order(rows: Int64Array, slots: Int32Array) -> Portion:
    """Sort rows by id, so that each portion covers one range of the file."""
    order = np.argsort(rows, kind="stable")
    return rows[order], slots[order]

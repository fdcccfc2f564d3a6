"""Loads: rows on their way from a tier into the slots of a feature buffer (GNNDrive §4.2).

They belong to the buffer and not to a batch: once asked for they end whatever becomes of it (rule
5). A device whose slots the disk cannot reach takes rows in staging, of which there may be too
little for all at once; then a load is divided in the order of the file, and its parts wait for
staging, first come first served. Staging is the last thing taken and comes back by itself, so they
never wait for each other (rule 11).
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch

Part: TypeAlias = tuple[Int64Array, Int32Array]
"""Rows, int64 [n], and their slots, int32 [n]."""


class FetchQueue:
    """The loads of one feature buffer.

    Args:
        settled: called when rows have become valid or failed.
        broken: called with an error that leaves slots loading for ever.
    """

    def __init__(
        self, settled: Callable[[], None], broken: Callable[[BaseException], None]
    ) -> None:
        self._settled, self._broken = settled, broken
        self._fetches: dict[asyncio.Task[None], Fetch] = {}
        self._waiting: deque[tuple[SlotTable, Part]] = deque()

    def __bool__(self) -> bool:
        return bool(self._fetches or self._waiting)

    def begin(self, hold: SlotHold) -> None:
        """Ask for a share's missing rows, now or as soon as there is staging for them.

        Raises:
            Exception: what the device or the tier raised; what was not asked for yet is left in
                `hold.loads`.
        """
        assert hold.loads is not None
        table, most = hold.table, hold.table.memory.landing_rows_max
        if most is not None:
            hold.loads = _in_file_order(*hold.loads)
        rows, slots = hold.loads
        most = most or max(len(rows), 1)
        while len(rows):
            landing = None if self._waiting else table.memory.landing(slots[:most])
            if landing is None:
                parts = [slice(start, start + most) for start in range(0, len(rows), most)]
                self._waiting.extend([(table, (rows[part], slots[part])) for part in parts])
                break
            self._ask(table, landing, (rows[:most], slots[:most]))
            hold.loads = rows, slots = rows[most:], slots[most:]
        hold.loads = None

    def _ask(self, table: SlotTable, landing: Landing, part: Part) -> None:
        rows, slots = part
        places = slots if landing.places is None else landing.places
        try:
            fetch = table.tier.fetch(rows, places, landing)
        except BaseException:
            landing.leave()
            raise
        task = asyncio.get_running_loop().create_task(self._land(table, landing, fetch))
        self._fetches[task] = fetch
        task.add_done_callback(self._ended)

    def _ask_waiting(self) -> None:
        """Ask for what waits for staging, as far as there is some."""
        while self._waiting:
            table, part = self._waiting.popleft()
            try:
                landing = table.memory.landing(part[1])
                if landing is None:
                    self._waiting.appendleft((table, part))
                    return
                self._ask(table, landing, part)
            except ClosedError:
                self._give_up(table, part[1], errno.ECANCELED)
            except MemoryError:
                self._give_up(table, part[1], errno.ENOMEM)
            except Exception as error:
                self._broken(error)

    async def _land(self, table: SlotTable, landing: Landing, fetch: Fetch) -> None:
        error: Exception | None = None
        async for stretch in fetch:  # to its end whatever happens: the kernel may still write
            if error is not None:
                continue
            try:
                table.commit(await table.memory.commit(landing, stretch))
                self._settled()
            except Exception as caught:
                error = caught
                self._broken(error)
        if error is not None:
            raise error  # what was staged may be on its way still: its staging is not used again
        landing.leave()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._fetches.pop(task, None)
        if task.cancelled():
            self._broken(ClosedError("a load was cancelled from outside"))
        elif error := task.exception():
            self._broken(error)
        else:
            self._ask_waiting()

    def cancel(self) -> None:
        """What was not started fails with ECANCELED."""
        while self._waiting:
            table, (_, slots) = self._waiting.popleft()
            self._give_up(table, slots, errno.ECANCELED)
        for fetch in self._fetches.values():
            fetch.cancel()

    def _give_up(self, table: SlotTable, slots: Int32Array, error: int) -> None:
        failures = np.zeros(len(slots), FAILURE)
        failures["slot"], failures["error"] = slots, error
        table.commit(Stretch(np.empty(0, np.int32), failures))
        self._settled()

    async def drain(self) -> None:
        """Wait until nothing is under way; what was not started fails."""
        while self:
            self.cancel()
            if self._fetches:
                await asyncio.wait(list(self._fetches))


def _in_file_order(rows: Int64Array, slots: Int32Array) -> Part:
    """In the order in which they will land, so that a part of them is a stretch of the file."""
    order = np.argsort(rows, kind="stable")
    return rows[order], slots[order]

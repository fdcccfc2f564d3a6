"""`PulledRows`: rows that this rank's device copies out of slots of its own and of other ranks.

Ranks of one host open the memory of each other's slots (CUDA IPC), so rows go from GPU to GPU
without host memory. An owner says in which slots a batch's rows are (SLOTS), holds these until this
rank says that its copy has ended (PULLED), and then says READY. If the owner has taken this rank
for dead and reused the slots meanwhile, READY never comes, and the copy is thrown away.

A copy runs on the side stream and does not wait for the user's work, so the owner's lease waits for
copies alone. An owner that closes says goodbye; this rank shuts the slots, then closes its end of
the link, and the owner frees the slots when it sees that end closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gnndrive.buffer.devices.base import Device, Fence
from gnndrive.common.records import Int32Array
from gnndrive.exchange.exchanged_buffer import Arriving
from gnndrive.host.messages import ProtocolError
from gnndrive.pipeline.workers import Workers


class PulledRows:
    """Copies rows of a batch for the event loop; `workers` begin the copies."""

    def __init__(self, device: Device, workers: Workers) -> None:
        self._device, self._workers = device, workers
        self._slots: dict[int, list[torch.Tensor]] = {}  # of each owner's tables
        self._tasks = set[asyncio.Task[None]]()
        self._beginning = threading.Lock()  # so that none begins to read what is shut

    def add(self, owner: int, slots: list[torch.Tensor]) -> None:
        """An owner's slots of each table can be read; the list has the only references to them."""
        self._slots[owner] = slots

    def open(self, owner: int, exported: Any) -> None:
        """Open what an owner has exported; raises as `Device.open_slots`."""
        self.add(owner, self._device.open_slots(exported))

    def pull(
        self, owner: int, arriving: Sequence[Arriving], slots: Sequence[Int32Array],
        ended: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        """Begin to copy rows of each table out of an owner's slots to where they go, and call
        `ended` with an error, or None, when no copy is under way any more."""
        copying = self._copy(owner, arriving, slots, ended)
        task = asyncio.get_running_loop().create_task(copying)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, owner: int, arriving: Sequence[Arriving], slots: Sequence[Int32Array],
        ended: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        fences, failed = list[Fence](), None
        try:
            await self._workers.run(self._begin, owner, arriving, slots, fences)
        except Exception as error:
            failed = error.with_traceback(None)  # whose frames refer to the slots, as the cause's
            failed.__cause__ = failed.__context__ = None
        for fence in fences:
            try:
                await fence()
            except Exception as error:
                failed = failed or error
        ended(failed)

    def _begin(
        self, owner: int, arriving: Sequence[Arriving], slots: Sequence[Int32Array],
        fences: list[Fence],
    ) -> None:  # fmt: skip
        with self._beginning:
            if owner not in self._slots:
                raise ProtocolError("the slots are not open")
            for rows, each, alias in zip(self._slots[owner], arriving, slots, strict=True):
                if alias.min(initial=0) < 0 or alias.max(initial=0) >= len(rows):
                    raise ProtocolError(f"there are {len(rows):,} slots, and others are named")
                if len(alias):
                    fences.append(self._device.pull(rows, alias, each.rows, each.places))

    def shut(self, owner: int) -> None:
        """Read an owner's slots no more; blocks until the copies of them have ended."""
        with self._beginning:
            if slots := self._slots.pop(owner, None):
                self._device.shut_slots(slots)

    async def aclose(self) -> None:
        """Shut all slots, and wait until `ended` was called for all copies."""
        for owner in list(self._slots):
            self.shut(owner)
        while self._tasks:
            await asyncio.wait(self._tasks)

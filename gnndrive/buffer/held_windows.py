"""`HeldWindows`: the rows of whole windows, which a feature buffer holds (HierBatching §3).

A window's rows are prefetched by chunks, each of which is a lease, and stay until the window ends.
Windows hold rows in the order of their keys, two of them as a rule: the older one is trained on
while the younger one is loaded.

Nothing here waits for slots, because the batches that hold them may stand behind it in the
admission queue: a chunk that is not admitted in the step in which it joins is given up until a
window has ended (rule 16). The rows of a younger window are leased only when each older one holds
all of its rows. If an oldest window cannot hold all of them, it gives them back, and before it all
younger ones do, because its batches need those slots to load what is missing (rule 17). A younger
window that lacks rows is not ready before the older one has ended, because in any order
(in_order=False) its batches may join the queue before the older one's last batches, and would wait
for the slots that it holds (rule 18).

The plan counts slots for two windows, so that this happens only if windows differ more than planned
because others between them are left out; to a second iterator, which has a smaller buffer; if one
of several ranks is a window behind the others; and if a row cannot be read: the slots of such rows
are of no use to the batches that need them, so their window counts as one that lacks slots.

When not to use it: where batches need few of a window's rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.common.errors import ClosedError, ConfigError, ReadError

READING_MAX = 2  # chunks of rows that are read at the same time
CHUNK_ROWS = 1 << 16  # rows that are leased together
Key = tuple[int, ...]


def chunks(first: int, last: int) -> Iterator[range]:
    """The rows from `first` to `last` - 1 in ranges that are leased together."""
    for start in range(first, last, CHUNK_ROWS):
        yield range(start, min(start + CHUNK_ROWS, last))


@dataclass(eq=False)
class _Held:
    """A window's rows, in chunks."""

    key: Key
    missing: deque[range]
    ready: asyncio.Future[None]
    leases: list[tuple[range, Lease]] = field(default_factory=list)
    tried: bool = False  # whether its rows have been leased, as far as there were slots
    growing: bool = False  # whether chunks are being leased now
    failed: bool = False  # whether a row could not be read
    ended: bool = False

    @property
    def lacks_rows(self) -> bool:
        return bool(self.missing) or self.failed

    def release(self) -> None:
        """Release all leases for good; if chunks are being leased, that does so afterwards."""
        while self.leases and not self.growing:
            self.leases.pop()[1].release()

    def give_back(self) -> None:
        """Release all leases; the chunks are missing then."""
        while self.leases:
            rows, lease = self.leases.pop()
            self.missing.appendleft(rows)
            lease.release()


class HeldWindows:
    """Holds windows of the first table of a feature buffer, while `run` runs; only their rows, as
    `has_graphs` says."""

    has_graphs = False

    def __init__(self, buffer: FeatureBuffer) -> None:
        self._buffer, self._table = buffer, next(iter(buffer.tables))
        self._live: dict[Key, _Held] = {}
        self._changed = asyncio.Event()

    def open(self, key: Key, rows: Iterable[range]) -> asyncio.Future[None]:
        """Begin a window. What is returned is done when all of its rows are valid, or it is the
        oldest window and holds those that it can. A row that cannot be read is an error of the
        batches that need it."""
        held = _Held(key, deque(rows), asyncio.get_running_loop().create_future())
        self._live = dict(sorted([*self._live.items(), (key, held)]))
        self._changed.set()
        return held.ready

    def end(self, key: Key) -> None:
        """Release a window's rows; nothing happens if it has ended."""
        held = self._live.pop(key, None)
        if held is not None:
            held.ended = True
            held.release()
            self._changed.set()

    async def run(self) -> None:
        """Lease rows until this is cancelled, while there are windows that lack some."""
        while True:
            self._changed.clear()
            await self._lease_all()
            self._tell_ready()
            await self._changed.wait()

    def _tell_ready(self) -> None:
        for held in self._live.values():
            known = not held.lacks_rows or (held.tried and held is self._oldest)
            if known and not held.ready.done():
                held.ready.set_result(None)

    @property
    def _oldest(self) -> _Held | None:
        return next(iter(self._live.values()), None)

    async def _lease_all(self) -> None:
        """Lease what is missing, the oldest window's rows first, as far as there are slots."""
        for held in list(self._live.values()):
            if held.ended or await self._lease(held):
                continue
            younger = [each for key, each in self._live.items() if key > held.key and each.leases]
            for each in younger:  # they were complete, or opened first
                each.give_back()
            if younger:
                self._changed.set()
            elif held is self._oldest:
                held.give_back()
            return

    async def _lease(self, held: _Held) -> bool:
        """Lease the chunks that are missing and wait for their rows; return whether all chunks are
        leased."""
        reading, room = deque[Lease](), not held.failed
        held.growing = True
        try:
            while ((held.missing and room) or reading) and not held.ended:
                if held.missing and room and len(reading) < READING_MAX:
                    lease = self._lease_now(held.missing[0])
                    if lease is not None:
                        held.leases.append((held.missing.popleft(), lease))
                        reading.append(lease)
                    room = lease is not None
                elif not await _all_valid(reading.popleft()):
                    held.failed, room = True, False
            return room
        finally:
            held.growing, held.tried = False, True
            if held.ended:
                held.release()

    def _lease_now(self, rows: range) -> Lease | None:
        try:
            return self._buffer.lease_now({self._table: np.arange(rows.start, rows.stop)})
        except ConfigError:  # the buffer, perhaps a second iterator's, has fewer slots than rows
            return None


async def _all_valid(lease: Lease) -> bool:
    """Wait until each row of a lease is valid or has failed; return whether all are valid."""
    try:
        await lease.ready()
    except (ReadError, ClosedError):
        return False
    return True

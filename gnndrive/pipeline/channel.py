"""A bounded channel between two stages, with places that are reserved before work starts.

A queue that refuses a finished item can refuse the oldest batch while younger ones fill it, and
then no stage can go on. So a worker first reserves a place, then works, then puts: `put` never
waits (rule 2). Items leave in index order, or, if the channel is not `ordered`, in the order in
which they were put. In an ordered channel the places that are reserved and not yet taken are a
window of indices that starts at the oldest batch not taken.

All methods are called in one event loop; between threads use `OutputQueue`.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import deque
from itertools import takewhile
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class ChannelEnded(Exception):
    """The channel has ended: it takes no more reservations, or every item was taken."""


class Source(ABC, Generic[Item]):
    """What a stage takes items from; `change_of` waits for its changes. `taken` counts the items
    that were taken; in an ordered channel it is the index of the next one."""

    taken = 0

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    @abstractmethod
    def reach(self, together: int) -> int:
        """How many items may be ready before one is taken, if `together` are begun at a time."""

    @abstractmethod
    async def arrival(self) -> None:
        """Wait until an item can be taken; ChannelEnded: every item was taken."""

    @abstractmethod
    def peek(self, most: int) -> list[Item]:
        """The items, up to `most`, that can be taken without waiting, in their order."""

    @abstractmethod
    def take_now(self, count: int = 1) -> list[Item]:
        """Take the first `count` items, which `peek(count)` must have returned. What the caller
        does before its next await happens in the order of the items (rule 1)."""

    def _wake_waiters(self) -> None:
        # All of them, because a single one may be cancelled before it looks.
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


class Channel(Source[Item]):
    """Hands numbered items from one stage to the next; if `ordered`, strictly by index, from
    `first` on. At most `bound` places are reserved and not yet taken (None: without limit)."""

    def __init__(self, bound: int | None, ordered: bool = True, first: int = 0) -> None:
        super().__init__()
        self.bound, self.ordered = bound, ordered
        self.reserved = self.taken = self._arrived = first
        # By index if ordered, else in the order of `put`; the next one is that of `taken`.
        self._items: dict[int, Item] = {}
        self._total: int | None = None

    def __len__(self) -> int:
        """Items that were put and not yet taken, those that wait for an older one included."""
        return len(self._items)

    @property
    def under_way(self) -> int:
        """Places reserved and not yet taken: items that are being made or were put."""
        return self.reserved - self.taken

    async def reserve(self, count: int = 1) -> None:
        """Wait for `count` free places and reserve them in one step; ChannelEnded: it has ended."""
        assert self.bound is None or count <= self.bound
        while self._total is None and self.room < count:
            await change_of(self)
        if self._total is not None:
            raise ChannelEnded
        self.reserve_now(count)

    @property
    def room(self) -> int:
        """Free places."""
        return sys.maxsize if self.bound is None else self.bound - self.under_way

    def reserve_now(self, count: int) -> None:
        """Reserve `count` places, which must be free; see `reserve`."""
        assert self.room >= count
        self.reserved += count

    def give_back(self) -> None:
        """Free a reserved place for which no item will be put."""
        self.reserved -= 1
        self._wake_waiters()

    def put(self, index: int, item: Item) -> None:
        """Put the item of batch `index`, whose place was reserved before; never waits."""
        self._items[index if self.ordered else self._arrived] = item
        self._arrived += 1
        self._wake_waiters()

    def end(self, total: int) -> None:
        """Item `total` − 1 is the last one. Places reserved for later items become free."""
        self._total = total if self._total is None else min(total, self._total)
        self.reserved = min(self.reserved, self._total)
        self._wake_waiters()

    async def take(self) -> Item:
        """Take the next item, in the step in which this returns; ChannelEnded: there is none."""
        await self.arrival()
        return self.take_now()[0]

    async def arrival(self) -> None:
        """See `Source.arrival`."""
        while self.taken not in self._items:
            if self._total is not None and self.taken >= self._total:
                raise ChannelEnded
            await change_of(self)

    def reach(self, together: int) -> int:
        """See `Source.reach`: a combined fetch starts only with places for all of its samples."""
        begun = self.under_way + (self.room if self.room >= together else 0)
        return begun if self._total is None else min(begun, self._total - self.taken)

    def peek(self, most: int) -> list[Item]:
        """See `Source.peek`."""
        next_ones = range(self.taken, self.taken + most)
        return [self._items[each] for each in takewhile(self._items.__contains__, next_ones)]

    def take_now(self, count: int = 1) -> list[Item]:
        """See `Source.take_now`."""
        taken = [self._items.pop(self.taken + number) for number in range(count)]
        self.taken += count
        self._wake_waiters()
        return taken

    def drain(self) -> list[Item]:
        """Remove and return the items that were put and not taken, after all stages have ended."""
        items = list(self._items.values())
        self._items.clear()
        return items


async def change_of(*channels: Source[Any]) -> None:
    """Wait until an item is put into one of `channels` or taken from it, or until one ends."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for channel in channels:
        channel._waiters.append(waiter)
    await waiter

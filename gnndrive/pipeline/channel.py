"""A bounded channel between two stages, whose bound is a window taken before work starts.

A queue that refuses a finished item can refuse the oldest batch while younger ones fill it, and
then nothing moves. So a worker first reserves a place, then works, then puts: `put` never waits
(rule 2). Items leave in index order, or, if not `ordered`, as they come. In order, places reserved
and not yet taken are exactly the window that starts at the oldest batch not taken.

All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from operator import itemgetter
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class ChannelEnded(Exception):
    """Nothing more will come out of the channel."""


class Channel(Generic[Item]):
    """Hands numbered items from one stage to the next.

    Args:
        bound: places that may be reserved and not yet taken, at least 1; None: as many as come.
        ordered: whether items leave strictly by index, from `first`.
        first: the first item's index.
    """

    def __init__(self, bound: int | None, ordered: bool = True, first: int = 0) -> None:
        self.bound = bound
        self.ordered = ordered
        self.reserved = first
        self.taken = first
        # A heap by index; first come, first out if not ordered.
        self._items: list[tuple[int, Item]] = []
        self._arrivals = 0
        self._total: int | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Items that are ready to be taken or waiting for an older one."""
        return len(self._items)

    @property
    def under_way(self) -> int:
        """Places reserved and not yet taken: work going on and items waiting."""
        return self.reserved - self.taken

    async def reserve(self, count: int = 1) -> int:
        """Take places for items that are yet to be made, all in one step; returns how many were
        taken before.

        Raises:
            ChannelEnded: the channel's last item has been announced.
        """
        assert self.bound is None or count <= self.bound
        while self._total is None and self.room < count:
            await change_of(self)
        if self._total is not None:
            raise ChannelEnded
        return self.reserve_now(count)

    @property
    def room(self) -> int:
        """Free places."""
        return sys.maxsize if self.bound is None else self.bound - self.under_way

    def reserve_now(self, count: int = 1) -> int:
        """Take places where there is `room`; see `reserve`."""
        assert self.room >= count
        self.reserved += count
        return self.reserved - count

    def put(self, index: int, item: Item) -> None:
        """Put the item of batch `index` into the place reserved for it; never waits."""
        rank = index if self.ordered else self._arrivals
        self._arrivals += 1
        heapq.heappush(self._items, (rank, item))
        self._changed()

    def end(self, total: int) -> None:
        """Announce that item `total` − 1 is the last there will ever be; places for others are
        given back."""
        self._total = total if self._total is None else min(total, self._total)
        self.reserved = min(self.reserved, self._total)
        self._changed()

    async def take(self) -> Item:
        """The next item. It is taken in the step in which this returns: what the caller does before
        its next wait happens in the order of taking (rule 1).

        Raises:
            ChannelEnded: each item announced was taken.
        """
        await self.arrival()
        return self.take_now()[0]

    async def arrival(self) -> None:
        """Wait until `take` would return at once.

        Raises:
            ChannelEnded: each item announced was taken.
        """
        while not self._ready():
            if self._total is not None and self.taken >= self._total:
                raise ChannelEnded
            await change_of(self)

    @property
    def coming(self) -> int:
        """Items that are yet to be taken, as far as that is known."""
        return sys.maxsize if self._total is None else self._total - self.taken

    def peek(self, most: int) -> list[Item]:
        """What `most` calls of `take` would return at once, as far as it is there."""
        found: list[Item] = []
        for rank, item in heapq.nsmallest(most, self._items, key=itemgetter(0)):
            if self.ordered and rank != self.taken + len(found):
                break
            found.append(item)
        return found

    def take_now(self, count: int = 1) -> list[Item]:
        """Take the first `count` items, all of which `peek` shows."""
        taken: list[Item] = []
        for _ in range(count):
            assert self._ready()
            self.taken += 1
            taken.append(heapq.heappop(self._items)[1])
        self._changed()
        return taken

    def drain(self) -> list[Item]:
        """What was put and never taken; for the end, when nobody takes any more."""
        items = [item for _, item in self._items]
        self._items.clear()
        return items

    def _ready(self) -> bool:
        return bool(self._items) and (not self.ordered or self._items[0][0] == self.taken)

    def _changed(self) -> None:
        # All look again: a waiter woken alone could be cancelled before it looks, and the wake-up
        # would be lost.
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


async def change_of(*channels: Channel[Any]) -> None:
    """Wait until something is put into one of `channels`, taken from it or reserved in it."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for channel in channels:
        channel._waiters.append(waiter)
    await waiter

"""`Turns`: the batches that ranks have joined with, in the order in which they are admitted.

Rule 15 of the protocol: batches are admitted in the order of (epoch, step, rank), and the turns of
a rank that has ended the epoch, or died, are void. Without it there are deadlocks: a lease of rank
0's later batch waits for rank 0's user, who waits in an all-reduce for rank 1's user, who waits for
a batch that finds no slot. With it, when some rank has not gathered step m, all batches before step
m are gathered or need nothing from steps from m on, and the batches of step m are admitted in turn.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from math import inf
from typing import TypeAlias, TypeVar

from gnndrive.host.messages import ProtocolError
from gnndrive.pipeline.channel import Source, change_of

Item = TypeVar("Item")
Turn: TypeAlias = tuple[int, int, int]
"""(epoch, step, rank)."""


class Turns(Source[Item]):
    """Batches of several ranks; the extract stage takes them. It has no bound, because ranks limit
    the batches that they join with."""

    def __init__(self, ranks: Iterable[int]) -> None:
        super().__init__()
        # Of each rank: the next (epoch, step) with which it can join, and the batches that wait.
        self._expected = dict.fromkeys(sorted(ranks), (0, 0))
        self._waiting: dict[int, deque[tuple[Turn, Item]]] = {
            rank: deque() for rank in self._expected
        }

    # ---- the ranks ----

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take turns."""
        return tuple(self._expected)

    def has(self, rank: int, epoch: int, step: int) -> bool:
        """Whether a batch waits for its turn."""
        return any(turn == (epoch, step, rank) for turn, _ in self._waiting.get(rank, ()))

    def join(self, rank: int, epoch: int, step: int, item: Item) -> None:
        """Have a batch wait for its turn; the turns that the rank skips are void. ProtocolError:
        the turn has passed, or the rank was dropped."""
        if not self._expected.get(rank, (epoch, step + 1)) <= (epoch, step):
            raise ProtocolError(f"rank {rank} joins with batch {step} of epoch {epoch} too late")
        self._expected[rank] = (epoch, step + 1)
        self._waiting[rank].append(((epoch, step, rank), item))
        self._wake_waiters()

    def remove(self, rank: int, epoch: int, step: int) -> None:
        """Remove a batch that waits; its turn is void."""
        kept = [each for each in self._waiting[rank] if each[0] != (epoch, step, rank)]
        self._waiting[rank] = deque(kept)
        self._wake_waiters()

    def end_epoch(self, rank: int, epoch: int) -> None:
        """The rank has ended an epoch: the rest of its turns are void."""
        self._expected[rank] = max(self._expected[rank], (epoch + 1, 0))
        self._wake_waiters()

    def has_passed(self, rank: int, epoch: int, step: float = inf) -> bool:
        """Whether a rank has no turns before `step` in an epoch any more, or none at all."""
        return self._expected.get(rank, (epoch + 1, 0)) >= (epoch, step)

    def drop(self, rank: int) -> None:
        """The rank has left: all of its turns are void."""
        del self._expected[rank], self._waiting[rank]
        self._wake_waiters()

    @property
    def awaited(self) -> int | None:
        """The rank whose turn is the next one and that has not joined with it yet; None: there is
        none, because a batch is ready to be taken or no rank is left."""
        if self.peek(1) or not self._expected:
            return None
        return min((*expected, rank) for rank, expected in self._expected.items())[2]

    # ---- the extract stage ----

    def peek(self, most: int) -> list[Item]:
        """See `Source.peek`; in the order of their turns."""
        found: list[Item] = []
        waiting = {rank: iter(batches) for rank, batches in self._waiting.items()}
        # The next turn of each rank, with its batch if it has joined.
        heads = {rank: self._next(rank, batches) for rank, batches in waiting.items()}
        while heads and len(found) < most:
            rank = min(heads, key=lambda each: heads[each][0])
            _, items = heads[rank]
            if not items:
                break
            found += items
            heads[rank] = self._next(rank, waiting[rank])
        return found

    def _next(self, rank: int, batches: Iterable[tuple[Turn, Item]]) -> tuple[Turn, list[Item]]:
        """The next of a rank's batches that wait; behind the last, the turn that is expected."""
        for turn, item in batches:
            return turn, [item]
        return (*self._expected[rank], rank), []

    def take_now(self, count: int = 1) -> list[Item]:
        """See `Source.take_now`."""
        taken: list[Item] = []
        for _ in range(count):
            (first,) = self.peek(1)
            rank = next(r for r, each in self._waiting.items() if each and each[0][1] is first)
            taken.append(self._waiting[rank].popleft()[1])
        self.taken += count
        self._wake_waiters()
        return taken

    async def arrival(self) -> None:
        """See `Source.arrival`; batches end only with the group."""
        while not self.peek(1):
            await change_of(self)

    def reach(self, together: int) -> int:
        """See `Source.reach`; ranks do not say which batches they make."""
        return sys.maxsize

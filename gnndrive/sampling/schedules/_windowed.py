"""`Windowed`: what the schedules of mega-batches share, which is cutting windows into batches.

A subclass says which partitions and which inputs each window has. The number of batches in an epoch
does not depend on that: a window is cut into as many more batches as the epoch lacks, so that every
epoch of a loader is as long as `len()` says, and nothing has to be drawn to know it.

Several ranks draw from the same windows (`dealing.deal_windows`), unless the context asks for the
windows of one of them: then each has its own. The seeds of these differ, and so does the length of
the epochs: it is that of the rank which has the most batches; the others cut theirs finer, and if
they have fewer seeds than that, repeat some.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array, Int64Array, Seeds
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules._order import Order, order_width
from gnndrive.sampling.schedules._parts import Partitions, finding_bytes, parts_bytes
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window


@dataclass(frozen=True, slots=True)
class Group:
    """A window before its seeds are cut into batches.

    Attributes:
        partitions: see `Window`.
        source: positions among the inputs, int32 or int64.
        starts, lengths: the window's seeds are those at `source[starts[i] : starts[i] +
            lengths[i]]` for each i; int64 [pieces].
    """

    partitions: Int32Array
    source: Int32Array | Int64Array
    starts: Int64Array
    lengths: Int64Array

    def at(self, places: Int64Array) -> Int32Array | Int64Array:
        """Return the positions of the window's seeds at `places` among all its seeds."""
        ends = np.cumsum(self.lengths)
        piece = np.searchsorted(ends, places, side="right")
        found: Int64Array = self.starts[piece] + self.lengths[piece] - ends[piece] + places
        return self.source[found]

    def all(self) -> Int32Array | Int64Array:
        """Return the positions of all seeds of the window, ascending."""
        pieces = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        found = np.concatenate([self.source[start : start + length] for start, length in pieces])
        found.sort()
        return found


@dataclass(frozen=True, slots=True)
class Groups:
    """The windows of an epoch that have seeds, in order.

    Attributes:
        seeds: how many seeds each has, at least 1; int64 [windows].
        group: returns a window, by its place.
    """

    seeds: Int64Array
    group: Callable[[int], Group]


def epoch_length(seeds: int, batch_size: int, windows: int, drop_last: bool) -> int:
    """Return the number of batches in an epoch of at most so many windows, in one pass.

    It can be reached however the seeds lie in the windows. Windows with sᵢ seeds need at least
    Σ⌈sᵢ/B⌉ = Σ(⌊(sᵢ − 1)/B⌋ + 1) ≤ ⌊(S − w)/B⌋ + w ≤ ⌈S/B⌉ + w − 1 batches if w of them have seeds,
    and can be cut into any number from there to S. They have Σ⌊sᵢ/B⌋ ≥ ⌊S/B⌋ − w + 1 whole batches.
    """
    if drop_last:
        return max(seeds // batch_size - windows + 1, 0)
    return min(seeds, -(-seeds // batch_size) + windows - 1)


def cut(seeds: Int64Array, batch_size: int, total: int, drop_last: bool) -> list[int]:
    """Return the number of batches of each window, `total` together.

    The windows with the most seeds in a batch are cut finer. With `drop_last`, the windows with the
    most batches lose some.

    Args:
        seeds: the number of seeds of each window, at least 1; int64 [windows].
        total: with `drop_last` at most, otherwise at least the batches that the windows need. If it
            is more than there are seeds, windows get more batches than seeds.
    """
    counts: list[int] = least(seeds, batch_size, drop_last).tolist()
    sizes = seeds.tolist()

    def weight(place: int) -> float:
        return -counts[place] if drop_last else -sizes[place] / counts[place]

    change = total - sum(counts)
    heap = [(weight(place), place) for place in range(len(sizes))] if change else []
    heapify(heap)
    for _ in range(abs(change)):
        place = heap[0][1]
        counts[place] += -1 if drop_last else 1
        heapreplace(heap, (weight(place), place))
    return counts


def least(seeds: Int64Array, batch_size: int, drop_last: bool) -> Int64Array:
    """Return how many batches windows with so many seeds need, or with `drop_last` have."""
    return seeds // batch_size if drop_last else -(-seeds // batch_size)


def checked_context(
    context: ScheduleContext, name: str, fewest: Callable[[Partitions], int] = lambda store: 1
) -> tuple[Partitions, int]:
    """Return the partitioned store and the most partitions in a window. `fewest` returns how few a
    schedule can work with; it may block."""
    partitioned, most = context.partitioned, context.megabatch
    if partitioned is None:
        raise ConfigError(
            f"the schedule {name!r} needs a partitioned store: partition it first (gnndrive "
            "partition)"
        )
    count = partitioned.num_parts
    if most is None:
        most = fewest(partitioned)
    if not 1 <= most <= count:
        raise ConfigError(
            f"megabatch={most}: give the number of partitions in a window, from 1 to {count}, "
            "which the partitioned store has"
        )
    if context.batch_size is None:
        raise ConfigError(f"the schedule {name!r} needs batch_size=: give a number of seeds")
    if context.passes < 1:
        raise ConfigError(f"passes={context.passes}: give how often a window's batches come")
    return partitioned, most


class Windowed(Schedule):
    """Cuts windows of partitions into batches.

    Args:
        context: what `make` got, checked by `checked_context`.
        windows_max: the most windows that an epoch can have.
        keys_end: see `find_parts`.
    """

    def __init__(self, context: ScheduleContext, windows_max: int, keys_end: int) -> None:
        self._context, self._windows_max, self._keys_end = context, windows_max, keys_end
        self.deals = context.world > 1
        self._batch_size = context.batch_size or 0
        if context.world > windows_max:
            raise ConfigError(
                f"an epoch has {windows_max} windows for {context.world} ranks, and each rank "
                "needs one: leave per_rank out, give a smaller megabatch= than "
                f"{context.megabatch}, or partition the store into more parts"
            )

    @property
    @abstractmethod
    def _epoch_bytes(self) -> int:
        """Bytes that `_groups` takes, without `InputParts`, and that its result keeps."""

    @abstractmethod
    def _groups(self, epoch: int) -> Groups:
        """Return the epoch's windows with seeds."""

    def _dealt(self, windows: int, rank: int) -> range:
        """Which of the windows a rank gets; there are at least as many as ranks."""
        return range(rank, windows, self._context.world)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`: the inputs by partition, which are kept for the loader, and
        the orders of windows, which together have each seed once."""
        count, keys = len(self._context.inputs), self._keys_end
        orders = order_width(count) * count + 256 * self._windows_max + self._epoch_bytes
        return parts_bytes(count, keys) + max(finding_bytes(count, keys), orders)

    def __len__(self) -> int:
        """Return the number of batches in an epoch; for one of several ranks, in the first epoch.
        Blocks for one of several ranks at the first call."""
        context = self._context
        if context.world > 1:
            return self.length(0)
        whole = len(context.inputs), self._batch_size, self._windows_max, context.drop_last
        return context.passes * epoch_length(*whole)

    def length(self, epoch: int) -> int:
        """See `Schedule.length`; the epochs of several ranks differ."""
        if self._context.world == 1:
            return len(self)
        shares = self._shares(self._groups(epoch).seeds)
        return self._context.passes * sum(count for _, count in shares)

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield this rank's windows with seeds. The first call blocks, because it finds the
        partitions of the inputs; what it returns never blocks."""
        groups = self._groups(epoch)
        return self._cut(groups, self._shares(groups.seeds), self._key(epoch, 1))

    def _key(self, epoch: int, purpose: int) -> int:
        return batch_key(self._context.seed, epoch, purpose)

    def _shares(self, seeds: Int64Array) -> list[tuple[int, int]]:
        """The place of each of this rank's windows, and its number of batches in a pass."""
        world, drop_last, size = self._context.world, self._context.drop_last, self._batch_size
        if not len(seeds):
            return []
        if len(seeds) < world:  # some partitions have all the seeds
            dealt = [range(rank % len(seeds), rank % len(seeds) + 1) for rank in range(world)]
        else:
            dealt = [self._dealt(len(seeds), rank) for rank in range(world)]
        mine = seeds[dealt[self._context.rank]]
        if world == 1:
            total = epoch_length(int(seeds.sum()), size, self._windows_max, drop_last)
        else:
            needed = [int(least(seeds[each], size, drop_last).sum()) for each in dealt]
            total = min(needed) if drop_last else max(needed)
        counts = cut(mine, size, total, drop_last)
        shares = zip(dealt[self._context.rank], counts, strict=True)
        return [(place, count) for place, count in shares if count]

    def _cut(self, groups: Groups, shares: list[tuple[int, int]], key: int) -> Iterator[Window]:
        passes, first = self._context.passes, 0
        for number, (place, count) in enumerate(shares):
            group = groups.group(place)
            batches = self._batches(group, count, first, batch_key(key, place, 0))
            yield Window(batches, number, group.partitions, first, passes * count)
            first += passes * count

    def _batches(self, group: Group, count: int, first: int, key: int) -> Iterator[Seeds]:
        """The batches of a window's passes."""
        size, seeds = self._batch_size, int(group.lengths.sum())
        for turn in range(self._context.passes):
            draw = self._draw(group, seeds, batch_key(key, turn, 0))
            repeated = draw(seeds) if count > seeds else None
            for batch in range(count):
                if repeated is not None:
                    at = repeated[[batch % seeds]]
                elif self._context.drop_last:
                    at = draw(size)
                else:
                    at = draw((batch + 1) * seeds // count - batch * seeds // count)
                yield self._context.inputs.seeds(first + turn * count + batch, at)

    def _draw(self, group: Group, seeds: int, key: int) -> Callable[[int], Int32Array | Int64Array]:
        """What returns the positions of so many next seeds of a window."""
        if self._context.shuffle:
            order = Order(seeds, key, 0)
            return lambda count: group.at(order.next(count))
        ascending, taken = group.all(), 0

        def following(count: int) -> Int32Array | Int64Array:
            nonlocal taken
            taken += count
            return ascending[taken - count : taken]

        return following

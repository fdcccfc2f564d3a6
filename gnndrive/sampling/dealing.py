"""Which batches of an epoch a rank loads, for any schedule.

`deal` cuts the epoch as one process would and gives each rank every `world`-th batch, so that the
ranks together yield one process's batches, bit for bit; `deal_windows` does so for mega-batches.
`number_batches` is for a schedule that yields this rank's batches only, such as that of a user's
DistributedSampler, or one of mega-batches that each rank has for itself (`Schedule.deals`).

With `deal`, the seeds of other ranks' batches are drawn and dropped, because an order can be made
in sequence only; that takes far less than sampling around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from gnndrive.common.records import Seeds
from gnndrive.sampling.schedules.base import Window


def steps_left(total: int, done: int, world: int, drop_last: bool) -> int:
    """Return how many batches each rank still yields in an epoch of `total` batches, of which all
    ranks together have yielded `done`. `drop_last`: a last round of fewer batches than ranks is
    left out."""
    left = max(total - done, 0)
    return left // world if drop_last else -(-left // world)


def deal(
    windows: Iterator[Window], total: int, done: int, rank: int, world: int, drop_last: bool
) -> Iterator[tuple[Window, Seeds]]:
    """Yield the seeds of one rank's batches, each with its window.

    Batch `done + k * world + rank` is this rank's k-th. A number from `total` on is a pad, which
    repeats the batch of that number modulo `total`, so that all ranks yield as many batches.

    The seeds' `index` counts this rank's batches from 0, and their `dealt` is the batch's number in
    the epoch. For the other arguments see `steps_left`.
    """
    steps = steps_left(total, done, world, drop_last)
    wanted = iter(range(done + rank, done + steps * world, world))
    last = done + (steps - 1) * world + rank
    repeated = last % total if steps and last >= total else None
    kept: tuple[Window, Seeds] | None = None
    index, number = 0, next(wanted, None)
    for place, (window, seeds) in enumerate(flat(windows)):
        if place == repeated:
            kept = window, seeds.dealt_as(place, steps - 1)
        if place == number:
            yield window, seeds.dealt_as(place, index)
            index, number = index + 1, next(wanted, None)
        if index == steps:
            return
    if kept is not None:
        yield kept


def deal_windows(
    windows: Iterator[Window], total: int, done: int, rank: int, world: int, drop_last: bool
) -> Iterator[Window]:
    """Yield the windows in which a rank has batches, each with these alone.

    They are those of `deal`, but for a pad, which repeats a batch of the last window: for the
    epoch's first batches, another window would be loaded. So no batch before the pads is in an
    earlier window than a batch that comes before it on any rank.
    """
    steps = steps_left(total, done, world, drop_last)
    numbers, first = range(done + rank, done + steps * world, world), 0
    pad = numbers[-1] - total if numbers else -1  # its place among the pads, if there is one
    for window in windows:
        end = window.first + window.count
        begin, stop = (max(-(-(n - done - rank) // world), 0) for n in (window.first, end))
        own, again = numbers[begin:stop], None
        if pad >= 0 and end == total:
            again = total - 1 - pad % window.count
        count = len(own) + (again is not None)
        if count:
            batches = _picked(window, own, again, first)
            yield replace(window, batches=batches, first=first, count=count)
            first += count


def _picked(window: Window, own: range, again: int | None, index: int) -> Iterator[Seeds]:
    """The batches of a window whose numbers are in `own`, and then batch `again`, if any; the
    first has this index."""
    pad: Seeds | None = None
    for number, seeds in enumerate(window.batches, window.first):
        if number == again:
            pad = seeds
        if number in own:
            yield seeds.dealt_as(number, index)
            index += 1
    if pad is not None and again is not None:
        yield pad.dealt_as(again, index)


def number_batches(
    windows: Iterator[Window], done: int, number: Callable[[int], int]
) -> Iterator[tuple[Window, Seeds]]:
    """Yield the seeds of all batches of this rank but the first `done`, each with its window.

    The seeds' `index` counts from 0. Their `dealt` is the batch's number among all ranks' batches,
    which `number` returns for the index that they have in `windows`.
    """
    for index, (window, seeds) in enumerate(flat(skip(windows, done))):
        yield window, seeds.dealt_as(number(seeds.index), index)


def skip(windows: Iterator[Window], done: int) -> Iterator[Window]:
    """Yield the windows of an epoch without its first `done` batches.

    Windows whose batches are all done are left out, and their seeds are not drawn. A window of
    which some are done begins with its first batch that is not; `first` and `count` say so.
    """
    for window in windows:
        if done >= window.count:
            done -= window.count
        elif done:
            first, count = window.first + done, window.count - done
            batches = islice(window.batches, done, None)
            yield replace(window, batches=batches, first=first, count=count)
            done = 0
        else:
            yield window


def flat(windows: Iterator[Window]) -> Iterator[tuple[Window, Seeds]]:
    """Yield the seeds of all batches, each with its window."""
    return ((window, seeds) for window in windows for seeds in window.batches)

"""Random groups of partitions, each loaded whole and sampled inside (HierBatching).

Each epoch cuts a random order of the partitions into even groups. The seeds in a group are
shuffled and cut into batches, which come one after another, so that an epoch loads each partition
once. `passes` has a group's batches come again, in another order, while the group is in memory.

Groups without seeds are neither loaded nor yielded.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array
from gnndrive.sampling.schedules._order import Order
from gnndrive.sampling.schedules._windowed import Group, Groups, Windowed, checked_context
from gnndrive.sampling.schedules.base import InputEdges, ScheduleContext, WindowSizes


class Megabatch(Windowed):
    """Makes each window of a group of partitions."""

    name = "megabatch"

    def __init__(self, context: ScheduleContext) -> None:
        self._partitioned, most = checked_context(context, self.name)
        parts = self._partitioned.num_parts
        super().__init__(context, -(-parts // most), parts)

    @classmethod
    def make(cls, context: ScheduleContext) -> Self:
        """See `Schedule.make`."""
        if isinstance(context.inputs, InputEdges):
            raise ConfigError(
                "mega-batches of random groups are for seed nodes, because most edges have their "
                'ends in two groups: give LinkNeighborLoader strategy="marius"'
            )
        if context.order is not None:
            raise ConfigError(
                f"order={context.order!r}: mega-batches of random groups come in random order; "
                'leave order= out, or give strategy="marius"'
            )
        return cls(context)

    @property
    def window_sizes(self) -> WindowSizes:
        """See `Schedule.window_sizes`: the groups are even, and two have no partition in common."""
        parts, windows = self._partitioned.num_parts, self._windows_max
        one = -(-parts // windows)
        return WindowSizes(one, min(2 * one, parts), windows, one)

    @property
    def _epoch_bytes(self) -> int:
        """See `Windowed`: the partitions in their order, and the seeds of each."""
        return 64 * self._partitioned.num_parts

    def _groups(self, epoch: int) -> Groups:
        """See `Windowed`."""
        count, groups = self._partitioned.num_parts, self._windows_max
        order: Int64Array = np.arange(count)
        if self._context.shuffle:
            order = Order(count, self._key(epoch, 0), 0).next(count)
        inputs = self._context.inputs.parts(self._partitioned)
        lengths = np.zeros(count, np.int64)
        lengths[inputs.keys] = np.diff(inputs.bounds)
        starts = np.cumsum(lengths) - lengths
        edges = np.arange(groups + 1) * count // groups
        seeds = np.add.reduceat(lengths[order], edges[:-1])
        places = np.flatnonzero(seeds)

        def group(place: int) -> Group:
            begin, end = edges[places[place] : places[place] + 2]
            chosen = np.sort(order[begin:end])
            each = chosen[lengths[chosen] > 0]
            return Group(chosen.astype(np.int32), inputs.positions, starts[each], lengths[each])

        return Groups(seeds[places], group)

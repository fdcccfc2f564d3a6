"""The orders of MariusGNN (EuroSys 2023, §5): partitions in memory change one by one.

Each epoch joins the store's partitions at random into logical ones. Some of these are in memory
together, a state, and from state to state one gives way to another. A state is a window, and its
seeds are batches like those of a mega-batch (`_windowed.py`).

- `dispersed`, for nodes: each logical partition comes into memory once, and each seed is in one of
  the states that have its partition.
- `sequential`, for nodes: one window, of the partitions that have seeds and random others.
- `comet`, for edges: the order BETA, in which any two logical partitions meet. The edges between
  two of the store's partitions are all in one of the states that have both.
- `beta`, for edges: the same without joining partitions.

What a swap costs: the rows of one logical partition, and the adjacency of the whole next state,
because its graph is made anew. So an epoch of s states, of c of l logical partitions each, reads
(s + c − 1) / l times the rows and s c / l times the adjacency. With l = 8 and c = 2 these are 1 and
1.75 for `dispersed`, 3.6 and 7 for `comet`.

States without seeds are left out. Two states that follow one another then may differ in more than
one logical partition; what has no room waits until the batches of the older one are done.

When not to use it: a store whose partitions follow the graph's communities loses fewer edges in the
random groups of the schedule `megabatch`, and reads each partition once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules._order import Order, order_width
from gnndrive.sampling.schedules._parts import InputParts, Partitions
from gnndrive.sampling.schedules._windowed import Group, Groups, Windowed, checked_context
from gnndrive.sampling.schedules.base import InputEdges, ScheduleContext, WindowSizes


class Draws:
    """Random draws that depend on a key alone; each draw differs from those before.

    Args:
        key: determines the draws.
    """

    def __init__(self, key: int) -> None:
        self._key, self._drawn = key, 0

    def key(self) -> int:
        """Return a key of 64 bits, another one at each call."""
        self._drawn += 1
        return batch_key(self._key, self._drawn, 0)

    def permutation(self, count: int) -> list[int]:
        """Return the numbers below `count` in random order."""
        order: list[int] = Order(count, self.key(), 0).next(count).tolist()
        return order

    def below(self, count: int) -> int:
        """Return a random number below `count`, which is at least 1."""
        return self.key() % count

    def each_below(self, counts: Int64Array) -> Int64Array:
        """Return a random number below each of `counts`, which are at least 1; int64 [n]."""
        random = np.random.Philox(key=self.key()).random_raw(len(counts))
        return (random % counts.astype(np.uint64)).astype(np.int64)


def dispersed(count: int, resident: int, draws: Draws) -> Iterator[list[int]]:
    """Yield states that together have each partition, each read once: in each, a random partition
    gives way to one that was not in memory before. There are count − resident swaps."""
    order = draws.permutation(count)
    state = order[:resident]
    yield list(state)
    for unseen in order[resident:]:
        state[draws.below(resident)] = unseen
        yield list(state)


def beta(count: int, resident: int, draws: Draws) -> Iterator[list[int]]:
    """Yield states of which for any two partitions one has both (BETA, Marius, OSDI 2021).

    Needs 2 ≤ resident ≤ count; `beta_swaps` has the number of swaps.
    """
    order = draws.permutation(count)
    state, left = order[:resident], order[resident:]
    yield list(state)
    while left:
        state = [state[at] for at in draws.permutation(resident)]
        left = [left[at] for at in draws.permutation(len(left))]
        for at, new in enumerate(left):
            state[-1], left[at] = new, state[-1]
            yield list(state)
        left = [left[at] for at in draws.permutation(len(left))]
        stay = min(resident - 1, len(left))
        for at in range(stay):
            state[at] = left[at]
            yield list(state)
        left = left[stay:]


def beta_swaps(count: int, resident: int) -> int:
    """Return how many swaps `beta` makes; its states are one more."""
    swapped = count - resident
    if not swapped:
        return 0
    whole = swapped // (resident - 1)
    return swapped + (whole + 1) * swapped - (whole + 1) * whole * (resident - 1) // 2


_OF_NODES, _OF_EDGES = ("dispersed", "sequential"), ("comet", "beta")
_PARTS_OF_EDGES_MAX = 4096  # of each two partitions is noted whether an edge is between them
_SHUFFLED_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Which inputs are in which state: for each i, those at the positions `source[start[i] :
    start[i] + length[i]]` are in `state[i]`."""

    source: Int32Array | Int64Array
    state: Int64Array
    start: Int64Array
    length: Int64Array


class Marius(Windowed):
    """Makes a window of each state, of at most `megabatch` partitions. Without `shuffle`, every
    epoch has the states of the first."""

    name = "marius"

    def __init__(self, context: ScheduleContext) -> None:
        self._of_edges = isinstance(context.inputs, InputEdges)
        self._order = _checked_order(context.order, self._of_edges)
        self._partitioned, self._most = checked_context(
            context, self.name, partial(_fewest, context, self._order)
        )
        self._count = self._partitioned.num_parts
        self._logical = self._checked_logical(context.logical)
        # Joined as evenly as they can be; the larger ones are first.
        self._sizes = (self._count + self._logical - 1 - np.arange(self._logical)) // self._logical
        self._resident = self._checked_resident()
        if self._of_edges and self._count > _PARTS_OF_EDGES_MAX:
            raise ConfigError(
                f"the store has {self._count:,} partitions, and for seed edges it may have "
                f"{_PARTS_OF_EDGES_MAX:,}: partition it into fewer (gnndrive partition --parts 64)"
            )
        if context.world > 1 and self._order == "sequential":
            raise ConfigError(
                f"order='sequential' has one window, and {context.world} ranks with per_rank=True "
                "need one each: leave per_rank out, or give order='dispersed'"
            )
        states = {
            "sequential": 1, "dispersed": self._logical - self._resident + 1,
        }.get(self._order) or beta_swaps(self._logical, self._resident) + 1  # fmt: skip
        super().__init__(context, states, self._count**2 if self._of_edges else self._count)

    @classmethod
    def make(cls, context: ScheduleContext) -> Self:
        """See `Schedule.make`."""
        return cls(context)

    @property
    def window_sizes(self) -> WindowSizes:
        """See `Schedule.window_sizes`: two states have all but one logical partition in common."""
        if self._order == "sequential":
            return WindowSizes(self._most, self._most, 1, self._most)
        one, two = (int(self._sizes[: self._resident + more].sum()) for more in (0, 1))
        least = one
        if self._context.logical is None and 1 < self._logical < self._count:
            least = max(one, 2 * int(self._sizes[0]))  # with fewer, there are more logical ones
        return WindowSizes(one, two, self._windows_max, least)

    def _checked_logical(self, logical: int | None) -> int:
        """The number of logical partitions. By default two fit into memory, which mixes the store's
        partitions as much as can be and makes the fewest swaps (MariusGNN §6)."""
        if self._order == "beta" or (self._most == 1 and logical is None):
            if logical not in (None, self._count):
                raise ConfigError(
                    f"logical={logical}: order='beta' joins no partitions; leave logical= out, or "
                    "give order='comet'"
                )
            return self._count
        if logical is None:
            return 1 if self._most == self._count else -(-self._count // (self._most // 2))
        if not 1 <= logical <= self._count:
            raise ConfigError(
                f"logical={logical}: give the number of logical partitions, from 1 to "
                f"{self._count}, which the store has"
            )
        return logical

    def _checked_resident(self) -> int:
        """The number of logical partitions that are in memory together."""
        resident = int(np.searchsorted(np.cumsum(self._sizes), self._most, side="right"))
        needed = 2 if self._of_edges and self._logical > 1 else 1
        if resident < needed:
            together = int(self._sizes[:needed].sum())
            more = "" if self._order == "beta" else ", or a larger logical="
            raise ConfigError(
                f"megabatch={self._most}: order={self._order!r} needs {needed} of "
                f"{self._logical} logical partitions in memory, which are up to {together} of the "
                f"store's partitions: give megabatch={together} or more{more}"
            )
        return resident

    def _dealt(self, windows: int, rank: int) -> range:
        """See `Windowed`: states in a row, so that they differ in one logical partition."""
        world = self._context.world
        return range(windows * rank // world, windows * (rank + 1) // world)

    @property
    def _epoch_bytes(self) -> int:
        """See `Windowed`: the states, their inputs, and for nodes an order of all seeds."""
        seeds, states = len(self._context.inputs), self._windows_max
        common = 64 * self._count + states * (48 * self._resident + 2 * self._logical)
        if self._of_edges:
            return common + 96 * min(seeds, self._count**2) + 48 * states * self._resident
        shuffled = order_width(seeds) * seeds + 8 * min(seeds, _SHUFFLED_AT_ONCE)
        return common + shuffled + 96 * states * self._most

    def _groups(self, epoch: int) -> Groups:
        """See `Windowed`."""
        key = self._key(epoch if self._context.shuffle else 0, 0)
        draws, inputs = Draws(key), self._context.inputs.parts(self._partitioned)
        joined = np.array(draws.permutation(self._count))
        if self._order == "sequential":
            return self._one_group(inputs, joined)
        logical = np.empty(self._count, np.int64)
        logical[joined] = np.repeat(np.arange(self._logical), self._sizes)
        states_of = beta if self._of_edges else dispersed
        states = np.array(list(states_of(self._logical, self._resident, draws)))
        inside = np.zeros((len(states), self._logical), bool)
        np.put_along_axis(inside, states, True, axis=1)
        if self._of_edges:
            pieces = self._edges_in_states(inputs, logical, inside, draws)
        else:
            pieces = self._nodes_in_states(inputs, logical, inside, draws)
        return _grouped(pieces, len(states), joined, self._sizes, states)

    def _one_group(self, inputs: InputParts, joined: Int64Array) -> Groups:
        """The partitions that have seeds, and the first others of `joined`."""
        others = joined[~np.isin(joined, inputs.keys)]
        if len(inputs.keys) > self._most:
            raise ConfigError(
                f"order='sequential' needs all {len(inputs.keys)} partitions that have seeds in "
                f"memory, and megabatch={self._most}: partition the store with train_first "
                "(gnndrive partition --train-first), or give order='dispersed'"
            )
        partitions = np.concatenate([inputs.keys, others[: self._most - len(inputs.keys)]])
        partitions.sort()
        lengths = np.diff(inputs.bounds)
        whole = Group(partitions.astype(np.int32), inputs.positions, inputs.bounds[:-1], lengths)
        seeds = np.array([len(inputs.positions)] if len(inputs.positions) else [], np.int64)
        return Groups(seeds, lambda place: whole)

    def _nodes_in_states(
        self, inputs: InputParts, logical: Int64Array, inside: NDArray[np.bool_], draws: Draws
    ) -> _Pieces:
        """The seeds of each partition in random order, spread over the states that have it."""
        source = self._shuffled(inputs, draws) if self._context.shuffle else inputs.positions
        own = logical[inputs.keys]
        # A logical partition is in states that follow one another.
        entered, states = inside.argmax(axis=0)[own], inside.sum(axis=0)[own]
        which = np.repeat(np.arange(len(own)), states)
        turn = np.arange(len(which)) - np.repeat(np.cumsum(states) - states, states)
        # A random one of the states is the first, because shares may differ by a seed.
        state = entered[which] + (turn + draws.each_below(states)[which]) % states[which]
        seeds, bounds = np.diff(inputs.bounds)[which], inputs.bounds[which]
        start = bounds + turn * seeds // states[which]
        length = bounds + (turn + 1) * seeds // states[which] - start
        some = length > 0
        return _Pieces(source, state[some], start[some], length[some])

    def _shuffled(self, inputs: InputParts, draws: Draws) -> Int32Array | Int64Array:
        """The positions of the inputs, those of each partition in random order."""
        found = np.empty_like(inputs.positions)
        for start, end in zip(inputs.bounds[:-1].tolist(), inputs.bounds[1:].tolist(), strict=True):
            order = Order(end - start, draws.key(), 0)
            for at in range(start, end, _SHUFFLED_AT_ONCE):
                stop = min(at + _SHUFFLED_AT_ONCE, end)
                found[at:stop] = inputs.positions[start + order.next(stop - at)]
        return found

    def _edges_in_states(
        self, inputs: InputParts, logical: Int64Array, inside: NDArray[np.bool_], draws: Draws
    ) -> _Pieces:
        """The edges between any two partitions, in a random one of the states that have both."""
        source, target = logical[inputs.keys // self._count], logical[inputs.keys % self._count]
        order = np.argsort(source, kind="stable")
        bounds = np.searchsorted(source[order], np.arange(self._logical + 1))
        state = np.empty(len(order), np.int64)
        for one in range(self._logical):
            buckets = order[bounds[one] : bounds[one + 1]]
            having = np.flatnonzero(inside[:, one])
            other, place = np.nonzero(inside[having].T)
            first = np.searchsorted(other, np.arange(self._logical + 1))
            begin, end = first[target[buckets]], first[target[buckets] + 1]
            state[buckets] = having[place[begin + draws.each_below(end - begin)]]
        return _Pieces(inputs.positions, state, inputs.bounds[:-1], np.diff(inputs.bounds))


def _grouped(
    pieces: _Pieces, count: int, joined: Int64Array, sizes: Int64Array, states: Int64Array
) -> Groups:
    """The states that have seeds. `joined` holds the store's partitions, those of each logical
    partition in a row, as many as `sizes` says; `states` the logical partitions of each state."""
    order = np.argsort(pieces.state, kind="stable")
    start, length = pieces.start[order], pieces.length[order]
    bounds = np.searchsorted(pieces.state[order], np.arange(count + 1))
    ends = np.concatenate([[0], np.cumsum(length)])
    seeds, begin = np.diff(ends[bounds]), np.cumsum(sizes) - sizes
    places = np.flatnonzero(seeds)

    def group(place: int) -> Group:
        state = places[place]
        parts = [joined[begin[each] : begin[each] + sizes[each]] for each in states[state]]
        partitions = np.sort(np.concatenate(parts)).astype(np.int32)
        own = slice(bounds[state], bounds[state + 1])
        return Group(partitions, pieces.source, start[own], length[own])

    return Groups(seeds[places], group)


def _fewest(context: ScheduleContext, order: str, partitioned: Partitions) -> int:
    """How few partitions in a state an order can work with; blocks for `sequential`."""
    if order == "sequential":
        return max(len(context.inputs.parts(partitioned).keys), 1)
    return min(2 if order in _OF_EDGES else 1, partitioned.num_parts)


def _checked_order(order: str | None, of_edges: bool) -> str:
    """The order; by default the first one for such inputs."""
    own = _OF_EDGES if of_edges else _OF_NODES
    if order is None or order in own:
        return order or own[0]
    inputs, names = "edges" if of_edges else "nodes", " or ".join(map(repr, own))
    raise ConfigError(f"order={order!r} is not an order for seed {inputs}: give {names}")

"""`WindowedSimulation`, `WindowedRanks`: simulations of epochs in windows (`WindowFeed`).

The rows of the file lie in partitions, and behind these are rows that each window has. A window is
a random group of partitions; its batches need rows of the window and kept rows. The windows'
leases, the batches' leases and the reads share one small feature buffer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError, StoreError
from gnndrive.common.records import Int64Array, Sample, Seeds, TopologyChoice
from gnndrive.host.remote_buffer import SharedGraph
from gnndrive.host.window_graphs import LIVE_MAX, WindowGraphs
from gnndrive.pipeline.epoch import Epoch, EpochInputs, Stages
from gnndrive.sampling.dealing import deal_windows, flat
from gnndrive.sampling.rounds import STOPPED, StopToken
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology, TopologyContext, TopologyQuestion
from gnndrive.strategies.windows.feed import WindowFeed
from gnndrive.testing.simulated_ranks import Rank, SimulatedRanks
from gnndrive.testing.simulation import RandomSampler, Scenario, Simulation


@dataclass(frozen=True)
class WindowedScenario(Scenario):
    """The parameters of a simulation of windows.

    Attributes:
        parts: partitions of the file's rows.
        in_window: partitions in a window.
        kept: how many of the file's rows each window has.
        in_chunk: rows that are leased at once for a window.
        few_slots: by how many slots the buffer is smaller than what is kept and two windows need.
        bad_window: the window whose graph cannot be loaded; −1: none.
    """

    parts: int = 10
    in_window: int = 2
    stages: Stages = field(default_factory=lambda: Stages(sweep=1))
    kept: int = 6
    in_chunk: int = 5
    few_slots: int = 0
    bad_window: int = -1

    @property
    def rows_in_part(self) -> int:
        """Rows of a partition."""
        return (self.file.row_count - self.kept) // self.parts

    @property
    def kept_rows(self) -> Int64Array:
        """The rows that each window has, int64 [kept]."""
        first = self.parts * self.rows_in_part
        return np.arange(first, first + self.kept)

    def with_slots(self) -> Self:
        """The same with as many slots as the attributes say."""
        needed = self.kept + 2 * self.in_window * self.rows_in_part
        return replace(self, slots=needed - self.few_slots)


class WindowRows(Topology):
    """Stands for the graph of a window: it only knows the rows that the batches may need, those
    that are not 0 in `there`, which ranks may share."""

    name = "simulated window"

    def __init__(self, there: npt.NDArray[np.uint8]) -> None:
        self._there = there

    @property
    def rows(self) -> Int64Array:
        """The rows, ascending, int64 [n]."""
        return np.flatnonzero(self._there)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """Is never planned."""
        raise NotImplementedError

    @classmethod
    def make(cls, context: TopologyContext) -> Self:
        """Is never made of a store."""
        raise NotImplementedError

    def csc(self) -> Any:
        """Has no adjacency."""
        raise NotImplementedError


class WindowSampler(RandomSampler):
    """Adds random rows of the batch's window to its seeds."""

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology] = ()) -> Sample:
        """See `Sampler.sample`."""
        (window,) = topologies
        assert isinstance(window, WindowRows)
        assert np.isin(seeds.node, window.rows).all(), "a batch was sampled in another window"
        drawn = super().sample_nodes(np.arange(len(seeds.node)), key)
        extra = window.rows[drawn.node[len(seeds.node) :] % len(window.rows)]
        extra = np.setdiff1d(extra, seeds.node)
        per_hop = len(seeds.node), len(extra)
        return replace(drawn, node=np.concatenate([seeds.node, extra]), num_sampled_nodes=per_hop)


class SimulatedWindows:
    """The windows of one epoch and their seeds; see `feed.PartitionWindows`. Rank `rank` of `world`
    gets those in which it has batches."""

    def __init__(
        self, scenario: WindowedScenario, seed: int, rank: int = 0, world: int = 1
    ) -> None:  # fmt: skip
        self._scenario, self._seed, self._rank, self._world = scenario, seed, rank, world
        self.stopped = False

    def windows(self) -> Iterator[Window]:
        """See `PartitionWindows.windows`."""
        dealing = self._scenario.batches, 0, self._rank, self._world, False
        return deal_windows(self._whole(), *dealing)

    def _whole(self) -> Iterator[Window]:
        scenario, draw = self._scenario, np.random.default_rng(self._seed)
        order = draw.permutation(scenario.parts).astype(np.int32)
        count = -(-scenario.parts // scenario.in_window)
        batches = np.diff(np.linspace(0, scenario.batches, count + 1).astype(int))
        first = 0
        for number, parts in enumerate(np.array_split(order, count)):
            if not batches[number]:
                continue
            window = Window((), number, np.sort(parts), first, int(batches[number]))
            rows, seeds = self.rows(window), []
            for index in range(first, first + window.count):
                node = draw.choice(rows, scenario.batch_size, replace=False)
                seeds.append(Seeds(index, node, node))
            first += window.count
            yield replace(window, batches=seeds)

    def batches(self) -> Iterator[tuple[Window, Seeds]]:
        """The seeds of the epoch's batches, each with its window."""
        return flat(self.windows())

    def rows(self, window: Window) -> Int64Array:
        """All rows of a window."""
        assert window.partitions is not None
        size = self._scenario.rows_in_part
        starts = window.partitions.astype(np.int64) * size
        return (starts[:, None] + np.arange(size)).reshape(-1)

    def rows_of(self, window: Window) -> Iterator[range]:
        """See `PartitionWindows.rows_of`."""
        scenario, size = self._scenario, self._scenario.rows_in_part
        assert window.partitions is not None
        kept = range(scenario.parts * size, scenario.parts * size + scenario.kept)
        for rows in (kept, *(range(part * size, (part + 1) * size) for part in window.partitions)):
            for start in range(0, len(rows), scenario.in_chunk):
                yield rows[start : start + scenario.in_chunk]

    def graph(self, window: Window, shared: SharedGraph | None = None) -> WindowRows:
        """See `PartitionWindows.graph`."""
        if window.number == self._scenario.bad_window:
            raise StoreError("the lists of this window are damaged")
        if shared is not None:
            return WindowRows(shared.memory)
        there = np.zeros(self._scenario.file.row_count, np.uint8)
        for rows in self.rows_of(window):
            there[rows] = 1
        return WindowRows(there)

    def stop(self) -> None:
        """See `PartitionWindows.stop`."""
        self.stopped = True


class WindowedSimulation(Simulation):
    """A simulation of windows; see `Simulation`."""

    def __init__(self, scenario: WindowedScenario, seed: int) -> None:
        super().__init__(scenario.with_slots(), seed)
        self.windows = SimulatedWindows(scenario, seed)

    def epoch(self, number: int = 0) -> Epoch:
        """Make an epoch whose batches are sampled inside windows."""
        epoch, scenario = super().epoch(number), self.scenario
        sampler = WindowSampler(scenario.file.row_count, scenario.extra_max)
        inputs = replace(
            epoch.inputs, sampler=sampler, feed=WindowFeed(self.windows),
            batches=self.windows.batches(),
        )  # fmt: skip
        return replace(epoch, inputs=inputs)


class WindowedRank(Rank):
    """A rank that draws from the same windows as the others."""

    def _inputs(self, number: int) -> EpochInputs:
        scenario, seed = self._shared.scenario, self._shared.seed
        assert isinstance(scenario, WindowedScenario)
        windows = SimulatedWindows(scenario, seed, self.number, self._ranks)
        return EpochInputs(
            number, seed, windows.batches(),
            WindowSampler(scenario.file.row_count, scenario.extra_max), self._shared,
            WindowFeed(windows),
        )  # fmt: skip


class WindowedRanks(SimulatedRanks):
    """Ranks that draw from the same windows, whose rows and graphs a group holds."""

    rank = WindowedRank

    def __init__(self, scenario: WindowedScenario, seed: int, *rest: Any, **given: Any) -> None:
        self._random = random.Random(f"{seed} graphs")
        self._places = [np.zeros(scenario.file.row_count, np.uint8) for _ in range(LIVE_MAX)]
        super().__init__(scenario.with_slots(), seed, *rest, **given)
        for rank in self.ranks:
            rank.buffer.windows.places = self._places

    def _graphs(self) -> WindowGraphs:
        return WindowGraphs(self._load_graph)

    async def _load_graph(
        self, place: int, rows: Sequence[range], stop: StopToken
    ) -> Sequence[int]:
        """A row at a time, so that a rank that samples there now gets another's rows."""
        self._places[place][:] = 0
        for each in rows:
            for _ in range(self._random.choice([0, 1, 10])):
                await asyncio.sleep(0)
            if stop:
                raise ClosedError(STOPPED)
            self._places[place][each] = 1
        return ()

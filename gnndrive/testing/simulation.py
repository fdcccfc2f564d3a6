"""`simulate`: runs the whole pipeline on a simulated disk, in one event loop with a virtual clock.

Most tests of the pipeline and the feature buffer use it. A seed determines everything that varies:
samples, completions, faults, and how many turns of the loop a worker or the consumer takes. A
deadlock raises an error, a wrong row raises an error, and at the end every slot must be free or on
standby. Each row's content is a function of its number, so a row is checked without a copy of the
table.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedHostSlots
from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.buffer.place_table import PlaceTable
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.ranking import Classes
from gnndrive.buffer.row_table import RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import DirectFile
from gnndrive.common.records import (
    Codes,
    EdgeKey,
    EngineSettings,
    Int64Array,
    NodeKey,
    Sample,
    Seeds,
    Subgraph,
    TableFile,
)
from gnndrive.disk.engines.simulated import Simulated
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.tiers import make_chain, rolled
from gnndrive.disk.tiers.base import TierContext
from gnndrive.disk.tiers.rolled import Rolled, RolledSettings, rows_of_block
from gnndrive.pipeline.batch_times import EpochTimes
from gnndrive.pipeline.epoch import Counters, Epoch, EpochInputs, Extracted, Stages
from gnndrive.pipeline.output_queue import OutputEnded, References
from gnndrive.pipeline.run import run_epoch
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.schedules._repeated import repeated
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.trace import Trace
from gnndrive.store.types import Types
from gnndrive.strategies.superbatches.feed import AheadFeed
from gnndrive.strategies.superbatches.rolling_feed import RollingFeed
from gnndrive.testing.loop import run

Result = TypeVar("Result")
DEFAULT_DEVICE = "host"


def told_rows(rows: Int64Array, row_bytes: int) -> npt.NDArray[np.uint8]:
    """The content of rows by their numbers (int64 [n]): uint8 [n, row_bytes]."""
    place = np.arange(row_bytes, dtype=np.uint64)
    mixed = (rows.astype(np.uint64)[:, None] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = mixed ^ (place + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed >> np.uint64(40)).astype(np.uint8)


def write_told_rows(path: Path, count: int, row_bytes: int) -> TableFile:
    """Write a file of `count` rows whose content is `told_rows`."""
    path.write_bytes(told_rows(np.arange(count), row_bytes).tobytes())
    return TableFile(str(path), 0, count, row_bytes, "uint8", (row_bytes,))


class InlineWorkers:
    """Runs functions in the event loop's thread, each after a number of turns of the loop, at most
    `turns_max`, which the seed determines; or `before` them, so that a caller that is cancelled
    does not get the result of a function that was called."""

    def __init__(self, seed: int = 0, turns_max: int = 3, before: bool = False) -> None:
        self._random = random.Random(seed)
        self._turns_max, self._before = turns_max, before

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `Workers.run`."""
        if self._before:
            result = function(*arguments)
        for _ in range(self._random.randint(0, self._turns_max)):
            await asyncio.sleep(0)
        return result if self._before else function(*arguments)


class RandomSampler(Sampler):
    """Adds between 0 and `extra_max` random nodes to the seeds, which the key determines."""

    name = "random"

    def __init__(self, num_nodes: int, extra_max: int) -> None:
        self._num_nodes = num_nodes
        self._extra_max = extra_max

    @classmethod
    def make(cls, context: SamplerContext) -> RandomSampler:
        """See `Sampler.make`; adds up to 12 nodes to the seeds."""
        assert context.store is not None
        return cls(context.store.num_nodes, 12)

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology] = ()) -> Sample:
        """See `Sampler.sample`; reads no graph and returns no edges."""
        return self.sample_nodes(seeds.node, key)

    def sample_nodes(self, seeds: Int64Array, key: int) -> Sample:
        """Sample around the seeds, node ids int64 [n]."""
        draw = np.random.default_rng(key)
        count = min(int(draw.integers(0, self._extra_max + 1)), self._num_nodes)
        extra = draw.choice(self._num_nodes, count, replace=False)
        node = np.concatenate([seeds, extra[~np.isin(extra, seeds)]]).astype(np.int64)
        none = np.empty(0, np.int32)
        per_hop = len(seeds), len(node) - len(seeds)
        return Sample(node, none, np.zeros(len(seeds) + 1, np.int32), none, per_hop, (0,))

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`."""
        most = {type: min(batch_size + self._extra_max, count) for type, count in nodes.items()}
        return Bounds(most, dict.fromkeys(edges, 0), most)

    def stop(self) -> None:
        """Does nothing, because sampling never waits."""


@dataclass(frozen=True)
class Scenario:
    """The parameters of a simulation.

    Attributes:
        file: a table from `write_told_rows`.
        slots: number of slots of the feature buffer, or of a place in it; 0: just enough for the
            largest group.
        batches: number of batches of an epoch.
        extra_max: the most nodes that sampling adds; a batch has at most batch_size + extra_max
            rows.
        stages, faults, depth: see `Stages`, `Faults`, `EngineSettings`.
        policy: which rows leave the feature buffer first.
        classes: the class of each row, for the policy; see `SlotTable`.
        consumer_turns_max: the most turns of the loop that the consumer takes for a batch.
        part_rows: rows of a part of an admission, see `FeatureBuffer`; 0: the seed chooses 1 row, 4
            rows, or more rows than any sweep has.
        together: samples of a round, see `Epoch`.
        device: where the buffer lives: "host", "simulated-cuda", or beside the latter on the host:
            "simulated-host-slots".
        places: how many batches have places in the buffer at once (`PlaceTable`); 0: each row has a
            slot of its own (`SlotTable`).
        residents: beside places, how many of the file's first rows never leave the buffer.
        superbatch: how many batches are sampled before the first of them is extracted; 0: none.
        reuse: how often the batches of a superbatch come.
        records_max: how many records of superbatches the disk has room for; None: for all.
        blocks: how many blocks of a page the copies of coming batches' rows may have, which are
            made in superbatches (`RollingFeed`); None: no rows are copied.
        tiers: what lies below the buffer, by name or as classes, the highest first.
        victims: how many rows that left slots a tier may keep; none on the host.
        ahead: see `SlotTable`.
    """

    file: TableFile
    slots: int = 0
    batches: int = 20
    batch_size: int = 4
    extra_max: int = 12
    stages: Stages = field(default_factory=Stages)
    faults: Any = None
    depth: int = 8
    policy: Policy = field(default_factory=LRU)
    classes: Classes | None = None
    consumer_turns_max: int = 3
    part_rows: int = 0
    together: int = 1
    device: str = field(default_factory=lambda: DEFAULT_DEVICE)
    places: int = 0
    residents: int = 0
    superbatch: int = 0
    reuse: int = 1
    records_max: int | None = None
    blocks: int | None = None
    tiers: tuple[Any, ...] = ("disk",)
    victims: int = 0
    ahead: tuple[int, int] = (0, 0)

    @property
    def foreseen(self) -> bool:
        """Whether superbatches tell the policy when a row is needed next."""
        return self.superbatch > 0 and self.policy.looks_ahead

    @property
    def group_rows_max(self) -> int:
        """The most rows of a group of batches."""
        return self.stages.group * (self.batch_size + self.extra_max)

    def seeds(self, seed: int) -> Iterator[Seeds]:
        """Yield the seeds of each batch of an epoch, which `seed` determines."""
        drawn = self._drawn(np.random.default_rng(seed))
        again = repeated(drawn, self.superbatch or self.batches, self.reuse, seed)
        return (seeds.dealt_as(seeds.index, index) for index, seeds in enumerate(again))

    def _drawn(self, draw: np.random.Generator) -> Iterator[Seeds]:
        for index in range(self.batches):
            node = draw.choice(self.file.row_count, self.batch_size, replace=False)
            yield Seeds(index, node.astype(np.int64), node.astype(np.int64))


@dataclass(frozen=True)
class Delivered:
    """A batch as the consumer got it: its node ids, int64 [n], and their rows, uint8 [n,
    row_bytes]."""

    index: int
    node: Int64Array
    rows: torch.Tensor


class Simulation:
    """One feature buffer on a simulated disk; `seed` determines everything that varies. Make it
    inside the event loop that it runs in."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        file = scenario.file
        self.random = random.Random(seed)
        longest = 4096 + file.row_bytes if scenario.blocks is None else SWEEP_BLOCK_BYTES
        self.engine = Simulated(EngineSettings(scenario.depth, longest, seed, scenario.faults))
        self.layout = TableLayout(file, extent_bytes_max=4096, repeats=bool(scenario.places))
        simulated = {kind.name: kind for kind in (SimulatedCuda, SimulatedHostSlots)}
        cuda = simulated.get(scenario.device)
        self.device: Device = Host() if cuda is None else cuda(seed)
        self.table = self._make_table(scenario)
        part_rows = scenario.part_rows or (4, 1, 1 << 17)[seed % 3]
        self.buffer = FeatureBuffer({"x": self.table}, part_rows)
        self.buffer.begin_residents()
        self.counters = Counters()

    def _make_table(self, scenario: Scenario) -> SlotTable | PlaceTable:
        file = scenario.file
        slots = scenario.slots or scenario.group_rows_max
        places, residents = scenario.places, scenario.residents
        held = residents + places * slots if places else slots
        memory = self.device.allocate(held, file.row_bytes)
        victims = memory.evicted(scenario.victims) if scenario.victims else None
        context = TierContext(
            self.layout, self.engine, None, file.row_count, file.row_bytes, evicted=victims,
            classes=scenario.classes, opened=_copies(scenario),
        )  # fmt: skip
        tier = make_chain(scenario.tiers, context)
        if not places:
            return SlotTable(
                file.row_count, slots, file.row_bytes, memory, tier, scenario.policy,
                scenario.group_rows_max, classes=scenario.classes, foreseen=scenario.foreseen,
                ahead=scenario.ahead,
            )  # fmt: skip
        return PlaceTable(file.row_count, residents, places, slots, file.row_bytes, memory, tier)

    def epoch(self, number: int = 0) -> Epoch:
        """Make an epoch that uses the buffer."""
        scenario = self.scenario
        self.buffer.begin_residents()
        sampler = RandomSampler(scenario.file.row_count, scenario.extra_max)
        batches = ((Window([seeds]), seeds) for seeds in scenario.seeds(self.seed))
        feed = SampledFeed()
        if scenario.superbatch:
            source = SimulatedSuperbatches(scenario)
            feed = AheadFeed(source) if scenario.blocks is None else RollingFeed(source)
        return Epoch(
            EpochInputs(number, self.seed, batches, sampler, self, feed),
            topologies=[],
            buffer=self.buffer,
            workers=InlineWorkers(self.seed + number, before=scenario.blocks is not None),
            stages=scenario.stages,
            counters=self.counters,
            combined=scenario.together,
            times=EpochTimes(self.counters.times),
        )

    # ---- pipeline.epoch.BatchAssembly ----

    def prepare(self) -> None:
        """Does nothing, because no batch has labels."""

    @staticmethod
    def check_sample(sample: Sample | Subgraph) -> None:
        """Any sample will do."""

    @staticmethod
    def rows_of(sample: Sample | Subgraph) -> dict[str, Int64Array]:
        """The rows of a batch's nodes."""
        assert isinstance(sample, Sample)
        return {"x": sample.node}

    def make(
        self, item: Extracted, gathered: Callable[[], object]
    ) -> Generator[tuple[Delivered, References], None, None]:
        """Gather a group's rows."""
        rows = item.lease.gather("x", torch.uint8, (self.scenario.file.row_bytes,))
        gathered()
        begin = 0
        for batch in item.batches:
            end = begin + len(batch.rows["x"])
            yield Delivered(batch.seeds.index, batch.rows["x"], rows[begin:end]), ()
            begin = end

    def gathered(self, lease: Lease) -> npt.NDArray[np.uint8]:
        """Gather the rows of a lease that is ready, and wait until the host can read them."""
        rows = lease.gather("x", torch.uint8, (self.scenario.file.row_bytes,))
        self.device.hand_over(rows)
        return rows.numpy()

    async def consume(self, epoch: Epoch, limit: int | None = None) -> list[Delivered]:
        """Take batches from the epoch and check each row, until the epoch ends or `limit` batches
        were taken."""
        delivered: list[Delivered] = []
        while limit is None or len(delivered) < limit:
            try:
                batch: Delivered = await epoch.output.aget()
            except OutputEnded:
                break
            self.check(batch)
            delivered.append(batch)
            for _ in range(self.random.randint(0, self.scenario.consumer_turns_max)):
                await asyncio.sleep(0)
        return delivered

    def check(self, batch: Delivered) -> None:
        """Raise AssertionError if a row has not the content of its node."""
        self.device.hand_over(batch)
        expected = told_rows(batch.node, self.scenario.file.row_bytes)
        wrong = np.flatnonzero((batch.rows.numpy() != expected).any(axis=1))
        assert not len(wrong), f"batch {batch.index}: wrong rows for nodes {batch.node[wrong]}"

    def check_idle(self) -> None:
        """Raise AssertionError unless every slot is free, on standby or a resident's, and the table
        is consistent."""
        self.buffer.verify()
        table = self.table
        assert self.buffer.idle, "the buffer still has waiters or loads"
        unused, most = sum(table.unused()), table.slots - self.scenario.residents
        assert unused == most, f"slots are missing: {unused} of {most}"
        if isinstance(table, SlotTable):
            assert table.announced == 0, "a batch is still announced, but all batches have ended"

    async def close(self) -> None:
        """Check that every slot is accounted for and free everything."""
        await self.buffer.drain()
        if isinstance(self.table.tier, Rolled):
            _check_blocks(self.table.tier)
        await self.buffer.close_tiers()
        await self.engine.aclose()
        self.check_idle()
        await self.buffer.aclose()
        self.layout.close()


def simulate(scenario: Scenario, seed: int, epochs: int = 1) -> list[Delivered]:
    """Run whole epochs, check every row, and return the batches that were delivered.

    Raises:
        Deadlock: every task of the pipeline waits for another.
        AssertionError: a row is wrong, or a slot is missing at the end.
        ReadError: a batch failed.
    """

    async def main() -> list[Delivered]:
        simulation = Simulation(scenario, seed)
        delivered: list[Delivered] = []
        try:
            for number in range(epochs):
                epoch = simulation.epoch(number)
                running = asyncio.get_running_loop().create_task(run_epoch(epoch))
                try:
                    delivered += await simulation.consume(epoch)
                finally:
                    running.cancel()
                    await asyncio.wait([running])
        finally:
            await simulation.close()
        return delivered

    return run(main())


class SimulatedSuperbatches:
    """The superbatches of a scenario; see `LoaderSuperbatches` in `strategies.superbatches.scheme`.
    The first one has half as many batches. The traces are files in memory.

    Attributes:
        records: how many records are on the simulated disk, which may be full.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._batches, self.records_max = scenario.superbatch, scenario.records_max
        self._reuse = scenario.reuse
        self.records = 0
        self.end: int | None = None
        self.foreseen: Mapping[str, NodeKey] = {"x": None} if scenario.foreseen else {}
        self._last = np.empty(scenario.file.row_count, np.uint16)

    def size(self, number: int, first: int, misses: float | None) -> int:
        """See `LoaderSuperbatches.size`."""
        half, together = -(-self._batches // 2), self._reuse * self._batches
        if self._reuse == 1:
            return self._batches if number else half
        left = together - first % together
        return min(half, left) if number < 3 else left

    def open_trace(self) -> Trace:
        """See `LoaderSuperbatches.open_trace`."""
        return _LimitedTrace(self, Types.of(len(self._last), 0))

    def next_uses(self) -> Mapping[NodeKey, Codes]:
        """See `LoaderSuperbatches.next_uses`."""
        return {None: self._last} if self.foreseen else {}

    def no_room(self) -> ConfigError:
        """See `LoaderSuperbatches.no_room`."""
        return ConfigError("no room for a record")

    @staticmethod
    def pays(table: RowTable, counts: Sequence[int], uses: Sequence[int]) -> bool:
        """See `RollingSource.pays`."""
        return True


def _copies(scenario: Scenario) -> RolledSettings | None:
    if scenario.blocks is None:
        return None
    row_bytes = scenario.file.row_bytes
    rows, parts = rows_of_block(row_bytes, 1), rolled.PART_BYTES // row_bytes
    folder = Path(scenario.file.path).parent
    return RolledSettings(folder, scenario.blocks * rows * row_bytes, rows, parts)


def _check_blocks(tier: Rolled) -> None:
    """Raise AssertionError unless each block that the tier has is free, once."""
    made = 0 if tier._file is None else tier._file.blocks
    assert sorted(tier._free) == list(range(made)), f"of {made} blocks {tier._free} are free"


class _LimitedTrace(Trace):
    """A trace on a disk that has room for so many records of all traces."""

    def __init__(self, source: SimulatedSuperbatches, types: Types) -> None:
        super().__init__(Path(), types)
        self._source, self._own = source, 0

    @staticmethod
    def _open(folder: Path) -> DirectFile:
        fd = os.memfd_create("trace", os.MFD_CLOEXEC)
        try:
            return DirectFile(f"/proc/self/fd/{fd}", os.O_RDWR)
        finally:
            os.close(fd)

    def _put_record(self, seeds: Seeds, sample: Sample | Subgraph) -> bool:
        most = self._source.records_max
        if most is not None and self._source.records >= most:
            return False
        assert super()._put_record(seeds, sample)
        self._source.records += 1
        self._own += 1
        return True

    def close(self) -> None:
        self._source.records -= self._own
        self._own = 0
        super().close()

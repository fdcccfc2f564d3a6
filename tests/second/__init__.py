"""A second implementation of every kind of plug-in, each against what its kind shares.

Each goes through the conformance test of its kind; tests/loader composes a strategy of them.
"""

import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices._staged import Driver, Staged, StagedMemory
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.buffer.policies.base import Keys, Policy
from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.records import (
    EngineSettings,
    Int32Array,
    Int64Array,
    Landing,
    Sample,
    Seeds,
    Stretch,
    TopologyChoice,
)
from gnndrive.disk.engines._shared import JobCounters, check_job, staging
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import LayoutContext
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.sampling.samplers._uniform import UniformDraws
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies.base import Topology, TopologyContext, TopologyQuestion

PORTIONS, PORTION_ROWS = 2, 48
Bytes = npt.NDArray[np.uint8]
used: Counter[str] = Counter()
"""By kind, how often its second implementation did its work. Threads may lose a count."""


class Dealt(Schedule):
    """Batch b of n gets every n-th input from the b-th on, so that sizes differ by one at most; a
    window has two batches."""

    name = "dealt"

    def __init__(self, context: ScheduleContext, batch_size: int) -> None:
        self._context, self._batch_size = context, batch_size

    @classmethod
    def make(cls, context: ScheduleContext) -> Self:
        if context.batch_size is None:
            raise ConfigError("the dealt schedule needs batch_size=: give a number of seeds")
        return cls(context, context.batch_size)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._context.inputs), self._batch_size)
        return whole + (rest > 0 and not self._context.drop_last)

    @property
    def order_bytes(self) -> int:
        return 8 * len(self._context.inputs) * self._context.shuffle

    def windows(self, epoch: int) -> Iterator[Window]:
        inputs, hands = self._context.inputs, len(self)
        count = min(len(inputs), hands * self._batch_size)
        order = None
        if self._context.shuffle:
            draw = np.random.default_rng([self._context.seed % (1 << 64), epoch])
            order = draw.permutation(len(inputs))[:count]
        for number, first in enumerate(range(0, hands, 2)):
            used["schedules"] += 1
            batches = [
                inputs.seeds(
                    hand, np.arange(hand, count, hands) if order is None else order[hand::hands]
                )
                for hand in range(first, min(first + 2, hands))
            ]
            yield Window(batches, number, None, first, len(batches))


class Runs(UniformDraws):
    """Draws with another key, and does not know the limits of its samples."""

    name = "runs"
    shares_numbers = False

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        if context.subgraphs is not None:
            return context.subgraphs()
        return cls(context.num_neighbors, context.replace, context.empty)

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        used["samplers"] += 1
        return self.sample_nodes(seeds.node, key ^ 1, topologies[0])


class Widened(Topology):
    """A CSC graph of int64 in memory of its own, also where the store has narrower numbers."""

    name = "widened"

    def __init__(self, context: TopologyContext) -> None:
        file = context.file
        check_indptr(context.indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes, self.num_edges = len(context.indptr) - 1, file.row_count
        self._indptr = context.indptr.astype(np.int64)
        self._indices = np.empty(self.num_edges, np.int64)
        with SequentialReader(file) as reader:
            for first, indices in reader.stretches():
                self._indices[first : first + len(indices)] = indices
        self.nbytes = self._indptr.nbytes + self._indices.nbytes
        self._csc = make_csc(self._indptr, self.num_edges, self._indices, 8)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        nbytes = sum(8 * (size.nodes + 1 + size.edges) for size in question.sizes)
        why = "as asked for" if question.asked else "because it fits beside a batch"
        fits = question.asked or nbytes <= question.room(1)
        return TopologyChoice(cls, f"widened, {why}", nbytes) if fits else None

    @classmethod
    def make(cls, context: TopologyContext) -> Self:
        return cls(context)

    def csc(self) -> Any:
        used["topologies"] += 1
        return self._csc


class Pairs(Policy):
    """Looks ahead, and sees batches only by pairs: what no known batch wants leaves first, then
    what the farthest pair of batches wants."""

    name = "pairs"
    looks_ahead = True

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        used["policies"] += 1
        return Keys(-(next_use // 2), np.zeros(len(next_use), np.uint8))


# ---- a device in host memory behind one copying thread, as a GPU is behind one stream


class Copies(Driver):
    """A copying thread: copies are made in the order in which they are asked for."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copier")

    def pinned(self, nbytes: int) -> Bytes:
        return np.frombuffer(private_map(nbytes), np.uint8)[:nbytes]

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.from_numpy(self.pinned(nbytes))

    def scatter(self, into: torch.Tensor, staging: Bytes, moves: Int32Array) -> Future[None]:
        return self._move(torch.from_numpy(staging), into, moves)

    def copy_out(self, rows: torch.Tensor, into: Bytes, moves: Int32Array) -> Future[None]:
        raise NotImplementedError

    def gather(self, rows: torch.Tensor, alias: Int32Array) -> tuple[torch.Tensor, Future[None]]:
        used["devices"] += 1
        out = torch.empty((len(alias), rows.shape[1]), dtype=torch.uint8)
        moves = np.stack([alias, np.arange(len(alias), dtype=np.int32)])
        return out, self._move(rows, out, moves)

    def empty(self, rows: int, row_bytes: int) -> torch.Tensor:
        raise NotImplementedError

    def fill(self, into: torch.Tensor, piece: Bytes) -> Future[None]:
        raise NotImplementedError

    def finish(self, event: Future[None]) -> None:
        raise NotImplementedError

    def _move(self, rows: torch.Tensor, into: torch.Tensor, moves: Int32Array) -> Future[None]:
        def move() -> None:
            into.numpy()[moves[1]] = rows.numpy()[moves[0]]

        return self._thread.submit(move)

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.synchronize()
        return list(tensors)

    def computing(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def wait(self, event: Future[None]) -> None:
        """Cancelling the wait does not cancel the copy."""
        await asyncio.shield(asyncio.wrap_future(event))

    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        self.synchronize()

    def unpin(self, memory: Bytes) -> None:
        pass

    def synchronize(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was closed, and that waited
            self._thread.submit(lambda: None).result()

    def close(self) -> None:
        self._thread.shutdown()


class CopiedMemory(StagedMemory):
    closed = False

    def evicted(self, places: int) -> None:
        """Slots in host memory are that memory."""

    def close(self) -> None:
        self.closed = True
        super().close()


class Copier(Staged):
    """Host memory behind a thread; batches stay on the host. `memories`: all that it allocated."""

    name = "copier"
    portions = PORTIONS
    delivers = False
    pinned_per_byte = 0

    def __init__(self) -> None:
        self.driver = Copies()
        self._copies = SimpleNamespace(wait=self.driver.synchronize)
        self.memories: list[CopiedMemory] = []

    @classmethod
    def make(cls, context: DeviceContext) -> Self:
        return cls()

    def allocate(self, slots: int, row_bytes: int) -> CopiedMemory:
        rows = min(slots, PORTION_ROWS)
        self.memories.append(CopiedMemory(self.driver, slots, row_bytes, PORTIONS, rows))
        return self.memories[-1]

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        return PORTIONS * (min(rows, PORTION_ROWS) * (row_bytes + 8) + 4096)


class Reversed(RowsFile):
    """Row r of n lies where row n − 1 − r would, in a file that is made when the layout is, beside
    the store's folder or beside a file alone, and is removed with it.

    `made`: the tables that layouts of this class were made for; cleared by tests.
    """

    name = "reversed"
    made: ClassVar[list[str]] = []

    def __init__(self, context: LayoutContext) -> None:
        self._context, file = context, context.file
        shape = (file.row_count, file.row_bytes)
        try:
            rows = np.memmap(file.path, np.uint8, "r", file.data_offset, shape)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{file.path} cannot be opened, or became shorter than its rows: {error}"
            ) from error
        folder = Path(file.path if context.store is None else context.store.path).parent
        number, path = tempfile.mkstemp(".reversed", dir=folder)
        with os.fdopen(number, "wb") as target:
            target.write(rows[::-1].tobytes())
        super().__init__(
            replace(file, path=path, data_offset=0), context.extent_bytes_max,
            context.gap_bytes_max, repeats=context.repeats,
        )  # fmt: skip
        type(self).made.append(file.path)

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        return cls(context)

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        used["layouts"] += 1
        wrong = rows[(rows < 0) | (rows >= self.file.row_count)]
        if len(wrong):
            raise ValueError(f"row {wrong[0]} of {self.path}, which has {self.file.row_count} rows")
        return super().locate(self.file.row_count - 1 - rows, places, landing)

    def close(self) -> None:
        if self.fd >= 0:
            os.unlink(self.path)
        super().close()


class OneThread(Engine):
    """One thread carries job after job out, from its first extent to its last: one request is in
    flight at a time, at any depth."""

    name = "one-thread"

    def __init__(self, settings: EngineSettings) -> None:
        if settings.depth < 1 or settings.block_bytes < 1:
            raise ConfigError("depth and block_bytes must be at least 1")
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="one-thread")
        self._staging, self._blocks = staging(settings.depth, settings.block_bytes)
        self._active: set[ReadJob] = set()
        self._counters = JobCounters()
        self._closing = False
        self._ended = asyncio.Event()

    def read(self, job: ReadJob) -> ReadJob:
        check_job(job, self._settings, self._closing)
        used["engines"] += 1
        self._active.add(job)
        self._thread.submit(self._carry_out, job)
        return job

    def _carry_out(self, job: ReadJob) -> None:
        """In the thread: read every extent; then nothing writes for the job any more."""
        block, size = self._blocks[0], self._settings.block_bytes
        while check(lib.gd_reads_pread(job.handle, job.fd, block, size, ffi.NULL), "pread"):
            self._tell(job)
        lib.gd_reads_let_go(job.handle)
        self._tell(job)

    def _tell(self, job: ReadJob) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake, job)

    def _wake(self, job: ReadJob) -> None:
        if job.wake() and job in self._active:
            self._active.discard(job)
            self._counters.add(job)
            self._ended.set()

    async def aclose(self) -> None:
        self._closing = True
        for job in self._active:
            job.cancel()
        while self._active:
            self._ended.clear()
            await self._ended.wait()
        self._thread.shutdown()

    def stats(self) -> dict[str, int]:
        return self._counters.with_active(self._active)


KEPT_ROWS = 96


class Keeping(Tier):
    """Keeps copies of rows that came through it whole, each in a place of its own that other rows
    take too; serves these in the call itself, and fetches the rest from the tier below."""

    name = "keeping"

    def __init__(self, below: Tier, rows: int, row_bytes: int) -> None:
        self.path = below.path
        self._below, self._rows = below, rows
        self._copies = np.empty((KEPT_ROWS, row_bytes), np.uint8)
        self._row_of = np.full(KEPT_ROWS, -1, np.int64)  # whose copy each is

    @classmethod
    def make(cls, context: TierContext) -> Self:
        if context.below is None:
            raise ConfigError("the tier 'keeping' needs one below it: name it above 'disk'")
        return cls(context.below, context.rows, context.row_bytes)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._rows:
            raise ValueError(f"a row is out of range: {self.path} has {self._rows}")
        if len(np.unique(rows)) != len(rows):
            raise ValueError("a row is asked for twice")
        copies = rows % KEPT_ROWS
        kept = self._row_of[copies] == rows
        rest = self._below.fetch(rows[~kept], places[~kept], landing)
        memory = _memory(landing, places, self._copies.shape[1])
        memory[places[kept]] = self._copies[copies[kept]]
        used["tiers"] += int(kept.sum())
        return _Fetch(self, places[kept], rest, memory, (rows[~kept], places[~kept]))

    async def aclose(self) -> None:
        await self._below.aclose()

    def keep(self, rows: Int64Array, content: Bytes) -> None:
        copies, first = np.unique(rows % KEPT_ROWS, return_index=True)
        self._copies[copies], self._row_of[copies] = content[first], rows[first]


class _Fetch:
    """First the rows that were kept, then those from below as they come."""

    def __init__(
        self, tier: Keeping, served: Int32Array, rest: Fetch, memory: Bytes, asked: Any
    ) -> None:
        self._tier, self._served, self._rest, self._memory = tier, served, rest, memory
        rows, places = asked
        order = np.argsort(places)
        self._rows, self._places = rows[order], places[order]

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        if len(self._served):
            yield Stretch(self._served)
        async for stretch in self._rest:
            rows = self._rows[np.searchsorted(self._places, stretch.slots)]
            self._tier.keep(rows, self._memory[stretch.slots])
            yield stretch

    def cancel(self) -> None:
        self._rest.cancel()


def _memory(landing: Landing, places: Int32Array, row_bytes: int) -> Bytes:
    """The places as far as they are asked for, uint8 [places, row_bytes]."""
    count = int(places.max(initial=-1)) + 1
    nbytes = (count - 1) * landing.slot_stride + row_bytes if count else 0
    memory = np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", landing.address), nbytes), np.uint8)
    return np.lib.stride_tricks.as_strided(memory, (count, row_bytes), (landing.slot_stride, 1))


SECOND: dict[str, Any] = {
    "schedules": Dealt, "samplers": Runs, "topologies": Widened, "policies": Pairs,
    "devices": Copier, "layouts": Reversed, "engines": OneThread, "tiers": Keeping,
}  # fmt: skip

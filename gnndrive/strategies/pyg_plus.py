"""PyG+: PyG with memory-mapped arrays, the baseline of Ginex, GNNDrive and DiskGNN."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import torch

from gnndrive.buffer.items import SlotTables
from gnndrive.common.array_pool import Allocate, empty_tensor
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.limits import named_limit
from gnndrive.common.loop_thread import CLOSED
from gnndrive.common.padding import Parts, padded
from gnndrive.common.plugins import find
from gnndrive.common.records import Int64Array, TopologyChoice
from gnndrive.loader.arguments import OWN_ARGUMENTS, flat, positive
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.buffer_pool import Buffers
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.plan.choice import default_stages, fitting
from gnndrive.plan.plan import Plan, Planner, Slots
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.strategies.base import Scheme, Strategy

THREADS = (1, 4, 16, 64)
ADVICE = ("random", "normal")
THREADS_MAX = 256
TRIED_ROWS = (256, 1024, 4096)  # of the first batches, that are gathered in each way
WORSE = 3.0  # a way that takes so many times as long as the fastest is not tried again
CHUNK_ROWS = 4, 2048  # the fewest and the most rows that a thread gathers at a time
CHUNKS = 8  # for each thread, if a batch has so many rows: pages that are cached take no time
SECTOR_BYTES = 512  # getrusage counts what is read in these
UNUSED = ("buffer", "neighbour_cache", "gap", "policy", "sweep")
MAPPED = "rows: memory-mapped; the page cache keeps what fits beside all this, and is not counted"
OF_MAPS = TopologyChoice("mmap", "neighbours in a memory map (mmap), as all files", 0)

Way = tuple[int, str]
"""In how many threads rows are gathered, and what the kernel is told of their map."""


@dataclass(frozen=True, kw_only=True)
class PyGPlus(Strategy):
    """PyG+, the baseline of "Ginex" (section 2), "GNNDrive" (section 2) and "DiskGNN": PyTorch
    Geometric whose adjacency and features are memory-mapped files.

    Sampling threads read the adjacency, and others gather rows, by page faults. There is no buffer:
    what stays in memory is the page cache's choice, in which rows evict adjacency and the other way
    round (GNNDrive section 3). It is there to be compared with, so "auto" never chooses it.

    Where this differs: it samples with gnndrive's sampler, which requests pages of the adjacency
    ahead and is faster than torch-sparse's; index pointers and labels are in memory; the rows of a
    batch are gathered by several threads, because page faults are waited for and a disk serves many
    at once. All three favour it. Batches are made in host memory.

    Args:
        threads: how many threads gather the rows of a batch, beside those that sample. "auto": 1,
            4, 16 and 64 are tried on parts of the first three batches, and the fastest is kept;
            `stats()["gathering"]` says what each took.
        advise: what the kernel is told of the rows' map: "random" (MADV_RANDOM: a fault reads a
            page) or "normal" (it reads ahead). "auto": both are tried.
    """

    name: str = "pyg+"
    published: str = "PyG with memory-mapped arrays, as in Ginex (VLDB 2022)"
    topologies: tuple[Any, ...] = ("mmap",)
    policy: Any = "lru"
    threads: int | str = "auto"
    advise: str = "auto"

    baseline: ClassVar[bool] = True
    does: ClassVar[str] = "leaves caching to the kernel"
    pays: ClassVar[str] = "never: the baseline of the papers"

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        asked: Any = self.threads
        if asked != "auto" and positive(threads=asked) > THREADS_MAX:
            raise ConfigError(f"threads={asked!r}: give at most {THREADS_MAX}, or 'auto'")
        if self.advise not in ("auto", *ADVICE):
            raise ConfigError(f"advise={self.advise!r}: give 'random', 'normal' or 'auto'")
        if find("devices", assembly.device[0]).delivers:
            raise ConfigError(
                f"strategy={self.name!r} makes batches in host memory: leave device= and "
                "device_memory= out, and move each with batch.to(device)"
            )
        given, default = assembly.own, flat(OWN_ARGUMENTS)
        topology = given["topology"]
        for name in UNUSED:
            if given[name] != default[name]:
                raise ConfigError(
                    f"strategy={self.name!r} maps all files and has no feature buffer, so that "
                    f"{name}={given[name]!r} says nothing: leave it out"
                )
        if topology not in ("auto", "mmap"):
            raise ConfigError(
                f"strategy={self.name!r} maps the adjacency, and topology={topology!r} is given: "
                "leave it out"
            )
        return _MappedScheme(self)

    @property
    def ways(self) -> list[Way]:
        """The ways of gathering that are tried; a single one if the arguments say it."""
        counts = THREADS if isinstance(self.threads, str) else (self.threads,)
        advice = ADVICE if self.advise == "auto" else (self.advise,)
        return [(threads, each) for each in advice for threads in counts]


class _MappedScheme(Scheme):
    """How a loader loads by memory maps; see `Scheme`."""

    sweep = 1

    def __init__(self, strategy: PyGPlus) -> None:
        self.buffers = _MappedBuffers
        self.not_shared = f"with strategy={strategy.name!r} the page cache has the rows"

    def planner(self, request: PlanRequest) -> Planner:
        return fitting(request, _mapped_planner)

    def planner_again(self, request: PlanRequest, before: Plan, samplers: int) -> Planner:
        return self.planner(request)


def _mapped_planner(request: PlanRequest) -> Planner:
    """The planner of a loader that maps all files: nothing of a feature buffer, and no ring."""
    planner = planner_of(replace(request, staging_bytes=0), default_stages(request))
    parts = tuple(each for each in planner.parts if not isinstance(each, SlotTables))
    return replace(
        planner, parts=parts, slots=Slots(), topology=OF_MAPS, attributes=(), said=(MAPPED,)
    )


# ---- the rows


class _MappedBuffers(Buffers):
    """The rows of all tables, in memory maps, and the threads that gather them; see `Buffers`.
    Every epoch has the same maps, which stay when the plan changes.

    Attributes:
        tried: seconds of a row in each way when it was last tried; empty: there is a single one.
        counted: "requests": page faults that had to read; "bytes": what they read.
    """

    def __init__(self, settings: RuntimeSettings, empty: Allocate) -> None:
        strategy, store = settings.strategy, settings.request.store
        assert isinstance(strategy, PyGPlus)
        self.settings, self.empty = settings, empty
        self._tables: dict[str, FeatureTable] = {
            each.name: each for each in settings.request.tables
        }
        self.row_bytes = {name: each.file.row_bytes for name, each in self._tables.items()}
        ways = strategy.ways
        self._maps = {
            advice: {name: store.tensor(name, random=advice == "random") for name in self._tables}
            for advice in {each for _, each in ways}
        }
        self.way, self.tried = ways[0], dict[Way, float]()
        self._ways, self._trials = ways, list(TRIED_ROWS) if len(ways) > 1 else []
        self._threads = ThreadPoolExecutor(max(ways)[0], "gnndrive-mapped")
        self.counted: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.stopped = False

    def gather(self, table: str, rows: Int64Array, into: torch.Tensor) -> None:
        """Copy rows of a table; blocks, in a worker thread. Of the first batches some rows are
        gathered in each way: the last ones, which are alike. Raises what `pick_rows` does, and
        ClosedError while the loader is being closed."""
        end, ways = len(rows), self._ways
        if self._trials and len(rows) > len(ways):
            part = min(self._trials.pop(0), len(rows) // (len(ways) + 1))
            for way in ways:
                begin, started = end - part, perf_counter()
                self._copy(way, table, rows[begin:end], into[begin:end])
                self.tried[way] = (perf_counter() - started) / part
                end = begin
            self.way = min(ways, key=self.tried.__getitem__)
            fast = [way for way in ways if self.tried[way] <= WORSE * self.tried[self.way]]
            self._ways = fast[::-1]  # in another order, because the disk may change its speed
        self._copy(self.way, table, rows[:end], into[:end])

    def _copy(self, way: Way, table: str, rows: Int64Array, into: torch.Tensor) -> None:
        (threads, advice), (least, most) = way, CHUNK_ROWS
        chunk = min(max(len(rows) // (CHUNKS * threads), least), most)
        begins = iter(range(0, len(rows), chunk))  # which all threads take from
        copy = partial(self._copy_chunks, begins, chunk, advice, table, rows, into)
        others = min(threads, -(-len(rows) // chunk)) - 1
        with named_limit():
            running = [self._threads.submit(copy) for _ in range(others)]
        try:
            copy()
        finally:
            for each in running:
                each.exception()  # until it has ended, because it writes
        for each in running:
            each.result()

    def _copy_chunks(
        self, begins: Iterator[int], chunk: int, advice: str, table: str, rows: Int64Array,
        into: torch.Tensor,
    ) -> None:  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_THREAD)
        file, mapped = self._tables[table].file, self._maps[advice][table]
        try:
            for begin in begins:
                if self.stopped:
                    raise ClosedError(CLOSED)
                end = begin + chunk
                pick_rows(file, mapped, rows[begin:end], into[begin:end])
        finally:
            for _ in begins:
                pass  # after an error no thread takes more
            after = resource.getrusage(resource.RUSAGE_THREAD)
            with self._counting:
                self.counted["requests"] += after.ru_majflt - before.ru_majflt
                self.counted["bytes"] += SECTOR_BYTES * (after.ru_inblock - before.ru_inblock)

    # ---- what the runtime calls

    @property
    def facts(self) -> dict[str, float | str]:  # type: ignore[override]
        (threads, advice), tried = self.way, self.tried
        said = f"by {threads} threads, {advice}"
        if tried:
            each = ", ".join(f"{way[1]} {way[0]}: {1e6 * s:.3g}" for way, s in tried.items())
            said += f"; tried in the first batches, µs a row: {each}"
        return {"engine": "page faults", "gathering": said}

    def take(self) -> _MappedBuffer:
        return _MappedBuffer(self)

    def stats(self) -> Counter[str]:
        return Counter(self.counted)

    def retire(self) -> None:
        self.stopped = True  # a gather that is under way ends soon

    async def close_tiers(self) -> None:
        self._threads.shutdown()
        self._maps.clear()


@dataclass(frozen=True)
class _MappedLease:
    """The rows of a batch, which are read when they are gathered; see `BatchLease`."""

    mapped: _MappedBuffers
    rows: Mapping[str, Int64Array]

    async def ready(self) -> None:
        pass

    gathered = ready

    def failures(self) -> dict[str, tuple[int, Exception]]:
        return {}

    def gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> torch.Tensor:
        rows = padded(self.rows[table], parts)
        into = empty_tensor(self.mapped.empty, (len(rows), *row_shape), dtype)
        self.mapped.gather(table, rows, into)
        return into

    def release(self) -> None:
        pass


class _MappedBuffer:
    """Stands where the feature buffer stands, and holds nothing; see `BatchBuffer`."""

    missing_share = 0.0
    valid_when_granted = True
    loading = False

    def __init__(self, mapped: _MappedBuffers) -> None:
        self._mapped = mapped

    def row_bytes(self, table: str) -> int:
        return self._mapped.row_bytes[table]

    def announce(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        pass

    withdraw = announce

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        return True

    def join(
        self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]
    ) -> Sequence[_MappedLease]:
        return [_MappedLease(self._mapped, rows) for _, rows in batches]

    async def granted(self, ticket: _MappedLease) -> _MappedLease:
        return ticket

    def leave(self, ticket: _MappedLease) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass

    async def drain(self) -> None:
        pass

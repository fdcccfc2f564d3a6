"""The rolled tier: it copies the rows of coming batches behind each other, and reads the copies.

The rows that a batch misses lie apart in the table, and a request costs as much as many rows. If
batches are sampled ahead, one pass over the table copies the rows of all of them: each batch has
its rows, in the order of their numbers, in blocks of a file without a name (`BlockFile`), and a
fetch reads long stretches of them. When a batch has released its slots, its blocks are used again;
if it comes several times in the epoch, after the last time.

Rows that stay in the feature buffer need no copy: those of high classes, once a batch had them.
What a fetch does not find among the copies comes from the tier below, so a wrong guess costs time
only. The laws:

- a block is read only after all writes of its pass have ended;
- a block is used again only after its batch was released, as often as it comes, and each fetch from
  it has ended;
- a pass waits only for blocks of batches whose last turn comes before its own batches;
- a buffer is used again only after its write has ended.

When not to use it: for batches whose rows are not known ahead (`strategies/rolling.py` tells the
tier), or for rows so long that reading them one by one costs no more.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, DirectReader, page_buffer
from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Landing, Stretch, TableFile
from gnndrive.disk.block_file import BlockFile
from gnndrive.disk.distribution import Deltas, Distribution, cold_rows, decode_rows, find_rows
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext

PART_BYTES = 8 << 20  # of the table, read at once
PARTS = 2  # one is read while the rows of another are copied
BLOCK_BYTES = 1 << 18  # longer writes are not faster
SPARE = 96  # blocks that are being written, beside one for each batch; fewer if they are longer
GROW = 256  # blocks
GUESS = 8  # rows of a fetch that tell which batch it is for
CLASSES = 256
COUNTED = 1 << 20  # classes at once
# While rows of one batch are read, those of another are gathered; and other batches may have more
# cold rows than the first one. If the policy decides what stays, a third batch takes slots.
BATCHES_HELD, BATCHES_BESIDE = 2 * 1.1, 3 * 1.1
UNUSED = 1.25  # with more than so many times the slots that batches need, the policy decides

Run = Callable[..., Awaitable[Any]]
"""Calls a function that blocks in another thread; see `Workers.run`."""


@dataclass(frozen=True, slots=True)
class RolledSettings:
    """What `TierContext.opened` is for this tier.

    Attributes:
        folder: where the copies are.
        bytes_max: the most bytes of copies.
        block_rows: how many rows a block has, of whole pages.
        part_rows: how many rows of the table are read at once.
    """

    folder: Path
    bytes_max: int
    block_rows: int
    part_rows: int


def rows_of_block(row_bytes: int, nbytes: int) -> int:
    """How many rows a block of at most `nbytes` has, or of a few pages: whole pages."""
    step = PAGE_BYTES // gcd(row_bytes, PAGE_BYTES)
    return max(min(nbytes, BLOCK_BYTES) // max(row_bytes, 1) // step, 1) * step


def by_class(classes: npt.NDArray[np.uint8]) -> Int64Array:
    """How many rows have each class, int64 [CLASSES], by the class of each."""
    counted = np.zeros(CLASSES, np.int64)
    for start in range(0, len(classes), COUNTED):  # counting needs eight bytes for each
        counted += np.bincount(classes[start : start + COUNTED], minlength=CLASSES)
    return counted


def spare_blocks(block_bytes: int) -> int:
    """How many blocks may be being written, beside one for each batch."""
    return max(min(SPARE, SPARE * BLOCK_BYTES // block_bytes), 2)


def least_kept(
    of_table: Int64Array, of_batch: npt.NDArray[Any], slots: int, most: int = 0
) -> tuple[int, bool]:
    """The least class of which all rows stay in a feature buffer with so many slots, `CLASSES` if
    no row stays; and whether no other rows need stay, if a batch has at most `most` rows. Both
    arrays are as of `by_class`."""
    below = np.concatenate([[0], np.cumsum(of_batch)])
    above = of_table.sum() - np.concatenate([[0], np.cumsum(of_table)])

    def least(needed: npt.NDArray[Any]) -> int:
        fits = above + needed <= slots
        return int(np.argmax(fits)) if fits.any() else CLASSES

    alone = least(np.maximum(BATCHES_HELD * below, most))
    if slots - above[alone] <= UNUSED * BATCHES_HELD * below[alone]:
        return alone, True
    return least(BATCHES_BESIDE * below), False


@dataclass(eq=False)
class _Copies:
    """The copies of a batch's rows, in the order of their numbers, in `blocks`, int64 [k]. It will
    be loaded `uses` times, from index `first` on."""

    number: int
    deltas: Deltas
    blocks: Int64Array
    uses: int
    first: int
    fetches: int = 0

    @cached_property
    def ids(self) -> Int64Array:
        """The rows' numbers in the table, ascending, int64 [n]."""
        return decode_rows(self.deltas)


class Rolled(Tier):
    """Keeps copies of the rows of coming batches; see the module.

    Args:
        below: has all rows.
        table: where `below` reads them, in the order of their numbers.
        classes: the class of each row, uint8 [rows], by which rows leave the feature buffer; None:
            no rows are copied.
        gap_bytes: copies at most so far apart are read as one.

    Attributes:
        threshold: rows of this class and above stay in the feature buffer; None: see `keep`.
        keeps: whether these are to be kept for good, and no others (`SlotTable.keep_from`).
        found_rows, other_rows: rows of batches with copies that were fetched from these, and from
            below.
    """

    name = "rolled"

    def __init__(
        self, below: Tier, engine: Engine, table: TableFile, classes: npt.NDArray[np.uint8] | None,
        settings: RolledSettings, gap_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.path, self.table, self.engine, self._below = below.path, table, engine, below
        self.classes, self.threshold = classes, None if classes is not None else 0
        self.keeps = False
        self._choosing = threading.Lock()
        self._seen = np.zeros(-(-table.row_count // 8), np.uint8)
        self._settings, self.rows, self._gap = settings, settings.block_rows, gap_bytes
        self.part_rows = min(settings.part_rows, table.row_count)
        self._most = self._blocks_max = settings.bytes_max // (self.rows * max(table.row_bytes, 1))
        self._file: BlockFile | None = None
        self._memory: Bytes | None = None
        self._free: deque[int] = deque()
        self._given = asyncio.Event()
        self._copies: dict[int, _Copies] = {}  # by the batch's number
        self._expected: dict[int, _Copies] = {}  # by its index
        self._fetches, self._over = 0, True
        self.found_rows = self.other_rows = 0

    @classmethod
    def make(cls, context: TierContext) -> Self:
        """See `Tier.make`."""
        file = getattr(context.layout, "file", None)
        if context.below is None or file is None:
            raise ConfigError(
                "the tier 'rolled' needs one below it that reads a table: name it above 'disk', "
                "with layout='table'"
            )
        settings = context.opened or RolledSettings(
            Path(file.path).parent, 0, rows_of_block(context.row_bytes, 0), 1
        )
        gap = context.layout.ahead_bytes
        return cls(context.below, context.engine, file, context.classes, settings, gap)

    # ---- which rows are copied

    def keep(self, rows: Int64Array, slots: int, most: int) -> None:
        """Choose the threshold, once an epoch, by the rows of a batch (int64 [n]), for a feature
        buffer with so many slots, if a batch has at most `most` rows. In any thread."""
        with self._choosing:
            if self.threshold is not None:
                return
            assert self.classes is not None
            of_batch = by_class(self.classes[np.unique(rows)])
            chosen = least_kept(by_class(self.classes), of_batch, slots, most)
            self.threshold, self.keeps = chosen

    def missed(self, rows: Int64Array) -> Deltas:
        """Those of a batch's rows (int64 [n], each once) that it will miss. In any thread."""
        assert self.classes is not None
        assert self.threshold is not None
        return cold_rows(rows, self.classes, self.threshold, self._seen)

    async def copy(
        self, run: Run, batches: Mapping[int, Deltas], first: int = 0,
        uses: Mapping[int, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Copy the rows of batches, by their numbers, in one pass: of those that have no copies the
        first ones, as far as there is room. Waits for blocks until batches with copies are
        released.

        Args:
            run: see `Run`.
            batches: all that are loaded from index `first` on and may have copies.
            first: see there.
            uses: how often each of them is; once unless it is here.

        Raises:
            StoreError: the disk is full, or a write failed, or the table cannot be read (ReadError,
                too). No batch has copies, and no block is lost.
        """
        self._over = False
        kept = [self._copies[number] for number in batches if self.has(number)]
        chosen, room = dict[int, Deltas](), self._blocks_max - sum(len(c.blocks) for c in kept)
        for number, deltas in batches.items():
            if self.has(number):
                continue
            room -= -(-deltas[1] // self.rows)
            if room < 0:
                break
            chosen[number] = deltas
        if any(count for _, count in chosen.values()):
            blocks = await _Pass(self, run, chosen).copies()
            for number, deltas in chosen.items():
                self._copies[number] = _Copies(
                    number, deltas, blocks[number], uses.get(number, 1), first
                )

    # ---- batches with copies

    def has(self, number: int) -> bool:
        """Whether the batch of that number has copies."""
        return number in self._copies

    def expect(self, index: int, number: int) -> None:
        """Rows of a batch will be fetched from now on."""
        copies = self._copies.get(number)
        if copies is not None and index >= copies.first:
            self._expected[index] = copies

    def give(self, index: int) -> None:
        """A batch has released its slots: use its blocks again, once no fetch reads them, unless it
        comes again."""
        copies = self._expected.pop(index, None)
        if copies is None:
            return
        copies.uses -= 1
        if not copies.uses:
            del self._copies[copies.number]
            self._give_unused(copies)

    def forget(self) -> None:
        """The epoch has ended: free all copies, once no fetch reads them."""
        ended, self._copies = self._copies, {}
        self._expected.clear()
        for copies in ended.values():
            copies.uses = 0
            self._give_unused(copies)
        self._over = True
        self.threshold = None if self.classes is not None else 0
        self._free_unused()

    def fetch_ended(self, copies: _Copies) -> None:
        """A fetch of these copies has ended."""
        copies.fetches -= 1
        self._fetches -= 1
        self._give_unused(copies)
        self._free_unused()

    def _free_unused(self) -> None:
        """Free the file and the buffers between epochs."""
        if not self._over or self._fetches:
            return
        self._memory = None
        if self._file is not None:
            blocks = self._file.blocks
            assert sorted(self._free) == list(range(blocks)), "a block was lost, or given twice"
            self._file.close()
            self._file = None
        self._free.clear()
        self._blocks_max = self._most

    def _give_unused(self, copies: _Copies) -> None:
        if not copies.uses and not copies.fetches:
            self.give_blocks(copies.blocks.tolist())

    # ---- blocks

    @property
    def file(self) -> BlockFile:
        """The file of the copies."""
        if self._file is None:
            self._file = BlockFile(
                self._settings.folder, self.table.row_bytes, self.rows, self._gap
            )
        return self._file

    @property
    def copies(self) -> bool:
        """Whether the rows of a batch can be copied at all."""
        return self.classes is not None and self._most > 0

    @property
    def full(self) -> bool:
        """Whether the disk was full in this epoch."""
        return self._blocks_max < self._most

    def buffers(self, count: int) -> Bytes:
        """So many buffers for blocks, uint8 [count, block_bytes], the same at each call."""
        if self._memory is None or len(self._memory) < count:
            self._memory = page_buffer(count * self.file.block_bytes).reshape(count, -1)
        return self._memory[:count]

    async def take_block(self, run: Run) -> int:
        """A block that is free, or as soon as one is. StoreError: the disk is full."""
        while not self._free:
            before = self.file.blocks
            if before < self._blocks_max:
                try:
                    await run(self.file.grow, min(before + GROW, self._blocks_max))
                except StoreError:
                    self._blocks_max = before
                    raise
                finally:  # if this is cancelled, the file has grown, too
                    self._free.extend(range(before, self.file.blocks))
            else:
                self._given.clear()
                await self._given.wait()
        return self._free.popleft()

    def give_blocks(self, blocks: Sequence[int]) -> None:
        """Use blocks again that nothing reads or writes."""
        self._free.extend(blocks)
        self._given.set()

    # ---- fetches

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        copies = self._copies_of(rows)
        if copies is None:
            self.other_rows += len(rows) * bool(self._expected)
            return self._below.fetch(rows, places, landing)
        at = find_rows(copies.ids, rows)
        here = at >= 0
        at = at[here]
        at = copies.blocks[at // self.rows] * self.rows + at % self.rows
        own = self.file.locate(at, places[here], landing)
        rest = None
        if len(at) < len(rows):
            rest = self._below.fetch(rows[~here], places[~here], landing)
        self.engine.read(own)
        copies.fetches += 1
        self._fetches += 1
        self.found_rows += len(at)
        self.other_rows += len(rows) - len(at)
        return _CopiesFetch(self, copies, own, rest, (rows, places, landing))

    def _copies_of(self, rows: Int64Array) -> _Copies | None:
        """The copies of the batch that needs these rows, or another that shares many of them."""
        some = np.ascontiguousarray(rows[:: max(len(rows) // GUESS, 1)][:GUESS])
        best, most = None, 0
        for copies in self._expected.values():
            count = int(np.count_nonzero(find_rows(copies.ids, some) >= 0))
            if count > most:
                best, most = copies, count
        return best

    def below_instead(
        self, slots: Int32Array, rows: Int64Array, places: Int32Array, landing: Landing
    ) -> Fetch:
        """Fetch from below what was to come to `slots`, some of `places`."""
        failed = np.isin(places, slots)
        return self._below.fetch(rows[failed], places[failed], landing)

    async def aclose(self) -> None:
        """See `Tier.aclose`."""
        self.forget()
        await self._below.aclose()


class _CopiesFetch:
    """The fetch of a batch's copies, then of its other rows, and of copies that cannot be read."""

    def __init__(
        self, tier: Rolled, copies: _Copies, own: ReadJob, rest: Fetch | None,
        wanted: tuple[Int64Array, Int32Array, Landing],
    ) -> None:  # fmt: skip
        self._tier, self._copies, self._wanted = tier, copies, wanted
        self._under_way: list[Fetch] = [own] if rest is None else [own, rest]
        self._own, self._cancelled = own, False

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches()

    async def _stretches(self) -> AsyncIterator[Stretch]:
        damaged = [np.empty(0, FAILURE)]
        async for stretch in self._own:
            ended = stretch.failures["error"] == errno.ECANCELED
            damaged.append(stretch.failures[~ended])
            yield Stretch(stretch.slots, stretch.failures[ended])
        self._tier.fetch_ended(self._copies)
        if len(again := np.concatenate(damaged)):
            try:
                self._under_way.append(self._tier.below_instead(again["slot"], *self._wanted))
            except MemoryError:
                again["error"] = errno.ENOMEM
                yield Stretch(np.empty(0, np.int32), again)
            if self._cancelled:
                self.cancel()
        for fetch in self._under_way[1:]:
            async for stretch in fetch:
                yield stretch

    def cancel(self) -> None:
        """See `Fetch.cancel`."""
        self._cancelled = True
        for fetch in self._under_way:
            fetch.cancel()


class _Pass:
    """One pass over the table, which copies the rows of batches."""

    def __init__(self, tier: Rolled, run: Run, batches: Mapping[int, Deltas]) -> None:
        self._tier, self._run, self._batches = tier, run, batches
        self._blocks: list[list[int]] = [[] for _ in batches]
        self._spares = spare_blocks(tier.file.block_bytes)
        self._memory = tier.buffers(len(batches) + self._spares)
        self._spare = list(range(len(self._memory)))
        self._writes: dict[asyncio.Task[None], ReadJob] = {}
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        row_bytes = tier.table.row_bytes
        self._rows = Distribution(row_bytes, tier.rows, list(batches.values()))

    async def copies(self) -> dict[int, Int64Array]:
        """Make the copies; returns the blocks of each batch. Raises what `Rolled.copy` does."""
        try:
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    await self._copy(*part)
            await self._write(self._rows.flush())
            await self._written(len(self._memory))
        except BaseException:
            await self._give_up()
            raise
        return {
            number: np.array(blocks, np.int64)
            for number, blocks in zip(self._batches, self._blocks, strict=True)
        }

    async def _parts(self) -> AsyncGenerator[tuple[Bytes, int, int], None]:
        """The rows of the table, in order: memory, the number of its first row, and how many."""
        table, count = self._tier.table, self._tier.part_rows
        nbytes = count * table.row_bytes + 2 * PAGE_BYTES
        memory = [page_buffer(nbytes) for _ in range(PARTS)]
        with DirectReader(table.path) as reader:

            def read(first: int) -> tuple[Bytes, int, int]:
                rows = min(count, table.row_count - first)
                start = table.data_offset + first * table.row_bytes
                into = memory[first // count % PARTS]
                return reader.read(start, rows * table.row_bytes, into), first, rows

            begun = asyncio.ensure_future(self._run(read, 0))
            try:
                for first in range(0, table.row_count, count):
                    part = await begun
                    self._tier.bytes_read += part[2] * table.row_bytes
                    if first + count < table.row_count:
                        begun = asyncio.ensure_future(self._run(read, first + count))
                    yield part
            finally:
                reader.stop()
                await _end_of([begun])

    async def _copy(self, part: Bytes, first: int, count: int) -> None:
        """Copy the rows of a part to buffers, and write those that are full."""
        while True:
            spare = np.array(self._spare, np.int32)
            full, taken, done = await self._run(
                self._rows.copy, part, first, count, self._memory, spare
            )
            self._spare = self._spare[taken:]
            await self._write(full)
            if done:
                return
            await self._written(self._spares // 2)  # at once: each wait takes turns of the loop

    async def _write(self, full: npt.NDArray[Any]) -> None:
        """Begin to write buffers, each to a block."""
        if not len(full):
            return
        blocks = []
        for batch in full["batch"].tolist():
            blocks.append(await self._tier.take_block(self._run))
            self._blocks[batch].append(blocks[-1])
        buffers = np.ascontiguousarray(full["buffer"])
        job = self._tier.file.writes(np.array(blocks, np.int64), buffers, self._memory)
        self._tier.engine.read(job)
        task = asyncio.get_running_loop().create_task(self._end_write(job))
        self._writes[task] = job
        task.add_done_callback(self._write_ended)

    async def _end_write(self, job: ReadJob) -> None:
        async for stretch in job:
            self._spare += stretch.slots.tolist()
            for code in stretch.failures["error"][:1].tolist():
                self._error = self._error or self._tier.file.write_error(code)
            self._ended.set()

    def _write_ended(self, task: asyncio.Task[None]) -> None:
        self._writes.pop(task)
        self._error = self._error or task.exception()
        self._ended.set()

    async def _written(self, spare: int) -> None:
        """Wait until so many buffers are spare. StoreError: a write has failed."""
        while self._error is None and len(self._spare) < spare:
            self._ended.clear()
            await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def _give_up(self) -> None:
        """Wait for writes that are under way, then give all blocks back."""
        for job in self._writes.values():
            job.cancel()
        try:
            await _end_of(list(self._writes))
        finally:  # if this is cancelled, the writes have ended, too
            for blocks in self._blocks:
                self._tier.give_blocks(blocks)


async def _end_of(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until all have ended, also when cancelled, and then raise CancelledError."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [each for each in tasks if not each.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for each in tasks:
        if not each.cancelled():
            each.exception()
    if cancelled is not None:
        raise cancelled

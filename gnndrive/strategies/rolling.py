"""Rolling packs: fresh batches whose rows are copied behind each other before they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, ClassVar

from gnndrive.buffer.row_table import RowTable
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Part, Shape, Use, if_any
from gnndrive.common.memory import format_size
from gnndrive.common.plugins import find
from gnndrive.disk.tiers.base import TierContext
from gnndrive.disk.tiers.rolled import (
    BLOCK_BYTES,
    PART_BYTES,
    PARTS,
    SPARE,
    RolledSettings,
    by_class,
    least_kept,
    rows_of_block,
    spare_blocks,
)
from gnndrive.loader.arguments import positive, preset
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.ranks import Ranks
from gnndrive.pipeline.epoch import Feed
from gnndrive.plan.costs import (
    ADMISSION,
    BESIDE,
    COPIES,
    DISK,
    HAND_OVER,
    PROCESSORS,
    RANK_ROW_S,
    RECORDS,
    SAMPLING,
    WRITTEN,
    Disk,
    Loads,
    adjacency_seconds,
    combined,
    copy_seconds,
    processors,
)
from gnndrive.plan.plan import Plan, Planner, TablePlan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.strategy_costs import Known, Prediction, StrategyCost
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.schedules.base import ScheduleContext
from gnndrive.store.calibration import calibrate_command
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.strategies.base import FeedContext
from gnndrive.strategies.superbatches.rolling_feed import ALIVE, RollingFeed
from gnndrive.strategies.superbatches.scheme import (
    AheadPart,
    AheadScheme,
    LoaderSuperbatches,
    PlannedSuperbatches,
    SamplesAhead,
)

FIRST, SECOND, MOST = 2, 16, 64  # batches of the first two superbatches, and of an "auto" one
FREE_SHARE = 0.8  # of the disk, for samples and copies
COPIED_SHARE = 0.65  # of a batch's rows at most, of whose copies the plan has room
SUPERBATCHES_COPIED = 1.5  # at once
BLOCKS = 16  # that a batch's copies have at least, unless they are of one page
BUFFERS_SHARE = 0.03  # of memory=, for blocks, and for parts of the table
# Seconds of one core for a copied row beside its bytes: to note and find it, and as much again
# because 64 batches' blocks are in no cache.
COPIED_ROW_S = 3.5e-7
BATCH_S = 1e-3  # seconds of a batch, however small: to record its sample and to read it again
ENDURANCE_BYTES = 600 * 10**12  # that drives of 1 TB are often rated for
DELTA_BYTES, ID_BYTES = 1.1, 8  # a row of a batch: encoded, and while it is loaded


@dataclass(frozen=True, kw_only=True)
class Rolling(SamplesAhead):
    """Rolling packs: DiskGNN's packed rows (SIGMOD 2025), but for batches that are drawn afresh in
    each epoch.

    A batch misses rows that lie apart in the table, so it waits for many short reads. Here a
    superbatch is sampled and recorded while the one before is loaded. One pass over the table then
    copies the rows that its batches will miss, behind each other, into a file without a name; a
    batch reads its copies in a few long stretches, and its place in the file is used again. Rows of
    nodes with many out-edges stay in the feature buffer and are not copied. Each of the others is
    moved three times (the pass, the write, the read), but without its neighbours, which cost more.

    The batches are those of "gnndrive". The first superbatch of an epoch is loaded as it does, so
    that the first batch comes as soon, and so is what cannot be copied: because the disk is full,
    or because a superbatch has too few batches for a pass to pay.

    With `reuse`, sampling and copying are paid once for several batches, as in DiskGNN, which
    replays samples, and HierBatching, whose mini-batches come several times. Repeated samples cost
    accuracy, so compare it. An epoch then has `reuse` times as many batches.

    Args:
        superbatch: how many batches share a pass over the table. "auto": 64, or as many as there is
            disk for; the first ones have fewer. With `reuse` it must be a number, because it
            decides which batches come when.
        reuse: how often the batches of a superbatch come before those of the next one: first in the
            order of "gnndrive", then in random orders. It is not for `ranks=`.
        folder: where sampled batches and copies are, in files without a name, on a fast disk;
            `plan().disk_bytes` says how much they take. None: the store's folder.
        phases: must be "overlapped".
    """

    name: str = "rolling"
    published: str = "gnndrive"
    policy: Any = field(default="static", repr=False)
    tiers: tuple[Any, ...] = field(default=("rolled", "disk"), repr=False)
    reuse: int = 1

    does: ClassVar[str] = "copies the rows of coming batches"
    disk: ClassVar[str] = "sampled batches, copies of their rows"
    pays: ClassVar[str] = "rows are short and memory is scarce"

    def preset(self, assembly: Assembly) -> Assembly:
        """See `Strategy.preset`: batches whose rows are copied are loaded fast, so few wait."""
        own = preset(assembly.own, training_queue=2, extracting_queue=2)
        return replace(assembly, own=own)

    def open(self, assembly: Assembly) -> AheadScheme:
        """See `Strategy.open`."""
        self._check(assembly)
        if self.phases != "overlapped":
            raise ConfigError(f"phases={self.phases!r}: strategy='rolling' needs 'overlapped'")
        if positive(reuse=self.reuse) > 1 and self.superbatch == "auto":
            raise ConfigError(
                f"reuse={self.reuse!r} repeats the batches of a superbatch, and 'auto' depends on "
                "the disk: give a number, such as superbatch=64"
            )
        asked = assembly.own["policy"]
        kind = find("policies", self.policy if asked == "auto" else asked)
        if kind.looks_ahead or kind.score is None:
            raise ConfigError(
                f"policy={asked!r}: strategy='rolling' needs a policy by which known rows stay in "
                "the feature buffer: leave policy= out, or give 'static'"
            )
        return _RollingScheme(self)

    @property
    def own_batches(self) -> str:
        """See `Strategy.own_batches`."""
        if self.reuse == 1:
            return ""
        return f"{self.name}:superbatch={self.superbatch},reuse={self.reuse}"

    def cost(self, assembly: Assembly, known: Known, request: PlanRequest) -> StrategyCost:
        """See `Strategy.cost`: an epoch's mean, with the first superbatches, which are short."""
        scheme = self.open(assembly)
        own = scheme.of(assembly).request()
        cost, written = _cost(self.text, own, scheme.planner(own), known)
        note, assumed = cost.note, ""
        if written:
            epochs = ENDURANCE_BYTES / written
            note = (
                f"an epoch writes {format_size(written)}; a drive rated for "
                f"{format_size(ENDURANCE_BYTES)} written takes {epochs:,.0f} of them"
            )
            if own.disk.write_byte_s is None:
                assumed = (
                    f"writing is taken to cost {WRITTEN} times as much as reading: run "
                    f"{calibrate_command(assembly.store)} to measure it"
                )
        if self.reuse > 1:
            changes = f"each batch {self.reuse} times"
            cost = replace(cost, same_batches=False, changes=changes)
        return replace(cost, note=note, assumed=assumed)


class _RollingScheme(AheadScheme):
    """How a loader copies rows ahead."""

    sweep = 1  # a fetch is for one batch

    strategy: Rolling
    _planned: _PlannedRolling
    _size: Bounds
    _memory: int | None

    def ahead(self, assembly: Assembly) -> _PlannedRolling:
        """See `Scheme.ahead`."""
        planned = super().ahead(assembly)
        own = {each.name: getattr(planned, each.name) for each in fields(planned)}
        reuse = self.strategy.reuse
        own["batches"] //= reuse
        self._planned = _PlannedRolling(**own, tables=assembly.collate.tables, reuse=reuse)
        return self._planned

    def schedule_context(self, context: ScheduleContext, ranks: Ranks) -> ScheduleContext:
        """See `Scheme.schedule_context`."""
        reuse, superbatch = self.strategy.reuse, self.strategy.superbatch
        if reuse == 1:
            return context
        if ranks.per_step > 1:
            raise ConfigError(
                f"reuse={reuse!r} repeats the batches of one process, and ranks= deals them to "
                f"{ranks.world}: leave reuse= out, or give a sampler that splits by rank, such as "
                "torch.utils.data.DistributedSampler"
            )
        return replace(context, passes=reuse, superbatch=int(superbatch))

    def planner(self, request: PlanRequest) -> Planner:
        """See `Scheme.planner`."""
        self._size, self._memory = request.planned, request.rank_memory
        self._planned.check_room(self._size)
        return super().planner(request)

    def planner_again(self, request: PlanRequest, before: Plan, samplers: int) -> Planner:
        """See `Scheme.planner_again`."""
        self._size, self._memory = request.planned, request.rank_memory
        return super().planner_again(request, before, samplers)

    def tier_context(self, context: TierContext) -> TierContext:
        """See `Scheme.tier_context`."""
        planned, size = self._planned, self._size
        (table,) = (each for each in planned.tables if each.name == context.table)
        settings = RolledSettings(
            planned.folder,
            planned.copies_bytes(size, table),
            planned.block_rows(size, table, self._memory),
            planned.part_rows(table, self._memory),
        )
        return replace(context, opened=settings)

    def feed(self, context: FeedContext) -> Feed:
        """See `Scheme.feed`."""
        return RollingFeed(_LoaderRolling(context))


@dataclass(frozen=True, slots=True)
class _PlannedRolling(PlannedSuperbatches):
    """What is decided of superbatches whose rows are copied; see `plan.request.Ahead`.

    Attributes:
        batches: that are sampled in an epoch.
        tables: those of the feature buffer.
        reuse: how often each batch comes.
    """

    tables: tuple[FeatureTable, ...] = ()
    reuse: int = 1

    @property
    def alive(self) -> int:
        """How many superbatches are on disk at a time."""
        return ALIVE

    def part(self, size: Bounds, memory: int | None) -> Part:
        """See `plan.request.Ahead`."""
        return _RollingPart(self, size, memory)

    def most(self, size: Bounds) -> int:
        """The most batches that a superbatch samples."""
        held = int(FREE_SHARE * self.free_bytes) // self._batch_bytes(size)
        return max(min(self.asked or MOST, self.batches, held), 1)

    def _batch_bytes(self, size: Bounds) -> int:
        """Bytes of disk, a batch of a superbatch."""
        copies = sum(_copies_bytes(size, each) for each in self.copied())
        return self.alive * self.record_bytes(size) + copies

    def check_room(self, size: Bounds) -> None:
        """Raise ConfigError if the disk decides how long a superbatch is that is to come again."""
        needed = min(self.asked or MOST, self.batches)
        if self.reuse == 1 or self.most(size) >= needed:
            return
        free, nbytes = int(FREE_SHARE * self.free_bytes), needed * self._batch_bytes(size)
        raise ConfigError(
            f"superbatch={self.asked} with reuse={self.reuse} takes up to "
            f"{format_size(nbytes, free)} of disk, and {format_size(free, nbytes)} of "
            f"{self.folder} may be used: give a smaller superbatch=, or a folder on another disk "
            "with folder="
        )

    def sizes(self, size: Bounds) -> Iterator[tuple[int, int]]:
        """How many batches each superbatch of an epoch samples, and how many it has."""
        most, numbers = self.most(size), count()
        together = self.batches if self.reuse == 1 else most
        for first in range(0, self.batches, together):
            new = min(together, self.batches - first)
            left = self.reuse * new
            while left > 0:
                loaded = _size(next(numbers), most, left, self.reuse > 1)
                yield min(loaded, new), loaded
                new, left = max(new - loaded, 0), left - loaded

    def copied(self) -> tuple[FeatureTable, ...]:
        """The tables whose rows are copied: those of nodes. Blocks have whole pages and whole rows,
        so that for rows of some sizes they would be too long."""
        return tuple(
            each
            for each in self.tables
            if not each.of_edges
            and rows_of_block(each.file.row_bytes, 0) * each.file.row_bytes <= 4 * BLOCK_BYTES
        )

    def copies_bytes(self, size: Bounds, table: FeatureTable) -> int:
        """The most bytes of copies of a table's rows."""
        if table not in self.copied():
            return 0
        return self.most(size) * _copies_bytes(size, table)

    def block_rows(self, size: Bounds, table: FeatureTable, memory: int | None) -> int:
        """How many rows a block of copies has: few if batches, or memory, are small."""
        row_bytes = table.file.row_bytes
        nbytes = int(_copied_rows(size, table) * row_bytes) // BLOCKS
        if memory is not None:
            nbytes = min(nbytes, int(BUFFERS_SHARE * memory) // (self.most(size) + SPARE))
        return rows_of_block(row_bytes, nbytes)

    def part_rows(self, table: FeatureTable, memory: int | None) -> int:
        """How many rows of a table are read at once."""
        nbytes = PART_BYTES
        if memory is not None:
            nbytes = min(nbytes, int(BUFFERS_SHARE * memory) // PARTS)
        return max(nbytes // table.file.row_bytes, 1)

    def disk_bytes(self, size: Bounds) -> int:
        """See `plan.request.Ahead`."""
        copies = sum(self.copies_bytes(size, each) for each in self.tables)
        return self.waiting(size) * self.record_bytes(size) + copies

    def said(self, size: Bounds) -> tuple[str, ...]:
        """See `plan.request.Ahead`."""
        most, disk = self.most(size), format_size(self.disk_bytes(size))
        which = "superbatch=" if self.asked is not None else 'superbatch="auto"'
        again = f", each {self.reuse} times (reuse=)" if self.reuse > 1 else ""
        return (
            f"disk: up to {disk} in {self.folder} while an epoch runs, for sampled batches and "
            f"copies of their rows, in superbatches of up to {most:,} ({which}){again}",
        )


def _copied_rows(size: Bounds, table: FeatureTable) -> float:
    """The most rows of a table of nodes of which a batch has copies."""
    return 0.0 if table.of_edges else COPIED_SHARE * size.entries[table.type]  # type: ignore[index]


def _copies_bytes(size: Bounds, table: FeatureTable) -> int:
    """Bytes of disk for copies of a table's rows, a batch of a superbatch: a block at least."""
    row_bytes = table.file.row_bytes
    rows = max(_copied_rows(size, table), rows_of_block(row_bytes, 0))
    return int(SUPERBATCHES_COPIED * rows * row_bytes) + 1


@dataclass(frozen=True, slots=True)
class _RollingPart:
    """What copying takes; see `Part`."""

    planned: _PlannedRolling
    size: Bounds  # of the largest batch
    memory: int | None

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        yield from AheadPart(self.planned, self.size).items(shape)
        planned, size, memory = self.planned, self.size, self.memory
        most, tables, nbytes = planned.most(size), planned.copied(), 0
        for each in tables:
            block_bytes = planned.block_rows(size, each, memory) * each.file.row_bytes
            nbytes += (most + spare_blocks(block_bytes)) * block_bytes
            nbytes += PARTS * planned.part_rows(each, memory) * each.file.row_bytes
        why = f"blocks of {most} batches and of writes, and parts of the table"
        yield from if_any(Item("copies", nbytes, why, life=Life.EPOCH, use=Use.READING))
        of_batches = self.planned.waiting(self.size) * DELTA_BYTES
        of_batches += (shape.queued + shape.extracted) * ID_BYTES
        why = "which rows batches will miss"
        nbytes = int(sum(int(_copied_rows(self.size, each)) for each in tables) * of_batches)
        yield from if_any(Item("missed rows", nbytes, why, life=Life.EPOCH))
        why = "a bit for each row: whether a batch had it"
        nbytes = shape.rows // 8 + len(shape.tables)
        yield Item("seen rows", nbytes, why, life=Life.BUFFER)


class _LoaderRolling(LoaderSuperbatches):
    """Makes the superbatches of one epoch."""

    def __init__(self, context: FeedContext) -> None:
        super().__init__(context)
        self._disk, self._done = context.request.disk, context.done

    def size(self, number: int, first: int, misses: float | None) -> int:
        """See `LoaderSuperbatches.size`."""
        planned, most = self._planned, self._planned.most(self._size)
        assert isinstance(planned, _PlannedRolling)
        if planned.asked is None or planned.reuse == 1:
            return _size(number, most, most if self.end is None else self.end - first, False)
        together = planned.reuse * planned.asked
        return _size(number, most, together - (self._done + first) % together, True)

    def pays(self, table: RowTable, counts: Sequence[int], uses: Sequence[int]) -> bool:
        """See `RollingSource.pays`."""
        return _pays(self._disk, table.rows, table.row_bytes, counts, uses)


def _size(number: int, most: int, left: int, reuse: bool) -> int:
    """How many batches superbatch `number` has: twice as many as the one before, so that it is
    ready when that one was loaded. Once superbatches are as long as can be, they divide the epoch's
    `left` batches evenly, because a pass for few does not pay. With `reuse`, `left` come before
    others are sampled, and then one has all of these."""
    size = min(SECOND << min(number - 1, 16) if number else FIRST, most)
    if number and size == most and left > 0:
        size = left if reuse else -(-left // -(-left // most))
    return min(size, left)


def _pays(
    disk: Disk, rows: int, row_bytes: int, counts: Sequence[float], uses: Sequence[int]
) -> bool:
    """Whether it pays to copy the rows of batches that miss so many rows of a table, and are loaded
    so often."""
    each = list(zip(counts, uses, strict=True))
    apart = sum(often * disk.of_rows.seconds(count, rows, row_bytes) for count, often in each)
    read = sum(often * count for count, often in each) * row_bytes
    moved = disk.long_reads(rows * row_bytes + read) + disk.long_writes(sum(counts) * row_bytes)
    return moved < apart


# ---- what a batch costs


def _cost(
    name: str, request: PlanRequest, planner: Planner, known: Known
) -> tuple[StrategyCost, float]:
    """What a batch costs, and how many bytes an epoch writes."""
    predicted, disk, planned = Prediction(request, planner, known), request.disk, request.ahead
    assert isinstance(planned, _PlannedRolling)
    plan, loading, batches = predicted.plan, predicted.loading, planned.batches
    reuse, record_bytes = planned.reuse, planned.record_bytes(request.planned)
    sizes = list(planned.sizes(request.planned))
    written = float(batches * record_bytes)
    loads, more = dict[str, Loads](), dict.fromkeys((DISK, RECORDS, PROCESSORS), 0.0)
    more |= {HAND_OVER: loading.pace * BATCH_S, ADMISSION: 0.0}
    passes_s = [0.0] * len(sizes)
    for table in plan.tables:
        cold, alone = _cold_rows(table, request, known)
        if cold is None:
            loads[table.name] = predicted.loads(table)
            continue
        rows, row_bytes, nbytes = table.rows, table.row_bytes, cold * table.row_bytes
        loads[table.name] = Loads(1 - cold / loading.counts(table)[0], cold, 1.0)
        scan_s, write_s = disk.long_reads(rows * row_bytes), disk.long_writes(nbytes)
        copy_s = loading.pace * (cold * COPIED_ROW_S + copy_seconds(cold, nbytes))
        paid = [
            k for k, (n, _) in enumerate(sizes)
            if k and _pays(disk, rows, row_bytes, [cold] * n, [reuse] * n)
        ]  # fmt: skip
        for k in paid:
            passes_s[k] += scan_s + sizes[k][0] * max(write_s, copy_s)
        share = sum(sizes[k][0] for k in paid) / batches
        if alone:  # the rows that stay have no standby keys
            ranks_s = share * loading.pace * RANK_ROW_S * loading.counts(table)[0]
            more[ADMISSION] -= ranks_s
            more[PROCESSORS] -= ranks_s / processors()
        written += share * batches * nbytes
        apart_s = disk.of_rows.seconds(cold, rows, row_bytes)
        more[DISK] += share * (disk.long_reads(nbytes) - apart_s)
        more[RECORDS] += (len(paid) / batches * scan_s + share * write_s) / reuse
        more[PROCESSORS] += share * copy_s / processors() / reuse
    seconds = predicted.seconds(plan, loads)
    again = 1 - 1 / reuse  # the share of batches that are neither sampled nor recorded
    more[DISK] -= again * adjacency_seconds(plan, loading)
    more[RECORDS] -= again * record_bytes * disk.byte_s
    more[PROCESSORS] -= again * BESIDE * loading.drawn.sample_s / processors()
    more[SAMPLING] = -again * seconds[SAMPLING]
    seconds |= {part: seconds[part] + added for part, added in more.items()}
    # A superbatch is loaded while the rows of the next one are copied.
    batch_s = combined(seconds)[0]
    before = zip(sizes, passes_s[1:], strict=False)
    waits = (max(after - batch_s * n, 0.0) for (_, n), after in before)
    seconds[COPIES] = sum(waits) / batches / reuse
    counts = {each.name: loading.counts(each)[0] for each in plan.tables}
    hits = sum(loads[each].hit_share * count for each, count in counts.items())
    share = hits / max(sum(counts.values()), 1)
    epoch = None if known.batches is None else known.batches * reuse
    return StrategyCost(name, seconds, epoch, share), written


def _cold_rows(table: TablePlan, request: PlanRequest, known: Known) -> tuple[float | None, bool]:
    """Rows of a table that a batch will miss, and whether no others stay (`Rolled.keeps`); None: it
    is not copied, or nothing is known."""
    trace, score = known.traces.get(table.name), find("policies", request.policy).score
    classes = None if score is None else known.classes_of(score, table.name)
    if table.slots >= table.rows or trace is None or classes is None:
        return None, False
    of_trace = by_class(classes[trace.kept][trace.ids])
    of_batch = of_trace * (trace.wanted.mean() / max(of_trace.sum(), 1))
    least, alone = least_kept(by_class(classes), of_batch, table.slots, table.batch_rows_max)
    return float(of_batch[:least].sum()), alone

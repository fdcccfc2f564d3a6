"""The plan of a loader that replays a pack: which rows are hot, and how large a batch's place is.

All batches are known, so nothing is estimated: the index says how many rows of each batch lie at
which level. The feature buffer has as many hot rows as the other items leave room for, and places
for the other rows of the largest batch. Before rows are packed, `hot_slots` says how many of them
will be hot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.buffer.items import ALIAS_BYTES, SlotTables
from gnndrive.buffer.place_table import RESIDENT_PART_ROWS
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Phase, Shape, Use, if_any
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.plugins import find, names
from gnndrive.common.records import NO_TOPOLOGY, TopologyChoice
from gnndrive.plan import costs
from gnndrive.plan.choice import fitting
from gnndrive.plan.costs import Disk, Loading
from gnndrive.plan.plan import (
    MAPPED_BYTES,
    Budget,
    Elastic,
    Plan,
    Planner,
    Slots,
    StageCounts,
    TablePlan,
    default_bytes,
    host_bytes,
)
from gnndrive.plan.request import PlanRequest, attribute_files, planner_of
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.pyg.items import AttributeMemory
from gnndrive.sampling.items import Graph, Samples
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.packed.record import SLOT_BYTES, Recorded
from gnndrive.store.packed.recording import RecordedSizes, Recording, recorded_sizes
from gnndrive.strategies.base import stages_for

STAGES = StageCounts(2, 2, 2)
UNPACKED = "predicted as if these batches were packed, which they are not"
PLACES = 2  # one is read while the other is gathered
TOPOLOGY = TopologyChoice(NO_TOPOLOGY, "none, because samples are recorded", 0)
_NOT_NEEDED = (SlotTables, Graph, Samples)  # parts of a loader that draws
RESIDENT_BYTES = 45  # of a hot row that is being read: its numbers, and its planned read
_ENTRY_BYTES = 16  # of a queued sample: the node's id and its row in the packed file
LOAD_BYTES = 33  # of a row of a batch that is read, with its planned read
SPARE = 0.01  # of the memory: a row that turns out to have no room costs a read of its own
LARGEST = 1.02  # the largest batch reads so much more than the mean one


@dataclass(frozen=True, slots=True)
class PackSlots(Slots):
    """The feature buffer for a pack, with up to `places_max` places; see `plan.plan.Slots`."""

    recording: Recording
    places_max: int
    disk: Disk

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """See `Slots.fit`."""
        name, said, limit, taken, buffers = _limit(shape, budget, items)
        room, tried, most = (limit - taken) // buffers, list[int](), self._largest({})
        choices = [(hot, self._largest(hot)) for hot in _choices(self.recording)]
        for places in range(self.places_max, 0, -1):
            for hot, place in choices:
                tables = tuple(
                    TablePlan(
                        each.name, self.recording.files[each.name].row_count,
                        hot[each.name] + places * place[each.name], each.row_bytes,
                        most[each.name], hot[each.name], places, place[each.name],
                    )
                    for each in shape.tables
                )  # fmt: skip
                tried.append(sum(each.slots * each.row_bytes for each in tables))
                if tried[-1] <= room:
                    return tables, self._why(tables, hot)
        lines = "\n".join(
            f"  {each.what}: {format_size(each.host_bytes)}" for each in items if not each.on_device
        )
        least = least_text(buffers * min(tried) + taken)
        raise ConfigError(
            f"{said} is too little to replay {self.recording.path}: give at least "
            f'{name}="{least}", or pack smaller batches; beside the rows there are\n{lines}'
        )

    def said(self, plan: Plan) -> tuple[str, ...]:
        """See `Slots.said`: where a batch's rows come from."""
        tables, on_device = plan.tables, plan.on_device
        every = self._bytes({})[0]
        held = self._bytes({each.name: each.residents for each in tables})[0]
        read, shared, chunk, beyond = self._bytes(
            {each.name: each.residents + each.kept for each in tables}
        )
        where = "device" if on_device else "memory"
        parts = [f"{format_size(int(every - held))} from {where}"]
        if on_device:
            parts.append(f"{format_size(int(held - read))} from host memory")
        if beyond >= 1:
            parts.append(f"{format_size(int(beyond))} of hot rows for which there is no room")
        parts += [f"{format_size(int(shared))} of its segment", f"{format_size(int(chunk))} chunk"]
        return (f"a batch's rows: {', '.join(parts)}",)

    def _largest(self, hot: Mapping[str, int]) -> dict[str, int]:
        """The most rows of each table that a batch has beside so many hot ones."""
        cold = self.recording.cold_entries
        return {
            name: int(cold(name, hot.get(name, 0)).max(initial=0)) for name in self.recording.files
        }

    def _why(self, tables: Sequence[TablePlan], hot: Mapping[str, int]) -> str:
        held = sum(each.residents for each in tables)
        share = 1 - self._bytes(hot)[0] / max(self._bytes({})[0], 1)
        places = max((each.places for each in tables), default=0)
        rows = sum(each.place_rows for each in tables)
        return (
            f"{held:,} hot rows, {share:.0%} of what batches use, and {places} places of up to "
            f"{rows:,} other rows"
        )

    def _bytes(self, hot: Mapping[str, int]) -> tuple[float, float, float, float]:
        """Bytes of a batch's rows, on average over all batches: those that are read, and of these
        the ones in the segment, in the chunk, and hot ones that memory has no room for."""
        recording, total, shared, chunk = self.recording, 0.0, 0.0, 0.0
        batches = max(len(recording), 1)
        for name, file in recording.files.items():
            counts = recording.places[name].counts(recording.index).sum(axis=(0, 1))
            cold = recording.cold_entries(name, hot.get(name, 0)).sum()
            total += float(cold) * file.row_bytes / batches
            shared += float(counts[1]) * file.row_bytes / batches
            chunk += float(counts[0]) * file.row_bytes / batches
        return total, shared, chunk, total - shared - chunk

    def _rows(self) -> float:
        """Rows of a batch, on average over all batches."""
        recording = self.recording
        rows = sum(int(recording.cold_entries(name, 0).sum()) for name in recording.files)
        return rows / max(len(recording), 1)

    def _read_seconds(self, read: float, shared: float, tables: Sequence[TablePlan]) -> float:
        """Seconds of reading a batch: `read` bytes in long reads, `shared` of them of the segment,
        and in a pass over each band the hot rows for which the tables of a plan have no room."""
        requests = read / costs.LONG_READ_BYTES + shared / (costs.LONG_READ_BYTES / 4) + 2
        seconds = requests * self.disk.request_s + read * self.disk.byte_s
        for table in tables:
            ends, uses = self.recording.band_ends[table.name], self.recording.band_uses[table.name]
            rows, passes = np.diff(ends, prepend=0), list[float]()
            for band in np.flatnonzero(rows * (ends > table.residents + table.kept)).tolist():
                wanted = uses[band] / max(len(self.recording), 1)
                passes.append(self.disk.seconds(wanted, int(rows[band]), table.row_bytes))
            # Bands lie one behind the other, so a pass goes on in the next one.
            seconds += sum(passes) - max(len(passes) - 1, 0) * self.disk.request_s
        return seconds

    def batch_seconds(self, plan: Plan, pace: float) -> tuple[dict[str, float], float]:
        """Seconds of a batch with a plan, by part, and the share of its bytes that is not read."""
        every = self._bytes({})[0]
        read, shared, _, beyond = self._bytes(
            {each.name: each.residents + each.kept for each in plan.tables}
        )
        read_bytes = read + self.recording.sizes.record_bytes
        disk_s = self._read_seconds(read_bytes - beyond, shared, plan.tables)
        seconds = _replayed_seconds(disk_s, self._rows(), every, read_bytes, pace)
        return seconds, 1 - read / max(every, 1)


def _limit(shape: Shape, budget: Budget, items: Sequence[Item]) -> tuple[str, str, int, int, int]:
    """What limits hot rows and places: the argument that would raise it, the limit as a text and in
    bytes, how much of it other items take, and how many feature buffers share it."""
    ranks = shape.ranks
    if budget.buffer is not None:
        return "buffer", budget.said("buffer"), budget.buffer, 0, ranks
    if budget.device_memory is not None:
        taken = sum(item.nbytes for item in items if item.on_device)
        return "device_memory", budget.said("device_memory"), budget.device_memory, taken, 1
    if budget.memory is not None:
        return "memory", budget.said("memory"), budget.memory, host_bytes(items), ranks
    given = default_bytes(ranks)
    said = f"a quarter of the memory that is left, {format_size(given)},"
    return "buffer", said, given, 0, ranks


@dataclass(frozen=True, slots=True)
class _HotRows(Elastic):
    """Hot rows in host memory for which a device has no room; see `plan.plan.Elastic`."""

    recording: Recording

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], Sequence[Item]]:
        if not shape.on_device:
            return tables, ()
        for more in _choices(self.recording):
            kept = [max(more[each.name] - each.residents, 0) for each in tables]
            nbytes = sum(n * each.row_bytes for n, each in zip(kept, tables, strict=True))
            if nbytes <= left:
                break
        tables = tuple(replace(each, kept=n) for n, each in zip(kept, tables, strict=True))
        why = f"{sum(kept):,} rows for which the device has no room"
        of_buffer = partial(Item, life=Life.BUFFER, during=Phase.EXTRACTION, use=Use.FEATURES)
        return tables, if_any(of_buffer("hot rows", nbytes, why))


@dataclass(frozen=True, slots=True)
class _ReplayedSamples:
    """Samples that are read from a pack, and the leases of their batches; see `Part`."""

    sizes: RecordedSizes
    hot_rows: int
    subgraphs: bool  # whether samples are in PyG's own form

    def items(self, shape: Shape) -> Iterator[Item]:
        entries, queued, hot = shape.entries, shape.queued, self.hot_rows
        sample = self.sizes.record_bytes + _ENTRY_BYTES * max(shape.nodes, entries)
        if self.subgraphs:
            sample += shape.sample_bytes
        largest = f"the largest has {shape.nodes:,} nodes and {shape.edges:,} edges"
        yield Item("index", self.sizes.index_bytes, "of the pack: where each batch lies")
        of_epoch = partial(Item, life=Life.EPOCH, during=Phase.EXTRACTION)
        yield of_epoch("queued samples", sample * queued, f"{queued} that wait; {largest}")
        resident = hot + RESIDENT_BYTES * min(hot, 3 * RESIDENT_PART_ROWS // 2)
        yield Item(
            "residents", resident, "to read the hot rows in parts", life=Life.BUFFER,
            during=Phase.EXTRACTION, use=Use.READING,
        )  # fmt: skip
        records = (sample + 8 * entries) * shape.samplers
        yield of_epoch("records", records, "samples that are being read")
        yield of_epoch(
            "leases", (ALIAS_BYTES + LOAD_BYTES) * entries * shape.extracted,
            f"of {shape.extracted} batches: where their rows are, and which are being read",
            use=Use.READING,
        )  # fmt: skip


def _choices(recording: Recording) -> list[dict[str, int]]:
    """How many rows of each table may be hot, the most first; each drops the least useful band."""
    held = dict(recording.hot_rows)
    bands = []
    for name, file in recording.files.items():
        ends = recording.band_ends[name]
        sizes = np.diff(ends, prepend=0) * file.row_bytes
        for band in np.flatnonzero(sizes).tolist():
            worth = float(recording.band_uses[name][band]) * file.row_bytes / sizes[band]
            bands.append((worth, -band, name, int(ends[band - 1]) if band else 0))
    found = [dict(held)]
    for _, _, name, left in sorted(bands):
        held[name] = min(held[name], left)
        found.append(dict(held))
    return found


def packed_planner(request: PlanRequest, recording: Recording) -> Planner:
    """The planner of a loader that replays a pack; raises what `fitting` does."""

    def planner(request: PlanRequest) -> Planner:
        found = _replaying(request, recording.sizes, sum(recording.hot_rows.values()))
        places = min(PLACES, found.stages.training_queue)
        slots = PackSlots(recording, places, request.disk)
        return replace(found, slots=slots, elastic=_HotRows(recording))

    return fitting(request, planner, lambda: "pack smaller batches")


def _replaying(request: PlanRequest, sizes: RecordedSizes, hot_rows: int) -> Planner:
    """The planner of a loader that replays batches of such sizes, by its request as if it drew
    them. What its feature buffer holds is not known; ranks that replay share nothing."""
    entries = dict(sizes.nodes)
    store = request.store.info.types
    distinct = {type: min(count, store.nodes[type].num_nodes) for type, count in entries.items()}
    bounds = Bounds(distinct, dict(sizes.edges), entries)
    request = replace(
        request, bounds=bounds, seed_bounds=bounds, planned=bounds, drawn=None, shared=False
    )
    planner = planner_of(request, stages_for(request, STAGES))
    replayed = _ReplayedSamples(sizes, hot_rows, request.subgraphs is not None)
    parts = [each for each in planner.parts if not isinstance(each, _NOT_NEEDED)]
    return replace(
        planner, parts=(replayed, *parts), topology=TOPOLOGY, edge_numbers=False, elastic=None
    )


# ---- before rows are packed


def hot_slots(request: PlanRequest, recorded: Recorded, device_memory: int) -> dict[str, int]:
    """Choose how many rows of each table training will hold; the ones with the most uses a byte
    come first. Each hot row makes the places of batches smaller, so both are chosen together.

    `request` is of a loader that draws the batches, in the memory that training will have; no plan
    is made of it, because drawing may need more memory than replaying. Without `device_memory`, it
    trains on the host. ConfigError if `memory=` is too little even with one place.
    """
    sizes = _placed_sizes(recorded, request.tables)
    room, places = _room(request, sizes, device_memory)
    left, hot, choices = room * (1 - SPARE), dict[str, int](), []
    for table in request.tables:
        counts, row_bytes = recorded.counts[table.name], table.file.row_bytes
        largest = places * LARGEST * _entries(sizes, table)
        left -= largest * row_bytes
        hot[table.name] = 0
        one_use = largest / max(int(counts.sum(dtype=np.int64)), 1)  # of what places have room for
        for uses, rows in enumerate(_histogram(counts).tolist()):
            if uses and rows:
                cost = row_bytes * (1 - one_use * uses)
                choices.append((uses / row_bytes, table.name, rows, cost))
    for _, name, rows, cost in sorted(choices, reverse=True):
        taken = rows if cost <= 0 else min(rows, max(int(left / cost), 0))
        hot[name] += taken
        left -= taken * cost
        if taken < rows:
            break
    return hot


def _placed_sizes(recorded: Recorded, tables: Sequence[FeatureTable]) -> RecordedSizes:
    """The sizes of the largest batches, with the sections that are empty while they are recorded:
    a slot or place and, unless the table is arranged, an order."""
    sizes = recorded_sizes(recorded.schema, recorded.index)
    more = sum(2 * SLOT_BYTES * _entries(sizes, table) for table in tables)
    return replace(sizes, record_bytes=sizes.record_bytes + more)


def _entries(sizes: RecordedSizes, table: FeatureTable) -> int:
    """The most rows of a table that a batch has."""
    of_type: Any = sizes.edges if table.of_edges else sizes.nodes
    return int(of_type[table.type])


def _histogram(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """How many rows have 0, 1, 2, … uses."""
    having = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for start in range(0, len(counts), 1 << 22):
        having += np.bincount(counts[start : start + (1 << 22)], minlength=len(having))
    return having


def _room(request: PlanRequest, sizes: RecordedSizes, device_memory: int) -> tuple[int, int]:
    """The bytes that a rank's training will have for hot rows and places, those of the device and
    of the host together, and the number of places; see `hot_slots`."""
    planner = _replaying(request, sizes, 0)
    places, ranks = min(PLACES, planner.stages.training_queue), request.ranks
    shape, tables = planner.shape, planner.shape.tables
    place = sum(each.batch_rows_max * each.row_bytes for each in tables)
    if device_memory:
        shape = replace(shape, on_device=True, delivers=True)
        scratch = (
            sum(device.scratch_bytes(each.row_bytes, each.rows) for each in tables)
            for device in (find("devices", name) for name in names("devices"))
        )
        taken = 2 * shape.whole_batch_bytes + max(scratch)
        device_memory, place = max(device_memory - taken, 0), 0
    host = default_bytes(ranks)
    if request.buffer is not None:
        host = request.buffer
    elif request.memory is not None:
        fetched = [each.name for each in attribute_files(request) if each.nbytes > MAPPED_BYTES]
        attributes = AttributeMemory(planner.fetch_bytes(fetched) if fetched else 0)
        most = request.memory // ranks + device_memory
        hot_rows = sum(min(each.rows, most // each.row_bytes) for each in tables)
        without, others = (
            replace(each, shape=shape, parts=(*each.parts, attributes)).rest_bytes()
            for each in (planner, _replaying(request, sizes, hot_rows))
        )
        if request.memory < (least := without + place * ranks):
            raise ConfigError(
                f"memory={format_size(request.memory, least)} is too little to replay these "
                f'batches: give at least memory="{least_text(least)}", or pack smaller batches'
            )
        host = max(request.memory - others, 0)
    return host // ranks + device_memory, places


# ---- what a batch costs


def _replayed_seconds(
    disk_s: float, rows: float, nbytes: float, read_bytes: float, pace: float
) -> dict[str, float]:
    """Seconds by part of a batch with so many rows; reading `read_bytes` takes `disk_s`."""
    gather_s = costs.copy_seconds(rows, nbytes)
    computing = gather_s + costs.HAND_OVER_S + costs.LAND_BYTE_S * read_bytes
    return {
        costs.DISK: disk_s, costs.GATHER: pace * gather_s,
        costs.HAND_OVER: pace * costs.HAND_OVER_S,
        costs.PROCESSORS: pace * computing / costs.processors(),
    }  # fmt: skip


def unpacked_cost(
    name: str, request: PlanRequest, planner: Planner, loading: Loading,
    traces: Mapping[str, SampledTrace], batches: int | None, command: str,
) -> StrategyCost:  # fmt: skip
    """What a batch of a pack would cost that `command` makes of a loader's batches. ConfigError if
    the plan does not fit, or no trace says how often rows are used."""
    plan, read = planner.plan(), 0.0
    hits = wanted = nbytes = 0.0
    for table in plan.tables:
        trace = traces.get(table.name)
        if trace is None:
            raise ConfigError("there is no pack, and too little is known to say what one gives")
        # The hottest rows stay; how often rows are used is counted in the trace itself.
        counts = np.bincount(trace.ids, minlength=trace.rows)
        slots = int(table.slots * trace.share)
        share = float(np.sort(counts)[::-1][:slots].sum() / max(counts.sum(), 1))
        count = float(trace.wanted.mean())
        hits, wanted = hits + share * count, wanted + count
        read += (1 - share) * count * table.row_bytes
        nbytes += count * table.row_bytes
    disk_s = request.disk.long_reads(read)
    seconds = _replayed_seconds(disk_s, wanted, nbytes, read, loading.pace)
    seconds[costs.ATTRIBUTES] = costs.attributes_seconds(plan, loading)
    return StrategyCost(
        name, seconds, batches, hits / max(wanted, 1), same_batches=False, note=UNPACKED,
        command=command,
    )  # fmt: skip

"""The plan of a loader that replays a pack: which rows are hot, and how large a batch's place is.

All batches are known, so nothing is estimated: the index says how many rows of each batch lie at
which level. The feature buffer has as many hot rows as the other items leave room for, and places
for the other rows of the largest batch. `make_planner` (`choice.py`) calls `packed_planner`; before
rows are packed, `packed_room` says how much memory training will have for both.

When not to use it: for batches that are drawn (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gnndrive.buffer.place_table import RESIDENT_PART_ROWS
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.plugins import find, names
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.computing import (
    HAND_OVER,
    HAND_OVER_S,
    LAND_BYTE_S,
    PROCESSORS,
    copy_seconds,
    processors,
)
from gnndrive.plan.items import PlanItem, item_if_any, other_items
from gnndrive.plan.plan import Plan, TablePlan, default_bytes
from gnndrive.plan.planner import MAPPED_BYTES, Planner, fetch_bytes
from gnndrive.plan.prediction import Disk
from gnndrive.plan.request import PlanRequest, StageCounts, attribute_files, requirements_of
from gnndrive.plan.requirements import Requirements
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.packed.recording import RecordedSizes, Recording

STAGES = StageCounts(2, 2, 2)
STAGE_NAMES = ("samplers", "extracting_queue", "training_queue")
PLACES = 2  # one is read while the other is gathered
READ_BYTES = 256 << 10  # of one request of a long read
NO_TOPOLOGY = TopologyChoice("none", "none, because samples are recorded", 0)
_NOT_NEEDED = ("mapping table", "index pointers", "look-ahead", "topology", "leases",
               "queued samples", "sampler scratch")  # fmt: skip
RESIDENT_BYTES = 45  # of a hot row that is being read: its numbers, and its planned read
_ENTRY_BYTES = 16  # of a queued sample: the node's id and its row in the packed file
ALIAS_BYTES, LOAD_BYTES = 4, 33  # of a row of a batch; of one that is read, with its planned read


@dataclass(frozen=True, slots=True)
class _Budget:
    """What limits the feature buffer.

    Attributes:
        name: the argument that would raise it.
        nbytes: the limit.
        taken: how much of it other items take.
        said: the limit, for an error message.
        buffers: how many feature buffers share it.
    """

    name: str
    nbytes: int
    taken: int
    said: str
    buffers: int = 1


@dataclass(frozen=True, slots=True)
class PackedPlanner(Planner):
    """Makes the plan of a loader that replays a pack; see `Planner`.

    Attributes:
        recording: the pack.
        sizes: the largest batches.
        disk: what reads cost.
    """

    recording: Recording = field(kw_only=True)
    sizes: RecordedSizes = field(kw_only=True)
    disk: Disk = field(kw_only=True)

    def _make(self, **more: int) -> Plan:
        requirements = replace(self.requirements, **more)  # type: ignore[arg-type]
        hot_rows = sum(self.recording.hot_rows.values())
        items = packed_items(requirements, self.sizes, hot_rows)
        budget = self._budget(requirements, items)
        room, tried = (budget.nbytes - budget.taken) // budget.buffers, list[int]()
        for places in range(min(PLACES, self.stages.training_queue), 0, -1):
            for hot in _choices(self.recording):
                tables = self._tables(requirements, hot, places)
                tried.append(sum(each.slots * each.row_bytes for each in tables))
                if tried[-1] <= room:
                    if requirements.device_memory is not None:
                        tables = self._with_kept(tables, hot, items, requirements.ranks)
                    return self._plan(requirements, items, tables, hot)
        lines = "\n".join(f"  {each.what}: {format_size(each.host_bytes)}" for each in items)
        least = least_text(budget.buffers * min(tried) + budget.taken)
        raise ConfigError(
            f"{budget.said} is too little to replay {self.recording.path}: give at least "
            f'{budget.name}="{least}", or pack smaller batches; beside the rows there are\n{lines}'
        )

    def _budget(self, requirements: Requirements, items: Sequence[PlanItem]) -> _Budget:
        """What limits hot rows and places."""
        ranks = requirements.ranks
        if self.buffer is not None:
            said = f"buffer={format_size(self.buffer)}"
            return _Budget("buffer", self.buffer, 0, said, ranks)
        if (device := requirements.device_memory) is not None:
            live = 2 * requirements.batch_bytes + requirements.device_scratch_bytes
            said = f"device_memory={format_size(device)}"
            return _Budget("device_memory", device, live, said)
        if self.memory is not None:
            others = sum(item.host_bytes for item in items)
            said = f"memory={format_size(self.memory)}"
            return _Budget("memory", self.memory, others, said, ranks)
        given = default_bytes(ranks)
        said = f"a quarter of the memory that is left, {format_size(given)},"
        return _Budget("buffer", given, 0, said, ranks)

    def _tables(
        self, requirements: Requirements, hot: Mapping[str, int], places: int
    ) -> tuple[TablePlan, ...]:
        """The slots of each table if so many of its rows are hot."""
        found = []
        for table in requirements.tables:
            name, held = table.name, hot[table.name]
            place = int(self.recording.cold_entries(name, held).max(initial=0))
            most = int(self.recording.cold_entries(name, 0).max(initial=0))
            rows = self.recording.files[name].row_count
            found.append(
                TablePlan(
                    name, rows, held + places * place, table.row_bytes, most, held, places, place
                )
            )
        return tuple(found)

    def _with_kept(
        self, tables: Sequence[TablePlan], hot: Mapping[str, int], items: Sequence[PlanItem],
        ranks: int,
    ) -> tuple[TablePlan, ...]:  # fmt: skip
        """The tables with the hot rows that have no room on the device, as far as host memory has
        room for them."""
        room = default_bytes(ranks)
        if self.memory is not None:
            room = self.memory - sum(item.host_bytes for item in items)
        room //= ranks
        for more in _choices(self.recording):
            kept = [max(more[each.name] - hot[each.name], 0) for each in tables]
            if sum(n * each.row_bytes for n, each in zip(kept, tables, strict=True)) <= room:
                break
        return tuple(replace(each, kept=n) for n, each in zip(kept, tables, strict=True))

    def _plan(
        self, requirements: Requirements, items: tuple[PlanItem, ...],
        tables: tuple[TablePlan, ...], hot: Mapping[str, int],
    ) -> Plan:  # fmt: skip
        held = sum(each.residents for each in tables)
        nbytes = sum(each.slots * each.row_bytes for each in tables)
        share = 1 - self._bytes(hot)[0] / max(self._bytes({})[0], 1)
        places = max((each.places for each in tables), default=0)
        rows = sum(each.place_rows for each in tables)
        why = (
            f"{held:,} hot rows, {share:.0%} of what batches use, and {places} places of up to "
            f"{rows:,} other rows"
        )
        on_device, ranks = requirements.device_memory is not None, requirements.ranks
        buffer = PlanItem("feature buffer", nbytes, why, 1 if on_device else ranks)
        kept = sum(each.kept for each in tables)
        kept_bytes = sum(each.kept * each.row_bytes for each in tables)
        kept_why = f"{kept:,} rows for which the device has no room"
        items = (*item_if_any("hot rows", kept_bytes, kept_why, ranks), *items)
        live = PlanItem("live batches", 2 * requirements.batch_bytes, "one in use, one ready")
        plan = Plan(
            items if on_device else (buffer, *items), tables, self.memory, self.topology,
            (buffer, live) if on_device else (),
            requirements.device_memory if requirements.device_given else None,
            levels=self._levels(tables, on_device), ranks=ranks,
        )  # fmt: skip
        if self.memory is not None and plan.host_bytes > self.memory:
            raise ConfigError(
                f"memory={format_size(self.memory)} is less than this loader can need, "
                f'{format_size(plan.host_bytes)}; give memory="{least_text(plan.host_bytes)}"'
                f"\n{plan}"
            )
        return plan

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
        """Seconds of reading a batch: its chunk and its part of the segment in long reads, and, in
        a pass over each band, the hot rows that memory has no room for.

        Args:
            read: bytes, without those hot rows.
            shared: of these, in the segment.
            tables: those of a plan.
        """
        requests = read / READ_BYTES + shared / (READ_BYTES / 4) + 2
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
        """What a batch keeps busy for how long with a plan, by part, and the share of its bytes
        that is not read; see `plan/pace.py`."""
        every = self._bytes({})[0]
        read, shared, _, beyond = self._bytes(
            {each.name: each.residents + each.kept for each in plan.tables}
        )
        read_bytes = read + self.sizes.record_bytes
        gather_s = copy_seconds(self._rows(), every)
        computing = gather_s + HAND_OVER_S + LAND_BYTE_S * read_bytes
        seconds = {
            "disk": self._read_seconds(read_bytes - beyond, shared, plan.tables),
            "gather": pace * gather_s,
            HAND_OVER: pace * HAND_OVER_S,
            PROCESSORS: pace * computing / processors(),
        }
        return seconds, 1 - read / max(every, 1)

    def _levels(self, tables: Sequence[TablePlan], on_device: bool) -> tuple[str, ...]:
        """Where a batch's rows come from, and what a batch costs, as `plan()` prints it."""
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
        seconds = max(
            self._read_seconds(read - beyond, shared, tables), copy_seconds(self._rows(), every)
        )
        return (
            f"a batch's rows: {', '.join(parts)}",
            f"a batch takes about {seconds:.2g} s of reading and copying",
        )


def packed_items(
    requirements: Requirements, sizes: RecordedSizes, hot_rows: int
) -> tuple[PlanItem, ...]:
    """All items of host memory except the feature buffer.

    Args:
        requirements: those of the largest recorded batches.
        sizes: of the pack.
        hot_rows: how many rows of the pack are hot.
    """
    entries, queued = requirements.entries_max, requirements.batches_queued
    ranks = requirements.ranks
    nodes = requirements.batch_nodes_max
    sample = sizes.record_bytes + _ENTRY_BYTES * max(nodes, entries)
    if requirements.subgraphs:
        sample += requirements.sample_bytes
    extracted = requirements.batches_extracted
    kept = [item for item in other_items(requirements, None) if item.what not in _NOT_NEEDED]
    largest = f"the largest has {nodes:,} nodes and {requirements.batch_edges_max:,} edges"
    return (
        PlanItem("index", sizes.index_bytes, "of the pack: where each batch lies", ranks),
        *kept,
        PlanItem("queued samples", sample * queued, f"{queued} samples; {largest}", ranks),
        PlanItem(
            "residents",
            hot_rows + RESIDENT_BYTES * min(hot_rows, 3 * RESIDENT_PART_ROWS // 2),
            "to read the hot rows in parts",
            ranks,
        ),
        PlanItem(
            "records", (sample + 8 * entries) * requirements.samplers,
            "samples that are being read", ranks,
        ),
        PlanItem(
            "leases", (ALIAS_BYTES + LOAD_BYTES) * entries * extracted,
            f"aliases and reads of {extracted} batches", ranks,
        ),
    )  # fmt: skip


def _choices(recording: Recording) -> list[dict[str, int]]:
    """How many rows of each table may be hot, the most first: each choice leaves out the band whose
    bytes save least."""
    held = dict(recording.hot_rows)
    bands = []
    for name, file in recording.files.items():
        ends = recording.band_ends[name]
        sizes = np.diff(ends, prepend=0) * file.row_bytes
        for band in np.flatnonzero(sizes).tolist():
            worth = recording.band_uses[name][band] * file.row_bytes / sizes[band]
            bands.append((worth, -band, name, int(ends[band - 1]) if band else 0))
    found = [dict(held)]
    for _, _, name, left in sorted(bands):
        held[name] = min(held[name], left)
        found.append(dict(held))
    return found


def packed_request(request: PlanRequest, sizes: RecordedSizes) -> PlanRequest:
    """The request of a loader that draws, as it is if the loader replays such batches; ranks that
    replay share nothing."""
    entries = dict(sizes.nodes)
    store = request.store.info.types
    distinct = {type: min(count, store.nodes[type].num_nodes) for type, count in entries.items()}
    bounds = Bounds(distinct, dict(sizes.edges), entries)
    stages = {
        name: getattr(STAGES, name) if getattr(request, name) is None else getattr(request, name)
        for name in STAGE_NAMES
    }
    return replace(
        request, bounds=bounds, seed_bounds=bounds, planned=bounds, drawn=None,
        edge_temporaries=0, needs_indices=None, graph_bytes=0, candidate_bytes=0, shared=False,
        **stages,
    )  # fmt: skip


def packed_planner(request: PlanRequest, recording: Recording) -> PackedPlanner:
    """The planner of a loader that replays a pack."""
    sizes = recording.sizes
    request = packed_request(request, sizes)
    requirements, warm_up = requirements_of(request, _stages(request))
    return PackedPlanner(
        replace(requirements, edge_number_bytes=0), request.memory, request.buffer,
        NO_TOPOLOGY, warm_up,
        _stages(request), None, attribute_files(request), recording=recording, sizes=sizes,
        disk=request.disk,
    )  # fmt: skip


def packed_room(
    request: PlanRequest, sizes: RecordedSizes, device_memory: int = 0
) -> tuple[int, int]:
    """How much memory a rank's training will have for hot rows and places.

    Args:
        request: of a loader that draws the batches.
        sizes: of the batches that it has drawn.
        device_memory: bytes of a GPU that training may use; 0: it trains on the host.

    Returns:
        Bytes of the device and the host together, and the number of places.

    Raises:
        ConfigError: `memory=` is too little to replay the batches, even with one place.
    """
    request = packed_request(request, sizes)
    requirements = replace(requirements_of(request, _stages(request))[0], edge_number_bytes=0)
    places, ranks = min(PLACES, _stages(request).training_queue), request.ranks
    tables = requirements.tables
    place = sum(each.batch_rows_max * each.row_bytes for each in tables)
    if device_memory:
        requirements = replace(requirements, device_memory=device_memory)
        scratch = (
            sum(device.scratch_bytes(each.row_bytes, each.rows) for each in tables)
            for device in (find("devices", name) for name in names("devices"))
        )
        taken = 2 * requirements.batch_bytes + max(scratch)
        device_memory, place = max(device_memory - taken, 0), 0
    host = default_bytes(ranks)
    if request.buffer is not None:
        host = request.buffer
    elif request.memory is not None:
        fetched = [name for name, nbytes in attribute_files(request) if nbytes > MAPPED_BYTES]
        if fetched:
            nbytes = fetch_bytes(requirements, fetched, NO_TOPOLOGY)
            requirements = replace(requirements, fetch_bytes=nbytes)
        most = request.memory // ranks + device_memory
        hot_rows = sum(min(each.rows, most // each.row_bytes) for each in tables)
        without, others = (
            sum(item.host_bytes for item in packed_items(requirements, sizes, hot))
            for hot in (0, hot_rows)
        )
        if request.memory < (least := without + place * ranks):
            raise ConfigError(
                f"memory={format_size(request.memory)} is too little to replay these batches: give "
                f'at least memory="{least_text(least)}", or pack smaller batches'
            )
        host = max(request.memory - others, 0)
    return host // ranks + device_memory, places


def _stages(request: PlanRequest) -> StageCounts:
    given = (getattr(request, name) for name in STAGE_NAMES)
    return StageCounts(*(int(count) for count in given))

"""What ranks on several hosts need and how long a step takes, with three layouts of a store.

`gnndrive plan --hosts` prints it, before anything is bought or copied. Full copies and exchange are
built; shards without exchange are a formula. In a step each of the R ranks of each of the H hosts
gets a batch. A batch has b rows of B bytes (b' = B + 4 with the row's id), of which it finds m
missing in the feature buffer. On one host, per step:

| | full copy | shards | exchange |
| --- | --- | --- | --- |
| features on disk | all N·B | N·B / H: every H-th stretch | the same |
| the buffer holds | rows that the host's ranks use | the same | its own N / H rows |
| mapping table, look-ahead | of N rows | the same | of N / H rows |
| rows read from disk | R·m | R·m, of which 1 / H for its own ranks | R·m', with H times the slots |
| bytes received, and as many sent | 0 | R·m·b'·(H - 1) / H | R·b·b'·(H - 1) / H |
| copies | R·b rows | the same | and R·b·(H - 1) / H rows that arrive |

Graph, labels and splits are whole on every host, because every host samples. With exchange, ranks
also hold rows that arrive and rows that are sent (`exchange/items.py`). A step takes as long as its
longest part: sample, disk, admit, net, gather, compute; on few processors, where parts wait for
each other, up to the sum of them. Exchange pays if its step takes less than with full copies: that
depends on the disk time that it saves, and what the net takes. If the net takes longer than the
disk, a cache of other ranks' rows may pay in each rank, which leaves its buffer less: of b rows it
asks for those that so large an LRU cache misses, and it copies these once more. Seconds of the
other parts are those of `costs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from operator import attrgetter

from gnndrive.buffer.items import SLOT_TABLE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import TableShape
from gnndrive.common.owners import Owners
from gnndrive.exchange.items import Exchange
from gnndrive.plan import costs
from gnndrive.plan.choice import without_plan
from gnndrive.plan.costs import Loading, combined, counted
from gnndrive.plan.plan import Plan, Planner
from gnndrive.plan.slots import split_slots

MB = 1_000_000
ID_BYTES = 4  # of a row that another host is asked for
FULL, SHARDS, EXCHANGE, CACHED = "full copy", "shards", "exchange", "with cache"
CACHE_SHARES = (1 / 8, 1 / 4, 1 / 2)  # of an exchange's memory that are tried
CACHE_GAIN = 1.1  # times as fast a step must be
Exchanging = Callable[[Exchange], Planner]
"""The planner of a host whose ranks exchange rows so; ConfigError: they cannot."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a plan for several hosts, with as many ranks each, depends on beside a host's plan;
    None: not known.

    Attributes:
        net_bytes_s: bytes a second that a host receives from the others while it sends as many.
        compute_s: seconds that a rank trains on a batch, its share of the all-reduce included.
        sampled: whether the seconds of sampling are known.
    """

    hosts: int = 1
    net_bytes_s: float | None = None
    compute_s: float | None = None
    sampled: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout of a store on the hosts; bytes and seconds are those of one host.

    Attributes:
        disk_bytes: the store's part.
        received_bytes: bytes that arrive from other hosts in a step.
        seconds: what a step keeps busy for how long, by part; None: not known.
        refused: why it cannot work; empty: it can.
        cache_bytes: of each rank, for rows of other ranks (`remote_cache=`).
    """

    name: str
    memory_bytes: int
    disk_bytes: int
    received_bytes: float
    seconds: Mapping[str, float | None]
    refused: str = ""
    cache_bytes: int = 0

    @property
    def known(self) -> dict[str, float]:
        """The parts whose seconds are known, with these."""
        return {name: value for name, value in self.seconds.items() if value is not None}

    @property
    def bound_by(self) -> str:
        """The part that the expected seconds are due to; see `costs.combined`."""
        return combined(self.known)[1]

    @property
    def step_s(self) -> float:
        """Seconds of a step whose parts overlap; if a part is not known, at least so many."""
        return max(self.known.values())

    @property
    def serial_s(self) -> float:
        """Seconds of a step in which nothing overlaps; other parts have what `PROCESSORS` has."""
        return sum(value for name, value in self.known.items() if name != costs.PROCESSORS)

    @property
    def expected_s(self) -> float:
        """Seconds of a step whose chains of parts overlap in part; see `costs.combined`."""
        return combined(self.known)[0]


def layouts(
    planner: Planner, exchanging: Exchanging, loading: Loading, cluster: Cluster, store_bytes: int
) -> list[Layout]:  # fmt: skip
    """Compare the layouts of a store of so many bytes; with one host, there is the full copy only,
    whose planner is given. ConfigError if its plan does not fit."""
    plan, hosts = planner.plan(), cluster.hosts
    seconds: dict[str, float | None] = {**costs.step_seconds(plan, loading), costs.NET: 0.0}
    seconds[costs.COMPUTE] = cluster.compute_s
    if not cluster.sampled:
        seconds[costs.SAMPLING] = None
    if plan.device_lines:  # the device gathers
        seconds[costs.GATHER] = seconds[costs.PROCESSORS] = None
    full = Layout(FULL, plan.host_bytes, store_bytes, 0.0, seconds)
    if hosts == 1:
        return [full]
    features = sum(table.rows * table.row_bytes for table in plan.tables)
    part_bytes = store_bytes - features + ceil(features / hosts)
    # A host reads from its part for its own ranks, and as many rows for the others' ranks.
    loaded = {name: each.loads for name, each in counted(plan, loading).items()}
    received, net_s = _received(plan, cluster, loaded)
    shards = Layout(SHARDS, plan.host_bytes, part_bytes, received, {**seconds, costs.NET: net_s})
    of_owners = partial(_exchange, planner, exchanging, loading, cluster, full, part_bytes)
    exchange = of_owners()
    found = [full, shards, exchange]
    if not exchange.refused and exchange.known.get(costs.NET, 0.0) > exchange.known[costs.DISK]:
        sizes = [int(share * exchange.memory_bytes) // plan.ranks for share in CACHE_SHARES]
        of_others = 1 - 1 / (hosts * plan.ranks)
        most = int(of_others * sum(n.rows * (SLOT_TABLE_BYTES + n.row_bytes) for n in plan.tables))
        tried = [of_owners(min(size, most) // MB * MB) for size in sizes]
        fitting = [each for each in tried if not each.refused and each.cache_bytes]
        if fitting:
            best = min(fitting, key=attrgetter("expected_s"))
            if best.expected_s * CACHE_GAIN < exchange.expected_s:
                found.append(best)
    return found


def _exchange(
    planner: Planner, exchanging: Exchanging, loading: Loading, cluster: Cluster, full: Layout,
    disk_bytes: int, cache_bytes: int = 0,
) -> Layout:  # fmt: skip
    """Each host reads and keeps its own rows alone, for the ranks of all hosts."""
    hosts, ranks, whole = cluster.hosts, planner.shape.ranks, planner.shape.tables
    world = hosts * ranks
    owners = {each.name: Owners.of(each.rows, each.row_bytes, world) for each in whole}
    try:
        plan = exchanging(Exchange(owners, 0, range(world), {}, cache_bytes)).plan()
    except ConfigError as error:
        return Layout(EXCHANGE, 0, disk_bytes, 0.0, {}, without_plan(str(error)))
    tables = tuple(
        replace(table, rows=all.rows, slots=min(world * table.slots, all.rows))
        for table, all in zip(plan.tables, whole, strict=True)
    )
    of_all = replace(plan, tables=tables, ranks=world, shared=True)
    features_s = costs.features_seconds(of_all, loading, counted(of_all, loading), hosts)
    wanted: Mapping[str, float] = {each.name: loading.counts(each)[0] for each in tables}
    copies = 2 - 1 / hosts
    if cache_bytes:
        asked = _missed(plan, loading, world, cache_bytes, whole)
        copies += (1 - 1 / hosts) * sum(asked.values()) / max(sum(wanted.values()), 1)
        wanted = asked
    received, net_s = _received(plan, cluster, wanted)
    gather_s = full.seconds[costs.GATHER]
    seconds = {
        **full.seconds,
        costs.DISK: ranks * (hosts * features_s + costs.adjacency_seconds(plan, loading)),
        costs.NET: net_s,
        costs.GATHER: None if gather_s is None else gather_s * copies,
    }
    name = CACHED if cache_bytes else EXCHANGE
    return Layout(name, plan.host_bytes, disk_bytes, received, seconds, cache_bytes=cache_bytes)


def _missed(
    plan: Plan, loading: Loading, world: int, cache_bytes: int, whole: Sequence[TableShape]
) -> dict[str, float]:
    """Rows of a batch that a rank's cache misses, in which the rows of all other ranks lie: as
    many as one misses that has all rows, and slots for all in proportion."""
    of_all = cache_bytes * world // (world - 1)
    slots = split_slots(of_all, whole, [SLOT_TABLE_BYTES + each.row_bytes for each in whole])
    pairs = zip(plan.tables, whole, slots, strict=True)
    tables = tuple(replace(own, rows=all.rows, slots=count) for own, all, count in pairs)
    lru = replace(loading, looks_ahead=False, sweep=1)
    found = counted(replace(plan, tables=tables, shared=False), lru)
    return {name: each.loads for name, each in found.items()}


def _received(
    plan: Plan, cluster: Cluster, rows: Mapping[str, float]
) -> tuple[float, float | None]:
    """Bytes that a host receives in a step if a batch gets so many rows, of which those of the
    other hosts' own stretches come from them; and the seconds that it takes, if they are known."""
    batch = sum(rows[table.name] * (table.row_bytes + ID_BYTES) for table in plan.tables)
    received = plan.ranks * batch * (1 - 1 / cluster.hosts)
    return received, None if cluster.net_bytes_s is None else received / cluster.net_bytes_s

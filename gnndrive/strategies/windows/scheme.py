"""`InsideWindows`: a strategy that samples inside windows of partitions, and its scheme.

A window is a group of partitions that are in memory together. How large windows are is chosen once,
before the runtime is made, by the memory and by drawn batches: batches inside a window are smaller
than those of the whole graph, so a few are drawn inside one; their sizes are kept in batches.json.

The feature buffer holds the static rows and those of two windows (HierBatching section 3): one is
trained on while the next one is loaded. Rows that both have are there once. The slots must hold two
windows, or batches would load rows one by one.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, TypeVar

import numpy as np

from gnndrive.buffer.held_windows import CHUNK_ROWS, READING_MAX
from gnndrive.buffer.items import LEASE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Owner, Phase, Shape, Use, if_any
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import NO_TOPOLOGY, Int64Array, Sample, Subgraph, TopologyChoice
from gnndrive.host.window_graphs import LIVE_MAX
from gnndrive.loader.arguments import named_folder, positive
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.ranks import Ranks
from gnndrive.pipeline.epoch import Counters, Feed
from gnndrive.plan import costs
from gnndrive.plan.choice import fitting, loading_of
from gnndrive.plan.drawn import DRAWN_BATCHES, DrawnBatches, draw_batches
from gnndrive.plan.plan import Budget, Plan, Planner, Slots, StageCounts, TablePlan, default_bytes
from gnndrive.plan.remedies import halves
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.plan.strategy_costs import Known, StrategyCost
from gnndrive.pyg.links_inside import check_inside
from gnndrive.sampling.load_window import loading_bytes
from gnndrive.sampling.samplers.base import Bounds, SamplerContext
from gnndrive.sampling.schedules import choose as choose_schedule
from gnndrive.sampling.schedules.base import InputEdges, ScheduleContext, WindowSizes
from gnndrive.sampling.window_graph import window_bytes
from gnndrive.store.cache import entry_key, load_entry, save_entry
from gnndrive.store.partitioned.format import (
    NAME,
    PARTITIONED,
    PARTITIONS,
    TABLE,
    PartitionInfo,
)
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store
from gnndrive.strategies.base import FeedContext, Scheme, Strategy, refuse_unused, stages_for
from gnndrive.strategies.windows.feed import PartitionWindows, WindowFeed

K = TypeVar("K")
AUTO = "auto"  # passes=: as many as loading a window takes
RANDOM = "random"  # a partitioning's method
PASSES_MAX = 8  # that are chosen
_DIGITS = 12  # of a checksum, in a state
STAGES = StageCounts(2, 4, 3)
TOPOLOGY = TopologyChoice(NO_TOPOLOGY, "none, because each window has a graph of its own", 0)
_MARGIN = 0.1  # by which another window may keep more edges than the one that was drawn
HELD_BYTES = 16  # of a row that `WindowFeed` holds: its number, its slot, whether it is there
STATIC_BYTES = 16  # of a static node of the folder: where it is, and where its list begins


@dataclass(frozen=True, kw_only=True)
class InsideWindows(Strategy):
    """A strategy that samples inside windows of a partitioned store (`gnndrive.partition`).

    Args:
        partitioned: the partitions: their name in the store, or their folder. None: the only ones
            in the store's folder, or the only ones there that suit the strategy.
        megabatch: the most partitions in a window, which are in memory together. None: as many as
            fit into the memory with those of the next window.
        static: the share of the nodes that are in memory for the whole epoch, those with the most
            out-edges. None: the strategy's own.
        passes: how often the batches of a window come, with other draws, before the next window is
            trained on. "auto": once in the first epoch, then as often as loading a window takes the
            time of its batches, at most 8 times.
        per_rank: whether each rank has windows of its own; else all ranks draw from the same ones.
    """

    layout: Any = "partitioned"
    sampler: Any = "inside"
    topologies: tuple[Any, ...] = ("mmap",)  # each window has a graph: only for a host service
    policy: Any = "lru"
    tiers: tuple[Any, ...] = field(default=("victim-first", "disk"), repr=False)
    partitioned: Any = None
    megabatch: int | None = None
    static: float | None = None
    passes: int | str = 1
    per_rank: bool = False
    order: ClassVar[str | None] = None
    """The order of the windows, where a strategy has several."""
    whole_graph: ClassVar[bool] = False
    own_static: ClassVar[float] = 0.0
    """The share that `static=None` stands for."""
    mixed: ClassVar[bool] = False
    """Whether windows are to mix nodes, so that partitions at random suit them best."""
    preparation: ClassVar[str] = "gnndrive partition"
    disk: ClassVar[str] = "rows and lists once more"
    changes: ClassVar[str] = "only edges inside a window, seeds by window"

    def open(self, assembly: Assembly) -> _WindowScheme:
        """See `Strategy.open`."""
        refuse_unused(
            assembly.own, "is for batches that are sampled from the whole graph, and strategy="
            f"{self.name!r} samples inside windows",
        )  # fmt: skip
        if self.megabatch is not None:
            positive(megabatch=self.megabatch)
        passes: Any = self.passes
        if passes != AUTO:
            positive(passes=passes)
        share = self.static
        given = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (given and 0 <= share <= 1):
            raise ConfigError(f"static={share!r}: give a share of the nodes, from 0 to 1")
        if assembly.subgraphs is not None and not assembly.store.is_hetero:
            check_inside(assembly.subgraphs, isinstance(assembly.inputs, InputEdges))
        found = find_partitioned(assembly.store, self.partitioned, self)
        _check_tables(assembly)
        return _WindowScheme(self, found)

    def lacks(self, store: Store) -> str | None:
        """See `Strategy.lacks`."""
        if self.suited(store).partitioned is not None:
            return None
        how = " --method random --name random" if self.mixed else ""
        return f"gnndrive partition {_quoted(store)}{how}"

    def suited(self, store: Store) -> InsideWindows:
        """See `Strategy.suited`: random partitions if windows are to mix nodes, others if not."""
        if self.partitioned is not None:
            return self
        infos = {each.path.name: each.info for each in PARTITIONS.of(store) if each.info}
        best = min(sorted(infos), key=lambda name: not self.suits(infos[name]), default=None)
        return replace(self, partitioned=best)

    def suits(self, info: PartitionInfo) -> bool:
        """Whether partitions are those that the strategy is for."""
        return (info.settings.method == RANDOM) == self.mixed

    def folders(self) -> list[Path]:
        """See `Strategy.folders`."""
        return [Path(self.partitioned)] if isinstance(self.partitioned, str) else []

    def cost(self, assembly: Assembly, known: Known, request: PlanRequest) -> StrategyCost:
        """See `Strategy.cost`; of several partitions those that suit best."""
        inside = (
            self.suited(assembly.store).open(assembly).current(assembly, begun=False).of(assembly)
        )
        request, sizes = inside.request(), inside.scheme.chosen
        planner, partitioned = inside.scheme.planner(request), sizes.partitioned
        plan = planner.plan()
        if sizes.drawn is None:
            raise ConfigError(
                "how large batches are is not known before one is drawn: give memory="
            )
        nodes, codes = np.diff(partitioned.bounds), np.diff(partitioned.edge_bounds)
        (table,), batches = plan.tables, max(inside.steps(), 1)
        rows, edges, before = float(sizes.static), 0.0, set[int]()
        for window in inside.schedule(0).windows(0):
            there = set() if window.partitions is None else set(window.partitions.tolist())
            rows += float(nodes[list(there - before)].sum())
            edges += float(codes[list(there)].sum())
            before = there
        rows, edges = rows / batches, edges / batches
        read = rows * table.row_bytes + edges * partitioned.indices.row_bytes
        loading = loading_of(request, planner, sizes.drawn, known.pace)
        unranked = replace(plan, tables=(replace(table, rows=table.slots),))
        loads = {table.name: costs.Loads(0.0, rows, 1.0)}
        filter_s = known.pace * costs.FILTER_EDGE_S * edges
        seconds = {costs.DISK: 0.0, costs.FILTER: filter_s}
        seconds |= costs.part_seconds(unranked, loading, loads)
        seconds[costs.DISK] = request.disk.long_reads(read)
        seconds[costs.PROCESSORS] += filter_s / costs.processors()
        del seconds[costs.RECORDS]
        changes = f"edges kept {sizes.kept:.0%}, seeds by window"
        several = self.partitioned is None and len(PARTITIONS.of(assembly.store)) > 1
        note = f"with {self.suited(assembly.store).text}" if several else ""
        return StrategyCost(
            self.text, seconds, batches, same_batches=False, changes=changes, note=note
        )


def find_partitioned(store: Store, named: Any, strategy: InsideWindows) -> Partitioned:
    """Open the partitioned folder of a loader with the strategy; for `named` see `InsideWindows`.
    ConfigError if there is none, or several and none is named, or the store is heterogeneous;
    StoreError if it is damaged, or the store has changed."""
    if store.is_hetero:
        raise ConfigError(
            f"strategy={strategy.name!r} samples inside partitions, and {store.path} is "
            "heterogeneous: give strategy='gnndrive'"
        )
    if named is None:
        return open_partitioned(_only(store, strategy), store)
    names = ", ".join(each.path.name for each in PARTITIONS.of(store)) or "none"
    name = f" --name {named}" if isinstance(named, str) and NAME.fullmatch(named) else ""
    remedy = f"{store.path} has {names}; make it with `gnndrive partition {_quoted(store)}{name}`"
    within = Path(store.path, PARTITIONED)
    return open_partitioned(named_folder("partitioned", named, within, remedy), store)


def _quoted(store: Store) -> str:
    return shlex.quote(str(store.path))


def _only(store: Store, strategy: InsideWindows) -> Path:
    there = PARTITIONS.of(store)
    if not there:
        store.check_whole(
            f"strategy={strategy.name!r} needs partitions, which have all: use the whole store"
        )
        raise ConfigError(
            f"strategy={strategy.name!r} samples inside partitions, and {store.path} has none: "
            f"make them with gnndrive.partition(store), or `{strategy.lacks(store)}`"
        )
    infos = {each.path: each.info for each in there if each.info is not None}
    if not infos:
        return there[0].path  # opening it says what is wrong
    paths = [path for path, info in infos.items() if strategy.suits(info)] or list(infos)
    if len(paths) > 1:
        names = " or ".join(f"'{strategy.name}:partitioned={path.name}'" for path in paths)
        which = "; ".join(
            f"{path.name}: {', '.join(infos[path].settings.texts())}" for path in paths
        )
        raise ConfigError(
            f"{store.path} was partitioned several times: give strategy={names} ({which})"
        )
    return paths[0]


def _check_tables(assembly: Assembly) -> None:
    """Check that a loader has the table that partitions have. It may have others, whose rows are
    read from the store as those of other attributes are."""
    if TABLE not in (table.name for table in assembly.collate.tables):
        raise ConfigError(
            f"strategy={assembly.strategy.name!r} loads the rows of x in the order of their "
            "partitions, and this loader delivers no x of the store: use another strategy without "
            "x, and for features that you have set yourself"
        )


# ---- what windows need


@dataclass(frozen=True)
class PlannedWindows(Slots):
    """The windows of a loader. As a part it states what they need beside slots, and it decides how
    many slots the feature buffer has; see `common.items.Part` and `plan.plan.Slots`.

    Attributes:
        sizes: how many partitions windows have, as their schedule says.
        static: the number of static rows that are held for the whole epoch.
        drawn, drawn_in: batches that were drawn inside a window, and the number of its partitions.
        kept: the share of the edges to that window's nodes that begin in it.
        chosen: whether they fitted into the memory that was free when a loader chose them. A plan
            does not ask how much is free again, because that changes all the time.
    """

    partitioned: Partitioned
    sizes: WindowSizes
    static: int
    drawn: DrawnBatches | None = None
    drawn_in: int = 0
    kept: float = 1.0
    chosen: bool = False

    @cached_property
    def _sizes(self) -> tuple[Int64Array, Int64Array]:
        """Nodes and edges of so many of the largest partitions, int64 [P + 1] each."""
        found = []
        for bounds in (self.partitioned.bounds, self.partitioned.edge_bounds):
            sizes = np.sort(np.diff(bounds))[::-1]
            found.append(np.append(0, np.cumsum(sizes)).astype(np.int64))
        return found[0], found[1]

    @property
    def megabatch(self) -> int:
        """The number that `megabatch=` takes to have these windows."""
        return self.sizes.megabatch

    @property
    def nodes(self) -> int:
        """The most nodes of a window's graph; static ones that lie in it count twice."""
        return int(self._sizes[0][self.sizes.one]) + self.static

    @property
    def rows(self) -> int:
        """The rows of x that may be loaded: those of all partitions, and the static ones."""
        return self.partitioned.num_nodes + self.static

    @property
    def slots(self) -> int:
        """Slots for the static rows and those of two windows."""
        return int(self._sizes[0][self.sizes.two]) + self.static

    @property
    def graph_bytes(self) -> int:
        """Bytes of two windows' graphs, one of which is being loaded."""
        partitioned = self.partitioned
        edges = int(self._sizes[1][self.sizes.one])
        edges += int(partitioned.static_bounds[self.static])
        kept = min(ceil(edges * self.kept_in_window), partitioned.num_edges)
        rows = partitioned.num_nodes + partitioned.num_static
        graph = window_bytes(self.nodes, kept, rows, partitioned.num_edges)
        graphs = min(LIVE_MAX, self.sizes.windows)
        return graphs * graph + loading_bytes(self.nodes, partitioned.num_static)

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        item = partial(Item, life=Life.EPOCH, during=Phase.EXTRACTION)
        which = "two windows" if self.sizes.windows > 1 else "the window"
        why = f"neighbours inside {which}"
        graphs = partial(item, life=Life.BUFFER) if shape.shared else item  # a service's memories
        yield graphs("window graphs", self.graph_bytes, why, Owner.BUFFER, use=Use.GRAPH)
        held = HELD_BYTES * (self.slots + self.static)  # both windows hold the static rows
        held += READING_MAX * min(CHUNK_ROWS, self.slots) * LEASE_BYTES
        why = "which rows whole windows use"
        yield item("held rows", held, why, Owner.BUFFER, use=Use.FEATURES)
        static, why = STATIC_BYTES * self.partitioned.num_static, "where they are, and their lists"
        yield from if_any(Item("static nodes", static, f"{why} begin", use=Use.GRAPH))

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """See `Slots.fit`."""
        (table,), slots, several = shape.tables, self.slots, self.sizes.windows > 1
        tables = (replace(TablePlan.of(table, slots), batch_rows_max=self.nodes),)
        count = f"{self.sizes.windows} windows" if several else "one window"
        in_common = 2 * self.sizes.one - self.sizes.two
        common = f", {in_common:,} of them in both" if in_common and several else ""
        why = (
            f"{slots:,} rows: {self.static:,} static ones and "
            f"{'two' if several else 'one'} of {count}, each of "
            f"{self.sizes.one:,} of {self.partitioned.num_parts:,} partitions{common}"
        )
        return tables, why

    def said(self, plan: Plan) -> tuple[str, ...]:
        """See `Slots.said`."""
        if self.drawn is None:
            return ()
        return (
            f"a window keeps {self.kept:.0%} of the edges to its nodes; a batch has about "
            f"{self.drawn.mean_nodes():,.0f} nodes",
        )

    def check(self, plan: Plan, budget: Budget) -> None:
        """See `Slots.check`."""
        needs = {"memory": plan.host_bytes, "buffer": plan.buffer_bytes * plan.buffers}
        if budget.device_given or not self.chosen:
            needs["device_memory"] = plan.device_bytes
        given = {name: getattr(budget, name) for name in needs}
        limits = [
            (name, budget.said(name, needs[name]), each)
            for name, each in given.items()
            if each is not None
        ]
        if not limits and not self.chosen:
            quarter = default_bytes(plan.ranks)
            said = format_size(quarter, needs["buffer"])
            said = f"a quarter of the memory that is left, {said},"
            limits = [("buffer", said, quarter)]
        for name, said, limit in limits:
            if needs[name] > limit:
                raise ConfigError(
                    f"{said} is too little for windows of {self.megabatch:,} of "
                    f"{self.partitioned.num_parts:,} partitions, which need "
                    f'{format_size(needs[name], limit)}: give {name}="{least_text(needs[name])}", '
                    f"or {self.smaller}\n{plan}"
                )

    @property
    def smaller(self) -> str:
        """What makes the loader need less memory, for error messages."""
        if self.megabatch > 1:
            return "a smaller megabatch=, static= or batch_size="
        return (
            "a smaller static= or batch_size=, or partition the store into more parts (gnndrive "
            "partition)"
        )

    @property
    def kept_in_window(self) -> float:
        """The share of the edges to a window's nodes that begin in it, at most."""
        if self.drawn is None:
            return 1.0
        return min(self.kept * (1 + _MARGIN) * self._growth, 1.0)

    @property
    def _growth(self) -> float:
        """How many times larger a window is than the one that batches were drawn in, at least 1."""
        return max(self.sizes.one / self.drawn_in, 1)

    def within(self, bounds: Bounds) -> Bounds:
        """The most that a batch can have: no more nodes than a window."""
        nodes = {type: min(count, self.nodes) for type, count in bounds.nodes.items()}
        entries = {type: min(count, self.nodes) for type, count in bounds.entries.items()}
        return replace(bounds, nodes=nodes, entries=entries)

    def planned(self, bounds: Bounds) -> Bounds:
        """The size that a plan counts for the largest batch, at most `bounds`. In a larger window
        than the one that batches were drawn in, they are expected to be larger in proportion."""
        if self.drawn is None:
            return bounds
        found, growth = self.drawn.planned(bounds), self._growth

        def grown(counts: Mapping[K, int], most: Mapping[K, int]) -> dict[K, int]:
            return {type: min(ceil(growth * n), most[type]) for type, n in counts.items()}

        nodes, edges = grown(found.nodes, bounds.nodes), grown(found.edges, bounds.edges)
        entries = grown(found.entries, bounds.entries)
        expanded = found.expanded
        if expanded is not None:
            expanded = min(ceil(growth * expanded), sum(entries.values()))
        return Bounds(nodes, edges, entries, expanded)


def partitioned_planner(request: PlanRequest, windows: PlannedWindows) -> Planner:
    """The planner of a loader that samples inside windows."""
    bounds = windows.within(request.bounds)
    file = replace(windows.partitioned.x, row_count=windows.rows)
    request = replace(
        request, tables=tuple(replace(table, file=file) for table in request.tables),
        bounds=bounds, seed_bounds=bounds, planned=windows.planned(bounds), drawn=windows.drawn,
    )  # fmt: skip
    planner = planner_of(request, stages_for(request, STAGES))
    shape = replace(planner.shape, looks_ahead=False)  # whole windows are loaded
    return replace(
        planner, shape=shape, parts=(windows, *planner.parts), slots=windows, topology=TOPOLOGY,
        limits=None,
    )  # fmt: skip


# ---- what they are for a loader


@dataclass(frozen=True)
class _WindowScheme(Scheme):
    """How a loader uses a partitioned store; see `Scheme`.

    Attributes:
        windows, chosen_for: the windows that are chosen, and for which arguments; None: none are.
        measured: how many passes follow from what an epoch's windows took, with passes="auto";
            None: none was measured, and batches come once.
        resumed_size: `megabatch=` of the state that was loaded; None: none was.
    """

    strategy: InsideWindows
    source: Partitioned
    windows: PlannedWindows | None = None
    chosen_for: str = ""
    measured: int | None = None
    resumed_size: int | None = None

    whole_graph = False
    tables = (TABLE,)
    sweep = 1  # batches of two windows must not wait for each other
    warms_up = False  # a small buffer would not hold two windows

    @property
    def deals(self) -> bool:  # type: ignore[override]
        return self.strategy.per_rank

    @property
    def not_shared(self) -> str:  # type: ignore[override]
        if not self.deals:
            return ""
        return f"with strategy='{self.strategy.text}' each rank has windows of its own"

    @property
    def single(self) -> str:  # type: ignore[override]
        return f"strategy={self.strategy.name!r} samples inside windows"

    @property
    def chosen(self) -> PlannedWindows:
        """The windows, once they are chosen."""
        assert self.windows is not None, "windows are chosen before anything is made of them"
        return self.windows

    @property
    def passes(self) -> int:
        """How often a window's batches come."""
        given = self.strategy.passes
        return self.measured or 1 if isinstance(given, str) else given

    @property
    def _size(self) -> int | None:
        """The most partitions in a window that were asked for."""
        return self.strategy.megabatch or self.resumed_size

    def current(self, assembly: Assembly, begun: bool) -> _WindowScheme:
        """The windows stay the same once the runtime is made."""
        _check_tables(assembly)  # the program may have set features meanwhile
        depends = repr([assembly.own, self._size, assembly.num_neighbors, assembly.batch_size])
        known = self.windows is not None
        # Between the first `plan()` or `len()` and the first epoch a model may have taken memory.
        if known and (begun or (self.chosen_for == depends and self._still_fit(assembly))):
            return self
        return replace(self, windows=self._choose(assembly), chosen_for=depends)

    def after_epoch(self, counters: Counters) -> _WindowScheme:
        """Decides how many passes the next epochs have."""
        if self.strategy.passes != AUTO or self.measured is not None:
            return self
        return replace(self, measured=passes_for(counters.window_seconds))

    # ---- what batches depend on

    def settings(self) -> dict[str, Any]:  # by the names of arguments
        arrays, windows = self.source.info.arrays, self.chosen
        checksums = f"{arrays['order'].checksum} {arrays['bounds'].checksum}"
        return {
            "partitioned": sha256(checksums.encode()).hexdigest()[:_DIGITS],
            "megabatch": windows.megabatch, "static": windows.static,
            "passes": self.strategy.passes, "order": self.strategy.order,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"passes": self.measured}

    def resumed(self, assembly: Assembly, state: Mapping[str, Any], begun: bool) -> _WindowScheme:
        """Without `megabatch=`, before the first epoch, the state's size of windows is taken."""
        passes = state.get("passes")
        if passes is not None and not (type(passes) is int and passes >= 1):
            raise ConfigError("the state is damaged: give what state_dict() returned")
        found, settings = replace(self, measured=passes), state.get("settings")
        size: Any = settings.get("megabatch") if isinstance(settings, Mapping) else None
        fits = type(size) is int and 1 <= size <= self.source.num_parts
        if begun or self.strategy.megabatch is not None or not fits:
            return found
        found = replace(found, resumed_size=size)
        try:
            return found.current(found.of(assembly), begun)
        except ConfigError as error:
            raise ConfigError(f"the state was saved with megabatch={size}: {error}") from None

    def drawn_text(self) -> str:
        return f"windows {self.settings()}"

    # ---- what is made of it

    def schedule_context(self, context: ScheduleContext, ranks: Ranks) -> ScheduleContext:
        dealt = ranks.dealt_by == "loader" and self.deals
        return replace(
            context, partitioned=self.source, megabatch=self.chosen.megabatch,
            passes=self.passes, order=self.strategy.order,
            rank=ranks.rank if dealt else 0, world=ranks.world if dealt else 1,
        )  # fmt: skip

    def sampler_context(self, context: SamplerContext) -> SamplerContext:
        return replace(context, window_nodes=self.chosen.nodes)

    def planner(self, request: PlanRequest) -> Planner:
        return partitioned_planner(request, self.chosen)

    def feed(self, context: FeedContext) -> Feed:
        pointers = context.request.store.edges().index_pointers
        chosen = self.chosen
        return WindowFeed(PartitionWindows(self.source, chosen.static, pointers, context.left))

    # ---- how large windows are

    def _choose(self, assembly: Assembly) -> PlannedWindows:
        """Decide how large the windows are; also raises what `current` does if they do not fit."""
        source, given, per_step = self.source, self._size, assembly.ranks.per_step
        if self.strategy.passes == AUTO and per_step > 1:
            raise ConfigError(
                'passes="auto" measures the windows of one process, and all ranks have to yield as '
                "many batches: give a number of passes"
            )
        windows = PlannedWindows(source, WindowSizes(), self._static())
        most = given and min(given, source.num_parts)
        windows = replace(windows, sizes=self._sizes(assembly, windows, most))
        choose = self._largest if given is None else self._with_drawn
        windows = choose(assembly, windows)
        request = self._trying(assembly, windows).request()
        make = partial(partitioned_planner, windows=windows)
        fitting(request, make, partial(self._smaller, assembly, windows)).plan()
        if given is None and per_step > 1:
            # Each rank would choose by the memory that it finds and the batches that it draws.
            raise ConfigError(
                "with ranks= windows must be as large on all ranks: give "
                f"megabatch={windows.sizes.megabatch}, which fits here, or less"
            )
        return replace(windows, chosen=True)

    def _static(self) -> int:
        """How many rows are held for the whole epoch."""
        given, source = self.strategy.static, self.source
        share = self.strategy.own_static if given is None else float(given)
        if given is not None and source.num_static < round(share * source.num_nodes):
            most = source.num_static / source.num_nodes
            raise ConfigError(
                f"static={share}: {source.path} has the lists of {most:.3g} of the nodes: give "
                "no more, or partition the store again with a larger static="
            )
        return min(round(share * source.num_nodes), source.num_static)

    def _largest(self, assembly: Assembly, smallest: PlannedWindows) -> PlannedWindows:
        """The windows with the most partitions that fit into the memory, with what was drawn of
        them; if not even the smallest do, these. How large batches are depends on the windows'
        size, so windows of a size that fits in any case are drawn first, then larger ones."""
        least = smallest.megabatch

        def sized(of: PlannedWindows, megabatch: int) -> PlannedWindows:
            return replace(of, sizes=self._sizes(assembly, of, megabatch))

        def most(of: PlannedWindows) -> PlannedWindows:
            """The largest windows that fit if their batches are like those of `of`."""
            best, low, high = replace(of, sizes=smallest.sizes), least, self.source.num_parts
            while low < high:
                middle, tried = (low + high + 1) // 2, None
                with suppress(ConfigError):  # there cannot be such windows
                    tried = sized(of, middle)
                if tried is not None and self._fit(assembly, tried):
                    best, low = tried, middle
                else:
                    high = middle - 1
            return best

        found = self._with_drawn(assembly, most(smallest))
        for _ in range(3):
            larger = most(found)
            if larger.megabatch == found.megabatch:
                break
            found = self._with_drawn(assembly, larger)
        while found.megabatch > least and not self._fit(assembly, found):
            fewer = max(found.megabatch * 9 // 10, least)
            found = self._with_drawn(assembly, sized(found, fewer))
        return found

    def _still_fit(self, assembly: Assembly) -> bool:
        """Whether the chosen windows fit into what is free now; those of the user's size do."""
        return self._size is not None or self._fit(assembly, replace(self.chosen, chosen=False))

    def _fit(self, assembly: Assembly, windows: PlannedWindows) -> bool:
        request = self._trying(assembly, windows).request()
        return partitioned_planner(request, windows).plan_that_fits() is not None

    def _smaller(self, assembly: Assembly, windows: PlannedWindows) -> str:
        """What makes the windows fit, for the error if they do not."""
        for count in halves(windows.megabatch):
            with suppress(ConfigError):  # there cannot be such windows
                tried = replace(windows, sizes=self._sizes(assembly, windows, count))
                if self._fit(assembly, tried):
                    return f"give megabatch={tried.megabatch}"
        if windows.static and self._fit(assembly, replace(windows, static=0)):
            return "give static=0"
        return "partition the store into more parts (gnndrive partition)"

    def _trying(self, assembly: Assembly, windows: PlannedWindows) -> Assembly:
        """The assembly of a loader with other windows."""
        tried: Assembly = replace(self, windows=windows).of(assembly)
        return tried

    def _sizes(self, assembly: Assembly, windows: PlannedWindows, most: int | None) -> WindowSizes:
        """The sizes of windows of at most `most` partitions; None: of the fewest that can be."""
        tried = self._trying(assembly, windows)
        context = tried.scheme.schedule_context(tried.schedule_context(0), assembly.ranks)
        schedule = choose_schedule(self.strategy.schedule, replace(context, megabatch=most))
        if schedule.window_sizes is None:
            raise ConfigError(
                f"strategy={self.strategy.name!r} samples inside windows, and the batches of your "
                "sampler lie anywhere in the graph: leave sampler= and batch_sampler= out"
            )
        return schedule.window_sizes

    def _with_drawn(self, assembly: Assembly, windows: PlannedWindows) -> PlannedWindows:
        """The windows with what is known of their batches; draws some if nothing is known, unless
        the user has not said how much memory there is."""
        windows = replace(windows, drawn=None)
        assembly = self._trying(assembly, windows)
        request = assembly.request()
        if request.memory is None:
            return windows
        bounds = windows.within(request.bounds)
        settings = assembly.drawn_settings(assembly.batch_size or 0)
        key = entry_key(assembly.store, settings)
        entry = load_entry(assembly.store, key)
        tables = {TABLE: windows.rows}
        if isinstance(entry, dict) and isinstance(entry.get("kept"), float):
            drawn = DrawnBatches.from_json(entry.get("batches"), bounds, tables)
            if drawn is not None and 0 <= entry["kept"] <= 1:
                return replace(windows, drawn=drawn, drawn_in=windows.sizes.one, kept=entry["kept"])
        source = PartitionWindows(
            self.source, windows.static, assembly.store.edges().index_pointers,
            partial(assembly.schedule(0).windows, 0),
        )  # fmt: skip
        # Of all windows the one with the most edges: its batches are likely to be the largest.
        window = max(source.windows(), key=source.in_edges_of, default=None)
        if window is None:
            return windows
        graph = source.graph(window)
        drawn = draw_batches(
            islice(window.batches, DRAWN_BATCHES), assembly.sampler(), [graph], _rows_of, tables,
            bounds,
        )  # fmt: skip
        if drawn is None:
            return windows
        kept = graph.num_edges / max(source.in_edges_of(window), 1)
        entry = {"kept": kept, "batches": drawn.to_json(settings)}
        save_entry(assembly.store, key, entry)
        return replace(windows, drawn=drawn, drawn_in=windows.sizes.one, kept=kept)


def passes_for(seconds: Collection[tuple[float, float]]) -> int | None:
    """How many passes hide the loading of windows (HierBatching 3), by the seconds that loading
    each took, and its batches; None: none was measured."""
    if not seconds:
        return None
    load, compute = (median(each) for each in zip(*seconds, strict=True))
    if load >= PASSES_MAX * compute:
        return PASSES_MAX
    return max(int(load / compute), 1)


def _rows_of(sample: Sample | Subgraph) -> dict[str, Int64Array]:
    assert sample.rows is not None
    return dict(sample.rows)

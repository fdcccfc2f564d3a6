"""`Sketch`: the plan of a loader over a graph that is not there, from a few numbers.

The graph has one type of nodes, with one array of features and labels of one byte. Nothing can be
drawn, so a batch has the number of nodes that is given, or the most that the fanout allows, and its
rows are taken to lie at random: a graph in which many batches need the same rows reads less. How
long sampling takes is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gnndrive.buffer.items import DeviceMemory, SlotTables
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import BATCH_SIZE, TableShape
from gnndrive.common.plugins import find
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.exchange.items import Exchange, SentRows
from gnndrive.plan.choice import all_stages, cheapest, first_plan, refusal
from gnndrive.plan.costs import Disk, Loading, combined, step_seconds
from gnndrive.plan.drawn import DRAWN_BATCHES, DrawnBatches
from gnndrive.plan.plan import Budget, Planner, StageCounts
from gnndrive.plan.remedies import halves
from gnndrive.plan.request import loader_parts, shape_of
from gnndrive.plan.slots import RowSlots
from gnndrive.plan.topology_choice import Topologies
from gnndrive.sampling.items import Graph, Samples
from gnndrive.sampling.samplers._native import scratch_bytes
from gnndrive.sampling.samplers.base import Bounds, checked_fanout, most
from gnndrive.sampling.topologies.base import GraphSize

TABLE = "nodes/x"
READS = 128  # reads in flight, a loader's default
LABEL_BYTES = 1  # of a node: up to 256 classes
SEED_BYTES = 16  # of a seed: its id, its place in the order
INDEX_POINTER_BYTES = 8  # of a node in a store's file


@dataclass(frozen=True, slots=True)
class Sketch:
    """The numbers of a graph and of a loader over it.

    Attributes:
        batch_nodes: nodes in a batch; None: the most that the fanout allows.
        seeds: of an epoch; None: not known.
        samplers: batches sampled at once; None: the plan chooses.
        topologies, topology_asked: plug-ins in the order of preference, or the one that the user
            named.
        shared: whether the ranks of a host share one feature buffer.
        exchange: which ranks own which rows; None: each rank reads all that it needs.
    """

    nodes: int
    edges: int
    row_bytes: int
    fanout: Sequence[int]
    batch_size: int
    batch_nodes: int | None
    seeds: int | None
    memory: int | None
    buffer: int | None
    samplers: int | None
    topologies: tuple[Any, ...]
    topology_asked: bool
    policy: Any
    ranks: int = 1
    shared: bool = False
    exchange: Exchange | None = None

    @property
    def size(self) -> GraphSize:
        """The graph's size, with indices as wide as a store has them."""
        return GraphSize(self.nodes, self.edges, 4 if self.nodes < 1 << 31 else 8)

    @property
    def store_bytes(self) -> int:
        """Bytes of features, index pointers and indices in a store."""
        pointers = INDEX_POINTER_BYTES * (self.nodes + 1)
        return self.nodes * self.row_bytes + pointers + self.size.indices_bytes

    @property
    def batches(self) -> int | None:
        """Batches of an epoch; None: not known."""
        return None if self.seeds is None else -(-self.seeds // self.batch_size)

    def bounds(self) -> Bounds:
        """The most nodes and edges that a batch has, and nodes whose neighbours are sampled;
        ConfigError if the fanout is no list of whole numbers from -1 on."""
        fanout = checked_fanout(self.fanout)
        whole, inner = self._most(fanout), self._most(fanout[:-1])
        count = min(self.batch_nodes or whole.nodes[None], self.nodes)
        return Bounds({None: count}, whole.edges, {None: count}, min(inner.nodes[None], count))

    def _most(self, fanout: Sequence[int]) -> Bounds:
        nodes: dict[NodeKey, int] = {None: self.nodes}
        edges: dict[EdgeKey, int] = {None: self.edges}
        return most({None: self.batch_size}, {None: fanout}, nodes, edges)

    def drawn(self) -> DrawnBatches:
        """What would be known of the batches, if their rows lay at random."""
        bounds = self.bounds()
        share = bounds.nodes[None] / self.nodes
        together = [self.nodes * (1 - (1 - share) ** n) for n in range(1, DRAWN_BATCHES + 1)]
        counts = {TABLE: tuple(map(round, together))}
        return DrawnBatches((bounds,) * DRAWN_BATCHES, counts, float(bounds.expanded or 0), 0.0)

    def exchanging(self, exchange: Exchange) -> Planner:
        """The planner if ranks exchange rows; see `planner`."""
        return replace(self, exchange=exchange).planner()

    def loading(self, planner: Planner) -> Loading:
        """What a step costs by."""
        looks_ahead = planner.shape.looks_ahead
        return Loading(self.drawn(), [self.size], Disk(), planner.stages, None, looks_ahead)

    def planner(self) -> Planner:
        """Choose topology, samplers and queues; raises what `make_planner` does."""
        stages = all_stages(self.samplers)
        if self.memory is None:  # the first that suits, as for a loader
            first = next(self._planners(stages, None))
            first.plan()
            return first
        costs, refused = [], ConfigError("there is no topology")
        for planner in self._planners(stages, self.memory):
            try:
                parts = step_seconds(planner.plan(), self.loading(planner))
                costs.append((combined(parts)[0], planner))
            except ConfigError as error:
                refused = error
        best = cheapest(costs)
        if best is not None:
            return best
        leanest = stages[-1:]
        sizes = [
            ({"batch_size": count}, partial(replace, batch_size=count))
            for count in halves(self.batch_size)
        ]
        raise refusal(
            self, lambda tried: first_plan(tried._planners(leanest, tried.memory)), refused,
            {BATCH_SIZE: sizes},
        )  # fmt: skip

    def _planners(self, options: Sequence[StageCounts], memory: int | None) -> Iterator[Planner]:
        topologies = Topologies(self.topologies, [self.size], self.topology_asked)
        for stages in options:
            planner = self._planner(stages, memory)
            if memory is None or self.topology_asked:
                yield replace(planner, topology=topologies.choose(planner))
                continue
            for topology in topologies.candidates(planner):
                yield replace(planner, topology=topology)

    def _planner(self, stages: StageCounts, memory: int | None) -> Planner:
        bounds = self.bounds()
        count = bounds.nodes[None]
        policy: type[Policy] = find("policies", self.policy)
        staging = READS * block_bytes(self.row_bytes)
        exchange = self.exchange
        rows = self.nodes if exchange is None else exchange.count(TABLE)
        tables = (TableShape(TABLE, rows, self.row_bytes, min(count, rows), count),)
        shape = replace(
            shape_of(tables, bounds, self.edges, stages, policy), ranks=self.ranks,
            shared=self.shared and exchange is None, graphs=1 if self.shared else self.ranks,
        )  # fmt: skip
        seeds, labels = SEED_BYTES * (self.seeds or 0), LABEL_BYTES * self.nodes
        parts = loader_parts(
            SlotTables(0 if policy.score is None else rows),
            Graph(self.size.index_pointer_bytes), seeds, labels, staging, DeviceMemory(),
            Samples(scratch_bytes(bounds)),
        )  # fmt: skip
        if exchange is not None:
            parts = (*parts, exchange, SentRows(exchange.world))
        slots = RowSlots(whole_batches=memory is not None)
        return Planner(shape, parts, slots, Budget(memory, self.buffer), stages)

"""Seconds of a batch, plans from the numbers of a graph, and the formulas for several hosts."""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnndrive.plan.drawn as drawn_batches
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import Sample, Seeds, TopologyChoice
from gnndrive.plan import costs
from gnndrive.plan.costs import (
    ADMIT_ROW_S,
    BESIDE,
    HAND_OVER_S,
    LAND_BYTE_S,
    NOT_OVERLAPPED,
    PLAN_ROW_S,
    RANK_ROW_S,
    Disk,
    Loading,
    Loads,
    combined,
    copy_seconds,
    counted,
    features_seconds,
    part_seconds,
    processors,
)
from gnndrive.plan.drawn import DrawnBatches, draw_batches
from gnndrive.plan.plan import AttributeFile, Plan, StageCounts, TablePlan
from gnndrive.plan.scale import EXCHANGE, FULL, SHARDS, Cluster, Layout, layouts
from gnndrive.plan.sketch import Sketch
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.strategies.packs.plan import PackSlots
from tests.plan.test_plan import item


def test_the_seconds_of_a_batch_and_what_they_are_due_to():
    for parts, least, beside, due_to in (
        ({"disk": 4.0, "gather": 1.0, "sampling": 1.0}, 4, 2, "disk"),
        # A sweep is read after it is admitted, a window filtered after it is read, and a batch
        # gathered after the one before is handed over.
        ({"disk": 2.0, "gather": 3.0, "admission": 2.5}, 4.5, 3, "admission"),
        ({"disk": 2.0, "gather": 3.0, "filter": 2.5}, 4.5, 3, "filter"),
        ({"disk": 1.0, "gather": 4.0, "hand-over": 1.5}, 5.5, 1, "gather"),
        ({"disk": 2.0, "gather": 1.0, "attributes": 3.0}, 4, 2, "attributes"),
        ({"disk": 1.0, "gather": 1.0, "sampling": 5.0}, 5, 2, "sampling"),
        # Records are written by a disk that is busy, idle, or has time for nothing else.
        ({"disk": 4.0, "gather": 1.0, "records": 2.0}, 6, 1, "disk"),
        ({"disk": 1.0, "gather": 4.0, "records": 0.5}, 4, 1, "gather"),
        ({"disk": 1.0, "gather": 4.0, "records": 8.0}, 9, 4, "records"),
        ({"disk": 2.0, "admission": 3.0, "records": 1.0}, 5, 0, "admission"),
        ({"disk": 1.0, "gather": 4.0, "copies": 5.0}, 9, 1, "copies"),
        ({"disk": 1.0, "gather": 4.0, "processors": 9.0}, 9, 0, "processors"),
        ({"disk": 1.0, "gather": 4.0, "processors": 4.2}, 4, 1, "gather"),
        ({"disk": 2.0}, 2, 0, "disk"),
    ):
        seconds = pytest.approx(least + NOT_OVERLAPPED * beside)
        assert combined(parts) == (seconds, due_to)
        cost = StrategyCost("gnndrive", parts)
        assert (cost.batch_s, cost.bound_by) == (seconds, due_to)
    assert StrategyCost("gnndrive", refused="no").bound_by == ""


def test_parts_of_a_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tables, one has a slot for each row; a sweep has two batches. One of two attributes is
    mapped."""
    monkeypatch.setattr(costs, "processors", lambda ranks: 2)
    sizes = tuple(Bounds({"n": 150}, {None: edges}, {"n": 150}) for edges in (160, 240))
    drawn = DrawnBatches(sizes, {"a": (100,), "b": (50,)}, 0.0, sample_s=0.01)
    disk = Disk(request_s=1e-3, byte_s=0.0, gap_bytes=0)
    attributes = (
        AttributeFile("year", 8 * 10**9, 10**9, 8, of_edges=False, type="n"),
        AttributeFile("weight", 8 * 10**9, 10**9, 8, of_edges=True, type=None),
    )
    loading = Loading(drawn, [], disk, StageCounts(4, 6, 4), None, True, 2.0, attributes)
    tables = TablePlan("a", 10**9, 500, 64, 100), TablePlan("b", 50, 50, 8, 50)
    topology = TopologyChoice("resident", "resident", 0)
    plan = replace(Plan((), tables, None, topology), fetched=("weight",))
    loads = {"a": Loads(0.4, 60.0, 2.0), "b": Loads(1.0, 0.0, 2.0)}
    found = part_seconds(plan, loading, loads, 0.25)
    admit_s = 2 * (150 * ADMIT_ROW_S + 100 * RANK_ROW_S + 60 * PLAN_ROW_S)
    gather_s = 2 * BESIDE * copy_seconds(150, 100 * 64 + 50 * 8)
    sample_s = BESIDE * 0.01
    land_s = 2 * LAND_BYTE_S * 60 * 64
    computing = sample_s + admit_s + gather_s + land_s + 2 * HAND_OVER_S
    assert found.pop("disk") == pytest.approx(121 * 1e-3 / 2, rel=1e-3)
    read_s = disk.seconds(200, 10**9, 8) + 2 * (200 * PLAN_ROW_S + copy_seconds(200, 1_600))
    assert found.pop("attributes") == pytest.approx(read_s)
    assert found == pytest.approx({
        "sampling": sample_s / 2, "admission": admit_s, "gather": gather_s,
        "hand-over": 2 * HAND_OVER_S, "processors": computing / 2, "records": 0.25,
    })  # fmt: skip


def test_parts_of_a_replayed_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 100 rows of 64 bytes, of which 40 are read, and its record."""
    monkeypatch.setattr(costs, "processors", lambda: 2)
    asked = list[tuple[float, ...]]()
    slots: Any = SimpleNamespace(
        recording=SimpleNamespace(sizes=SimpleNamespace(record_bytes=300)), _rows=lambda: 100.0,
        _bytes=lambda hot: (2_560.0, 640.0, 1_280.0, 640.0) if hot else (6_400.0,),
        _read_seconds=lambda *given: asked.append(given) or 0.5,
    )  # fmt: skip
    plan: Any = SimpleNamespace(tables=[SimpleNamespace(name="a", residents=1, kept=2)])
    seconds, hits = PackSlots.batch_seconds(slots, plan, 2.0)
    assert asked == [(2_560 + 300 - 640, 640, plan.tables)]
    copied = copy_seconds(100, 6_400)
    computing = copied + HAND_OVER_S + LAND_BYTE_S * (2_560 + 300)
    assert seconds == pytest.approx(
        {"disk": 0.5, "gather": 2 * copied, "hand-over": 2 * HAND_OVER_S, "processors": computing}
    )
    assert hits == pytest.approx(0.6)


def test_several_ranks_use_the_processors_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert (processors(), processors(1), processors(2)) == (2, 2, 8)


def test_sampling_is_timed_where_the_adjacency_was_read_before(monkeypatch):
    """Time passes while a batch is sampled: a second the first time, then a tenth."""
    now, sampled = [0.0], list[int]()

    def sample(seeds: Seeds, *_: Any) -> Sample:
        now[0] += 0.1 if seeds.index in sampled else 1.0
        sampled.append(seeds.index)
        node, empty = np.arange(3), np.zeros(2, np.int32)
        return Sample(node, empty, np.array([0, 2], np.int32), empty, (1, 2), (2,))

    def drawn_from(seeds: list[Seeds]) -> Any:
        sampler: Any = SimpleNamespace(sample=sample)
        bounds = Bounds({None: 9}, {None: 9}, {None: 9})
        rows_of: Any = lambda sample: {"nodes/x": sample.node}  # noqa: E731
        return draw_batches(seeds, sampler, [], rows_of, {"nodes/x": 9}, bounds)

    monkeypatch.setattr(drawn_batches, "thread_time", lambda: now[0])
    found = drawn_from([Seeds(index, np.arange(1), np.arange(1)) for index in range(3)])
    assert found.sample_s == pytest.approx(0.1)
    assert len(found.sizes) == 3
    assert sampled == [0, 1, 2, 0]
    assert drawn_from([]) is None


GIGABIT = 1e9 / 8


def sketch(**more: Any) -> Sketch:
    given = {
        "nodes": 111_059_956, "edges": 1_615_685_872, "row_bytes": 512, "fanout": (10, 10, 10),
        "batch_size": 1_000, "batch_nodes": 800_000, "seeds": 1_200_000, "memory": 32 * 10**9,
        "buffer": None, "samplers": None, "topologies": ("resident", "direct", "mmap"),
        "topology_asked": False, "policy": "belady",
    }  # fmt: skip
    return Sketch(**{**given, **more})


def compared(given: Sketch, cluster: Cluster) -> list[Layout]:
    planner = given.planner()
    loading = given.loading(planner)
    return layouts(planner, given.exchanging, loading, cluster, given.store_bytes)


def test_memory_of_large_graphs():
    """GB of index pointers, packed indices, mapping table and look-ahead."""
    for nodes, edges, figures in (
        (111_059_956, 1_615_685_872, (0.444, 5.453, 0.444, 0.111)),
        (10**10, 10**11, (80.0, 425.0, 40.0, 10.0)),
    ):
        given = sketch(nodes=nodes, edges=edges, memory=10**12, ranks=2, shared=True)
        plan = given.planner().plan()
        names = ("index pointers", "topology", "mapping table", "look-ahead")
        found = [item(plan, name).host_bytes / 1e9 for name in names]
        assert found == pytest.approx(figures, rel=2e-3)
        assert plan.host_bytes <= 10**12
        pointers, indices = 8 * (nodes + 1), (4 if nodes < 2**31 else 8) * edges
        assert given.store_bytes == nodes * 512 + pointers + indices


def test_a_sketch_has_the_batches_and_the_budget_that_are_given() -> None:
    most = sketch(batch_nodes=None).bounds()
    assert most.nodes[None] == 1_000 * (1 + 10 + 100 + 1_000)
    assert most.edges[None] == 1_000 * (10 + 100 + 1_000)
    assert most.expanded == 1_000 * (1 + 10 + 100)
    given = sketch(batch_nodes=50_000).bounds()
    assert (given.nodes[None], given.expanded) == (50_000, 50_000)
    assert given.edges == most.edges
    few = sketch(nodes=3_000, edges=9_000, batch_nodes=None).bounds()
    assert (few.nodes[None], few.edges[None]) == (3_000, 9_000)
    with pytest.raises(ConfigError, match="a whole number for each hop"):
        sketch(fanout=(-2,)).bounds()
    one, two, *_ = sketch(nodes=1_000, batch_nodes=100).drawn().together["nodes/x"]
    assert (one, two) == (100, 190), "rows lie at random"
    plan = sketch(nodes=1_000, edges=9_000, memory=None).planner().plan()
    assert plan.holds_everything
    named = sketch(memory=None, topologies=("mmap",), topology_asked=True, nodes=1_000).planner()
    assert named.topology.name == "mmap"
    assert sketch(nodes=1_000, memory=None, buffer=51_200).planner().plan().slots == 100


def test_shards_read_as_much_and_send_what_is_not_their_own() -> None:
    hosts, ranks = 4, 2
    given = sketch(ranks=ranks, shared=True)
    full, shards, _ = compared(given, Cluster(hosts, GIGABIT))
    planner = given.planner()
    loaded = counted(planner.plan(), given.loading(planner))["nodes/x"].loads
    received = ranks * loaded * 516 * (hosts - 1) / hosts
    assert shards.name == SHARDS
    assert shards.received_bytes == pytest.approx(received)
    assert shards.seconds["net"] == pytest.approx(received / 125e6)
    assert shards.seconds["disk"] == full.seconds["disk"]
    assert shards.memory_bytes == full.memory_bytes
    features = given.nodes * 512
    assert shards.disk_bytes == given.store_bytes - features + -(-features // hosts)


def test_exchange_sends_all_rows_of_other_hosts_or_says_why_not() -> None:
    hosts, ranks = 4, 2
    resident: Any = {"topologies": ("resident",), "topology_asked": True}
    given = sketch(ranks=ranks, shared=True, memory=12 * 10**9, **resident)
    full, shards, exchange = compared(given, Cluster(hosts, 10 * GIGABIT))
    assert exchange.name == EXCHANGE
    assert exchange.received_bytes == ranks * 800_000 * 516 * 3 / 4
    assert exchange.seconds["net"] == pytest.approx(0.49536)
    assert exchange.disk_bytes == shards.disk_bytes
    assert exchange.memory_bytes <= 12 * 10**9
    assert full.known["gather"] * 1.75 == pytest.approx(exchange.known["gather"])
    # Each host reads a quarter for all eight ranks: less only by what four buffers have more.
    assert shards.known["disk"] / 2 < exchange.known["disk"] < shards.known["disk"]
    small = sketch(nodes=1_000_000, edges=9_000_000, memory=10**6)
    with pytest.raises(ConfigError) as caught:
        small.planner()
    named = parse_size(str(caught.value).split('memory="')[1].split('"')[0], "memory")
    full, _, exchange = compared(replace(small, memory=named), Cluster(2, GIGABIT))
    assert not full.refused
    assert exchange.refused.endswith('"live batches": give at least memory="2.246GB"')
    more = replace(small, memory=2 * named)
    assert not compared(more, Cluster(2, GIGABIT))[2].refused


def test_a_cache_of_other_hosts_rows_is_proposed_where_the_net_is_slower_than_the_disk() -> None:
    given = sketch(nodes=2_000_000, edges=2 * 10**7, batch_nodes=60_000, memory=2 * 10**9, ranks=2)
    assert len(compared(given, Cluster(2, 100 * GIGABIT))) == 3
    _, _, exchange, cached = compared(given, Cluster(2, GIGABIT))
    assert cached.memory_bytes <= 2 * 10**9
    assert cached.expected_s < exchange.expected_s / 1.1
    slots = cached.cache_bytes // (512 + 38)  # of the other three ranks' rows, used at random
    share = cached.received_bytes / exchange.received_bytes
    assert share == pytest.approx(1 - slots / 1.5e6, abs=0.01)
    *_, cached = compared(replace(given, nodes=200_000), Cluster(2, GIGABIT))
    assert cached.cache_bytes == 82_000_000 <= 150_000 * (512 + 38), "there are no more rows"


def test_a_step_takes_as_long_as_its_longest_part() -> None:
    parts = {"sampling": None, "disk": 0.3, "net": 0.0, "gather": 0.1, "compute": 0.5}
    layout = Layout(FULL, 1, 1, 0.0, parts)
    assert (layout.bound_by, layout.step_s) == ("compute", 0.5)
    assert layout.serial_s == pytest.approx(0.9)
    assert replace(layout, seconds={**parts, "processors": 0.4}).serial_s == layout.serial_s
    read = replace(layout, seconds={**parts, "admission": 0.25})  # before the reads
    assert (read.bound_by, read.step_s) == ("disk", 0.5)
    unknown = replace(layout, seconds={**parts, "compute": None})
    assert (unknown.bound_by, unknown.step_s) == ("disk", 0.3)
    (full,) = compared(sketch(), Cluster(compute_s=7.0, sampled=False))
    assert (full.name, full.received_bytes, full.seconds["net"]) == (FULL, 0, 0)
    assert (full.bound_by, full.step_s, full.seconds["sampling"]) == ("compute", 7.0, None)
    assert full.seconds["gather"] == pytest.approx(BESIDE * copy_seconds(800_000, 800_000 * 512))
    assert full.disk_bytes == sketch().store_bytes


def test_hand_computed_disk_seconds() -> None:
    """Two hosts read a half of the missing rows each, in one pass for two batches."""
    drawn = DrawnBatches((), {"nodes/x": (500, 500)}, 0.0, 0.0)
    disk = Disk(request_s=1e-3, byte_s=1e-6, gap_bytes=0)
    loading = Loading(drawn, [], disk, StageCounts(1, 2, 2), 1, looks_ahead=False)
    table = TablePlan("nodes/x", 10**9, 500, 100, 500)
    plan = Plan((), (table,), None, TopologyChoice("resident", "resident", 0))
    none = counted(plan, loading)
    assert none["nodes/x"].loads == 0.0
    assert features_seconds(plan, loading, none) == 0.0
    apart = replace(loading, drawn=replace(drawn, together={"nodes/x": (500, 1_000, 1_500)}))
    loads = counted(plan, apart)
    assert loads["nodes/x"].loads == pytest.approx(500)
    one = 501 * 1e-3 + (500 * 100 + 501 * 512) * 1e-6
    half = 251 * 1e-3 + (250 * 100 + 251 * 512) * 1e-6
    assert features_seconds(plan, apart, loads) == pytest.approx(one, rel=1e-3)
    assert features_seconds(plan, apart, loads, hosts=2) == pytest.approx(half, rel=1e-3)
    striped = replace(apart, disk=replace(disk, disks=4))
    assert features_seconds(plan, striped, loads) == pytest.approx(one / 4, rel=1e-3)

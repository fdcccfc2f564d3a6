"""Which topology, samplers and queues a budget gets, and the least budget that works."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gnndrive.buffer.items import MAPPING_BYTES, slot_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import TableShape
from gnndrive.common.memory import least_text, parse_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan import choice
from gnndrive.plan.choice import GROUP_MAX, in_groups, make_planner, stage_options
from gnndrive.plan.costs import Disk, Loading, batches_held, combined, distinct_rows, step_seconds
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import Plan, Planner, StageCounts, TablePlan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.topology_choice import Topologies
from gnndrive.sampling.topologies import _neighbours
from gnndrive.sampling.topologies.base import RING_BYTES, GraphSize, TopologyQuestion
from gnndrive.sampling.topologies.direct import Direct
from tests.plan.conftest import least_memory, planner_for, request_of

ROWS, ROW_BYTES = 10_000_000, 512
TOGETHER = (809_986, 1_493_306, 2_091_791, 2_622_024, 3_098_267, 3_526_039, 3_915_512, 4_270_283)
SIZES = [GraphSize(10_000_000, 160_000_000, 4)]
DRAWN = DrawnBatches((), {"nodes/x": TOGETHER}, 95_500.0, 0.12)
DISK = Disk()


def seconds(*given: Any, **more: Any) -> float:
    """What a step costs; see `parts`."""
    return combined(parts(*given, **more))[0]


def parts(
    slots: int, topology: str = "resident", samplers: int = 2, queues: tuple[int, int] = (6, 4),
    sweep: int | None = None, ranks: int = 1, shared: bool = False,
) -> dict[str, float]:  # fmt: skip
    """What a step costs in which each rank gets a batch of 806,000 of 10 million rows."""
    choice = TopologyChoice(topology, topology, 0, has_ring=topology == "direct")
    table = TablePlan("nodes/x", ROWS, slots, ROW_BYTES, 830_000)
    plan = Plan((), (table,), None, choice, ranks=ranks, shared=shared)
    loading = Loading(DRAWN, SIZES, DISK, StageCounts(samplers, *queues), sweep, True)
    return step_seconds(plan, loading)


def test_distinct_rows_of_batches_and_the_batches_that_slots_hold() -> None:
    counts = [distinct_rows(TOGETHER, number / 2, ROWS) for number in range(400)]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[2] == TOGETHER[0]
    assert counts[16] == TOGETHER[-1]
    assert TOGETHER[-1] + 300_000 < counts[18] < TOGETHER[-1] + 354_771
    assert counts[-1] <= ROWS
    assert distinct_rows((5,), 1e6, 5) == 5
    assert distinct_rows((0, 0), 3, 10) == 0
    for slots in (1, 400_000, TOGETHER[0], 2_000_000, 4_200_000, 5_000_000):
        held = batches_held(TOGETHER, slots, ROWS)
        assert distinct_rows(TOGETHER, held, ROWS) == pytest.approx(slots, rel=1e-3)
    assert batches_held(TOGETHER, ROWS, ROWS) == float("inf")


def test_eight_batches_tell_of_a_hundred() -> None:
    """Batches of rows of which some are needed more often than others."""
    rows, size = 100_000, 2_000
    for skew in (0.0, 1.0, 3.0):
        draw = np.random.default_rng(5)
        weights = (np.arange(rows) + rows / 20) ** -skew
        ends = np.cumsum(weights / weights.sum())
        seen, counts = np.zeros(rows, np.bool_), []
        for _ in range(100):
            seen[np.searchsorted(ends, draw.random(size)).clip(0, rows - 1)] = True
            counts.append(int(np.count_nonzero(seen)))
        for batches in (12, 20, 40, 100):
            told = distinct_rows(counts[:8], batches, rows)
            assert told == pytest.approx(counts[batches - 1], rel=0.1)


def test_a_pass_costs_a_request_a_row_at_most_and_the_whole_file_at_most() -> None:
    few = DISK.seconds(10, 10**9, 512)
    assert few == pytest.approx(11 * DISK.request_s, rel=0.3)
    all_of_it = DISK.seconds(ROWS, ROWS, 512)
    assert all_of_it == pytest.approx(ROWS * 512 * DISK.byte_s, rel=0.01)
    assert DISK.seconds(0, ROWS, 512) == 0


def test_the_model_ranks_settings_as_measured() -> None:
    """Seconds a batch on the graph of bench/memory.py, one after the other on a quiet machine."""
    measured = [
        (0.58, seconds(2_636_718, "direct", 2)),
        (0.67, seconds(2_343_750, "direct", 4)),
        (0.76, seconds(2_343_750, "direct", 2)),
        (0.94, seconds(2_343_750, "direct", 4, (4, 2))),
        (2.60, seconds(1_171_875, "resident", 1)),
    ]
    assert [each[1] for each in measured] == sorted(each[1] for each in measured)
    assert seconds(1_601_562) < seconds(1_953_125, "direct", 4)


def test_more_slots_longer_queues_and_larger_sweeps_cost_no_more() -> None:
    for slots in range(900_000, 9_000_000, 700_000):
        assert seconds(slots) >= seconds(slots + 700_000)
        assert seconds(slots) <= seconds(slots, queues=(4, 4)) <= seconds(slots, queues=(2, 2))
        assert seconds(slots) <= seconds(slots, sweep=1) * 1.001
    assert parts(ROWS)["disk"] == 0
    choice = TopologyChoice("direct", "direct", 0, 10**12, has_ring=True)
    plan = Plan((), (TablePlan("nodes/x", ROWS, 2_000_000, ROW_BYTES, 830_000),), None, choice)
    loading = Loading(DRAWN, SIZES, DISK, StageCounts(2, 6, 4), None, True)
    cached = combined(step_seconds(plan, loading))[0]
    assert cached == seconds(2_000_000) < seconds(2_000_000, "direct")


def test_ranks_share_the_disk_and_read_less_with_one_buffer() -> None:
    for ranks in (2, 3):
        both, one = parts(1_953_125, ranks=ranks), parts(1_953_125)
        assert both["disk"] == pytest.approx(ranks * one["disk"])
        assert seconds(ROWS, ranks=ranks) >= seconds(ROWS)
    for ranks in (2, 4):
        for slots in range(3_600_000, ROWS, 800_000):
            shared, one = (parts(slots, ranks=each, shared=True)["disk"] for each in (ranks, 1))
            assert shared < parts(slots // ranks, ranks=ranks)["disk"]
            assert ranks * one * 0.45 < shared <= ranks * one * 1.001


def test_stages_that_are_given_or_fit(request_for: Any, make) -> None:
    request = replace(request_for(10**7), samplers=3, training_queue=9)
    options = stage_options(request)
    assert {each.samplers for each in options} == {3}
    assert {each.training_queue for each in options} == {9}
    assert {each.extracting_queue for each in options} == {8, 6, 5, 4, 3, 2, 1}
    assert options[0] == StageCounts(3, 6, 9)
    fixed = replace(request, extracting_queue=2)
    assert stage_options(fixed) == [StageCounts(3, 2, 9)]
    assert make_planner(fixed).stages == StageCounts(3, 2, 9)
    least = least_memory(request_for(1))
    assert make_planner(request_for(least)).stages == StageCounts(1, 1, 1)
    options = [make_planner(request_for(least + more)).stages for more in (10**5, 5 * 10**5, 10**6)]
    assert [each.samplers for each in options] == sorted(each.samplers for each in options)
    assert options[-1].samplers > 1
    planner = make_planner(request_for(10**8))
    assert planner.topology.name == "resident"
    assert planner.stages == make_planner(request_of(make())).stages == StageCounts(4, 6, 4)
    assert make_planner(request_of(make(num_workers=2))).stages.samplers == 2
    with pytest.raises(ConfigError, match="samplers='many' must be a whole number"):
        make(samplers="many")


def test_a_text_for_the_least_is_never_less() -> None:
    for count in (1, 999, 1_001, 12_345, 123_456_789, 10**13 + 7):
        assert count <= parse_size(least_text(count), "memory") <= 1.001 * count + 1
    assert least_text(123_456_789) == "123.5MB"


SIZE = GraphSize(nodes=10_000_000, edges=160_000_000, index_bytes=4)
INDICES = SIZE.packed_bytes  # 24 bits each
BATCH_ROWS = 1_000_000
NUMBERS: dict[str, Any] = {
    "tables": (TableShape("nodes/x", SIZE.nodes, 512, BATCH_ROWS),), "nodes": BATCH_ROWS,
    "edges": 1_110_000, "attribute_bytes": 8 * BATCH_ROWS, "seed_bytes": 80_000_000,
    "staging_bytes": 128 * 65536, "index_pointer_bytes": SIZE.index_pointer_bytes,
}  # fmt: skip


def numbers(memory: int | None = None, buffer: int | None = None, **more: Any) -> Planner:
    planner = planner_for(**NUMBERS | more)
    return replace(planner, budget=replace(planner.budget, memory=memory, buffer=buffer))


PLANNER = numbers()
FEATURES = int(1.5 * BATCH_ROWS) * slot_bytes(PLANNER.shape)[0]
LEAST = PLANNER.rest_bytes() + FEATURES
ONE_BATCH = PLANNER.rest_bytes() + BATCH_ROWS * slot_bytes(PLANNER.shape)[0]
QUESTION = TopologyQuestion([SIZE], PLANNER.shape.samplers, lambda batches: 0, 8 * 10**9, True)
FETCH = Direct.fetch_bytes(QUESTION) + RING_BYTES
PREFERRED = ("resident", "direct", "mmap")


@pytest.fixture(autouse=True)
def _eight_gigabytes_are_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnndrive.plan.plan.left_memory", lambda ranks: 8 * 10**9)


def choose(
    name: str, cache: str | int | None, memory: int | None, buffer: int | None = None,
    size: GraphSize = SIZE, needs_indices: str | None = None,
) -> TopologyChoice:  # fmt: skip
    asked = name != "auto"
    plugins = (name,) if asked else PREFERRED
    return Topologies(plugins, [size], asked, cache, needs_indices).choose(numbers(memory, buffer))


def chosen(*given: Any, **more: Any) -> str:
    return choose("auto", None, *given, **more).name


def test_auto_is_resident_where_the_indices_fit_beside_one_and_a_half_batches() -> None:
    """Without a budget it is resident or mmap."""
    assert chosen(LEAST + INDICES) == "resident"
    assert chosen(LEAST + INDICES - 1) == "direct"
    asked = 400_000 * 512
    least = PLANNER.rest_bytes() + 400_000 * slot_bytes(PLANNER.shape)[0]
    assert chosen(least + INDICES, asked) == "resident"
    assert chosen(least + INDICES - 1, asked) == "direct"
    whole_table = SIZE.nodes * slot_bytes(PLANNER.shape)[0]
    assert chosen(PLANNER.rest_bytes() + whole_table + INDICES, 10**12) == "resident"
    assert chosen(None) == chosen(None, buffer=10**9) == "resident"
    for edges, name in ((666_000_000, "resident"), (667_000_000, "mmap")):
        assert chosen(None, size=replace(SIZE, edges=edges)) == name
    for name in PREFERRED:
        for memory in (None, LEAST, 10**10):
            assert choose(name, None, memory).name == name, "the user names it"


def test_ranks_that_share_have_one_copy_of_the_indices_and_a_neighbour_cache_each() -> None:
    for ranks in (2, 4):
        least = numbers(ranks=ranks, shared=True).rest_bytes() + FEATURES + INDICES
        assert least < ranks * (LEAST + INDICES)
        for shared, memory in ((True, least), (False, ranks * (LEAST + INDICES))):
            for less, expected in ((0, "resident"), (1, "direct")):
                given = numbers(memory - less, ranks=ranks, shared=shared)
                found = Topologies(PREFERRED, [SIZE]).choose(given)
                assert found.name == expected

    def direct(ranks: int, shared: bool, memory: int) -> TopologyChoice:
        given = numbers(memory, ranks=ranks, shared=shared)
        return Topologies(("direct",), [SIZE], True).choose(given)

    one = direct(1, False, ONE_BATCH + FETCH + 10**9)
    assert direct(2, False, 2 * (ONE_BATCH + FETCH + 10**9)).nbytes == one.nbytes
    shared = numbers(ranks=2, shared=True)
    least = shared.rest_bytes() + BATCH_ROWS * slot_bytes(shared.shape)[0]
    of_two = direct(2, True, least + 2 * FETCH + 100_000_000)
    assert of_two.cache_bytes == 50_000_000
    shared = numbers(least + 2 * FETCH + 100_000_000, ranks=2, shared=True)
    assert replace(shared, topology=of_two).plan().slots == BATCH_ROWS


def test_the_neighbour_cache_gets_a_tenth_if_there_is_room() -> None:
    def cache(memory: int | None, asked: str | int | None = None) -> int:
        return choose("direct", asked, memory).cache_bytes

    assert cache(None) == 200_000_000
    assert cache(ONE_BATCH + FETCH + 10**9) == (ONE_BATCH + FETCH + 10**9) // 10
    assert cache(ONE_BATCH + FETCH + 50_000_000) == 50_000_000
    assert cache(ONE_BATCH + FETCH + _neighbours.least_bytes(SIZE)) == cache(ONE_BATCH) == 0
    assert cache(10**12) == _neighbours.most_bytes(SIZE)
    assert cache(LEAST, "100MB") == cache(None, 100_000_000) == 100_000_000
    assert cache(LEAST, 0) == cache(LEAST, "0") == 0
    room = 5 * 10**8
    asked = replace(QUESTION, room=lambda batches: room, asked=True, given=2 * 10**9)
    assert Direct.plan(asked).cache_bytes == 2 * 10**8
    assert Direct.plan(replace(asked, apart=True)).nbytes == room
    for edges in (1, 10**6, 10**9):
        for nodes in (1, 10**6, 10**9):
            size = GraphSize(nodes, edges, 4)
            choice = choose("direct", "100GB", None, size=size)
            need = _neighbours.build_bytes(size)
            assert choice.nbytes + MAPPING_BYTES * nodes >= need
            assert choice.nbytes >= choice.cache_bytes + FETCH


def test_impossible_choices_are_refused() -> None:
    for name, cache, said in (
        ("resident", "1GB", r"neighbour_cache='1GB' is for .* such as topology='direct'"),
        ("mmap", "1GB", r"neighbour_cache='1GB' is for .* such as topology='direct'"),
        ("mapped", None, "direct, mmap, resident"),
        ("direct", "1MB", r"address table alone takes 1\.88 MB; give more"),
        ("direct", "much", "neighbour_cache='much' is no size"),
    ):
        with pytest.raises(ConfigError, match=said):
            choose(name, cache, None)
    assert choose("auto", "1GB", None).name == "resident"
    why = "it looks at whole lists"
    assert chosen(LEAST + INDICES, needs_indices=why) == "resident"
    assert chosen(LEAST, needs_indices=why) == "mmap"
    with pytest.raises(ConfigError, match=f"because {why}: give topology='mmap' or 'resident'"):
        choose("direct", None, LEAST, needs_indices=why)
    choice = Topologies(("direct", "resident"), [SIZE]).choose(PLANNER)
    assert choice.name == "resident"
    choice = Topologies(("direct",), [SIZE]).choose(PLANNER)
    assert choice.name == "direct"
    with pytest.raises(ConfigError, match="none of the topologies direct can be used: it reads"):
        Topologies(("direct",), [SIZE], needs_indices="it reads whole lists").choose(PLANNER)


def test_where_batches_are_in_groups(request_for: Any) -> None:
    """Not on a GPU, not if ranks share a buffer, and not if batches are known ahead; batches of one
    window, which are read alone, are in none either."""
    request = request_for(1 << 30)
    planner, ahead = make_planner(request), Mock()

    def most(request: PlanRequest = request, **changed: Any) -> int:
        shape = replace(planner.shape, **changed)
        return in_groups(replace(planner, shape=shape), request).shape.group

    assert most() == GROUP_MAX
    assert most(delivers=True) == most(shared=True) == most(replace(request, ahead=ahead)) == 1
    assert [most(replace(request, sweep=sweep)) for sweep in (1, 5)] == [1, 5]


def test_groups_beside_buffer_take_no_more_than_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or than 32 MB, if that is more."""
    request = request_of(make((4, 3), buffer="100KB", batch_size=1))
    sizes = []
    for nbytes in (32 << 20, 0):
        monkeypatch.setattr(choice, "GROUP_BYTES", nbytes)
        sizes.append(in_groups(make_planner(request), request).shape.group)
    assert sizes[0] == GROUP_MAX > sizes[1] >= 1

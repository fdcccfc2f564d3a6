"""Which topology is chosen with how much memory, and what the plan says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import MAPPING_BYTES, rest_bytes, slot_bytes
from gnndrive.plan.plan import make_plan
from gnndrive.plan.requirements import Requirements, TableRequirements
from gnndrive.plan.topology_choice import choose_topology
from gnndrive.sampling.topologies import _neighbours
from gnndrive.sampling.topologies.base import RING_BYTES, GraphSize, TopologyQuestion
from gnndrive.sampling.topologies.direct import Direct

SIZE = GraphSize(nodes=10_000_000, edges=160_000_000, index_bytes=4)
INDICES = SIZE.packed_bytes  # 24 bits each
ROWS = 1_000_000
REQUIREMENTS = Requirements(
    tables=(TableRequirements("nodes/x", SIZE.nodes, 512, ROWS),), batch_nodes_max=ROWS,
    batch_edges_max=1_110_000, attribute_bytes=8 * ROWS, position_bytes=8, batches_queued=10,
    batches_extracted=4, samplers=4, seed_bytes=80_000_000, staging_bytes=128 * 65536,
    index_pointer_bytes=SIZE.index_pointer_bytes,
)  # fmt: skip
FEATURES = int(1.5 * ROWS) * slot_bytes(REQUIREMENTS)[0]
LEAST = rest_bytes(REQUIREMENTS) + FEATURES
ONE_BATCH = rest_bytes(REQUIREMENTS) + ROWS * slot_bytes(REQUIREMENTS)[0]
QUESTION = TopologyQuestion([SIZE], REQUIREMENTS.samplers, lambda batches: 0, 8 * 10**9, True)
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
    return choose_topology(
        (name,) if asked else PREFERRED, cache, [size], REQUIREMENTS, memory, buffer, asked,
        needs_indices,
    )  # fmt: skip


def chosen(*given: Any, **more: Any) -> str:
    return choose("auto", None, *given, **more).name


def test_auto_is_resident_where_the_indices_fit_beside_one_and_a_half_batches() -> None:
    assert chosen(LEAST + INDICES) == "resident"
    assert chosen(LEAST + INDICES - 1) == "direct"
    asked = 400_000 * 512
    least = rest_bytes(REQUIREMENTS) + 400_000 * slot_bytes(REQUIREMENTS)[0]
    assert chosen(least + INDICES, asked) == "resident"
    assert chosen(least + INDICES - 1, asked) == "direct"
    whole_table = SIZE.nodes * slot_bytes(REQUIREMENTS)[0]
    assert chosen(rest_bytes(REQUIREMENTS) + whole_table + INDICES, 10**12) == "resident"


def test_ranks_that_share_need_memory_for_one_copy_of_the_indices() -> None:
    for ranks in (2, 4):
        own = replace(REQUIREMENTS, ranks=ranks)
        shared = replace(own, shared=True)
        least = rest_bytes(shared) + FEATURES + INDICES
        assert least < ranks * (LEAST + INDICES)
        for given, memory in ((shared, least), (own, ranks * (LEAST + INDICES))):
            for less, expected in ((0, "resident"), (1, "direct")):
                found = choose_topology(PREFERRED, None, [SIZE], given, memory - less, None)
                assert found.name == expected


def test_each_rank_has_a_neighbour_cache_of_its_own() -> None:
    def direct(ranks: int, shared: bool, memory: int) -> TopologyChoice:
        requirements = replace(REQUIREMENTS, ranks=ranks, shared=shared)
        return choose_topology(("direct",), None, [SIZE], requirements, memory, None, True)

    one = direct(1, False, ONE_BATCH + FETCH + 10**9)
    assert direct(2, False, 2 * (ONE_BATCH + FETCH + 10**9)).nbytes == one.nbytes
    shared = replace(REQUIREMENTS, ranks=2, shared=True)
    least = rest_bytes(shared) + ROWS * slot_bytes(shared)[0]
    of_two = direct(2, True, least + 2 * FETCH + 100_000_000)
    assert of_two.cache_bytes == 50_000_000
    plan = make_plan(shared, least + 2 * FETCH + 100_000_000, None, of_two)
    assert plan.slots == ROWS


def test_auto_without_a_budget_is_resident_or_mmap() -> None:
    assert chosen(None) == chosen(None, buffer=10**9) == "resident"
    for edges, name in ((666_000_000, "resident"), (667_000_000, "mmap")):
        assert chosen(None, size=replace(SIZE, edges=edges)) == name
    for name in PREFERRED:
        for memory in (None, LEAST, 10**10):
            assert choose(name, None, memory).name == name, "the user names it"


def test_the_plan_says_which_and_why() -> None:
    for memory, name in ((LEAST + INDICES, "resident"), (LEAST + 10**8, "direct")):
        choice = choose("auto", None, memory)
        plan = make_plan(REQUIREMENTS, memory, None, choice)
        (item,) = [item for item in plan.lines if item.what == "topology"]
        assert item.why == choice.why
        assert choice.why.startswith(f"{name}, because ")
        assert item.nbytes == choice.nbytes
        assert plan.total_bytes <= memory
        assert plan.slots >= (1.5 if name == "resident" else 1) * ROWS
        assert plan.topology is choice


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


def test_building_a_cache_needs_no_more_than_the_plan_counts() -> None:
    """Out-degrees are freed before the mapping table is allocated."""
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


def test_a_loader_that_needs_the_indices_gets_them_in_memory_or_mapped() -> None:
    why = "it looks at whole lists"
    assert chosen(LEAST + INDICES, needs_indices=why) == "resident"
    assert chosen(LEAST, needs_indices=why) == "mmap"
    with pytest.raises(ConfigError, match=f"because {why}: give topology='mmap' or 'resident'"):
        choose("direct", None, LEAST, needs_indices=why)


def test_the_last_topology_of_a_strategy_is_taken_if_none_suits() -> None:
    choice = choose_topology(("direct", "resident"), None, [SIZE], REQUIREMENTS, None, None)
    assert choice.name == "resident"
    choice = choose_topology(("direct",), None, [SIZE], REQUIREMENTS, None, None)
    assert choice.name == "direct"
    with pytest.raises(ConfigError, match="none of the topologies direct can be used: it reads"):
        choose_topology(
            ("direct",), None, [SIZE], REQUIREMENTS, None, None, False, "it reads whole lists"
        )

"""All topologies give the same batches, and raise errors at their batch's turn."""

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, ConfigError, ReadError, Store
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_same, check, simulate
from tests.loader.conftest import NODES, Make

WAYS = [
    {"topology": "resident"},
    {"topology": "direct"},
    {"topology": "direct", "neighbour_cache": "4KB"},
    {"topology": "direct", "neighbour_cache": 0, "samplers": 1},
    {"memory": "100MB"},
    {},
]


@pytest.mark.parametrize("engine", ["uring", "threads", "simulated"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_all_topologies_give_the_same_batches(
    make: Make, data: Data, way: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, 3, NOISE)
    given = {"shuffle": True, "seed": 3, "engine": engine}
    expected, got = make(topology="mmap", **given), make(**given | way)
    for _ in range(2):
        for left, right in zip(expected, got, strict=True):
            assert_same(left, right)
            check(right, data)


@pytest.mark.parametrize("replace", [False, True])
def test_with_replacement_and_all_neighbours(make: Make, replace: bool) -> None:
    given = {"seed": 3, "replace": replace, "num_neighbors": [-1, 5], "buffer": "60KB"}
    for left, right in zip(
        make(topology="mmap", **given),
        make(topology="direct", neighbour_cache=0, **given),
        strict=True,
    ):
        assert_same(left, right)


def test_samplers_read_together(make: Make) -> None:
    """Four samplers read for four batches in one pass what one sampler reads four times."""
    way = {"topology": "direct", "neighbour_cache": 0, "gap": 0, "num_neighbors": [5, 5]}
    requests = []
    for samplers, queue in ((1, 8), (4, 8), (4, 2), (8, 4)):
        loader = make(samplers=samplers, extracting_queue=queue, **way)
        assert len(list(loader)) == len(loader)
        requests.append(loader.stats()["topology_requests"])
    alone, four, two, three = requests
    assert four < three < two < alone


@pytest.mark.parametrize("queue", [2, 6])
def test_rounds_of_several_iterators(make: Make, data: Data, queue: int) -> None:
    """Each waits for all of its own samples, in threads that they share."""
    way = {"topology": "direct", "neighbour_cache": 0, "num_neighbors": [3, 3], "buffer": "60KB"}
    loader = make(samplers=4, extracting_queue=queue, **way)
    iterators = [iter(loader) for _ in range(3)]
    batches = 0
    for together in zip(*iterators, strict=True):
        for batch in together:
            check(batch, data)
            batches += 1
    assert batches == 3 * len(loader)


# ---- errors


@pytest.fixture
def narrow(data: Data, tmp_path: Path) -> Store:
    """The graph with rows of 4 bytes, so that the indices' file is the longer one."""
    graph = Data(x=torch.rand(NODES, 1), edge_index=data.edge_index)
    return gnndrive.from_data(graph, tmp_path / "narrow.gnn")


@pytest.mark.parametrize("seed", range(6))
def test_eio_in_the_adjacency_comes_at_its_batchs_turn(
    make: Make, narrow: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    sector = int(narrow.indptr[130]) // 128
    bad = DATA_OFFSET + 512 * sector
    assert bad > DATA_OFFSET + 4 * NODES + 512, "no row is there"
    first = next(v for v in range(NODES) if narrow.indptr[v + 1] > 128 * sector)
    faults = Faults(eio_offsets=((bad, bad + 512),), short=0.2, delay_turns_max=seed)
    simulate(monkeypatch, seed, faults)
    loader = make(
        [-1], data=narrow, topology="direct", neighbour_cache=0, engine="simulated", batch_size=10
    )
    for _ in range(3):
        delivered, iterator = 0, iter(loader)
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for _ in iterator:
                delivered += 1
        assert delivered == first // 10
        assert (caught.value.path, caught.value.errno) == (str(narrow.indices_path), errno.EIO)
        assert bad - 512 < caught.value.offset <= bad
        assert list(iterator) == []


@pytest.mark.parametrize("engine", ["uring", "threads", "simulated"])
def test_closing_in_the_middle(make: Make, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Samplers wait in threads for the loop that reads, and another loop ends them."""
    simulate(monkeypatch, 1, Faults(delay_turns_max=30))
    way = {"topology": "direct", "neighbour_cache": 0, "gap": 0, "buffer": "60KB"}
    for number in range(8):
        before = threading.active_count()
        loader = make([-1, -1], engine=engine, **way)
        iterator, other = iter(loader), iter(loader)
        for _ in range(number % 3):
            next(iterator)
        if number % 2:
            iterator.close()
            assert next(other).batch_size == 16
        loader.close()
        with pytest.raises(ClosedError):
            list(other)
        assert threading.active_count() <= before  # an earlier loader may end meanwhile


def test_dropping_an_iterator_of_async_for(make: Make) -> None:
    loader = make([-1, -1], topology="direct", neighbour_cache=0, gap=0, buffer="60KB")

    async def one() -> None:
        async for batch in loader:
            assert batch.batch_size == 16
            break

    for _ in range(3):
        asyncio.run(one())
    assert len(list(loader)) == NODES // 16


# ---- plans, stats and refusals


def test_the_plan_and_the_stats_say_which(make: Make) -> None:
    for way, name, reads in zip(
        WAYS,
        ["resident", *["direct"] * 3, "resident", "resident"],
        [0, 0, 1, 1, 0, 0],
        strict=True,
    ):
        loader = make(**way)
        (item,) = [item for item in loader.plan().lines if item.what == "topology"]
        assert item.why.startswith(name)
        list(loader)
        stats = loader.stats()
        assert stats["topology"] == name
        assert bool(stats["topology_requests"]) == bool(stats["topology_bytes_read"]) == bool(reads)
        wanted, cached = stats["neighbours_wanted"], stats["neighbours_cached"]
        assert wanted == (stats["edges"] if name == "direct" else 0)
        assert (cached == wanted) == (not reads)


def test_auto_keeps_a_small_adjacency_however_tight_the_budget_is(make: Make) -> None:
    """Its ring would take more than all indices."""
    resident = make(memory="100MB", buffer=None).plan()
    assert resident.topology is not None
    assert resident.topology.name == "resident"
    with pytest.raises(ConfigError, match=r"topology .*resident, because "):
        make(memory="1MB", buffer=None).plan()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topology": "mapped"}, "direct, mmap, resident"),
        ({"topology": "mmap", "neighbour_cache": "1MB"}, "topology='direct'"),
        ({"topology": "direct", "neighbour_cache": "1KB"}, "holds no list"),
        ({"topology": "direct", "neighbour_cache": "large"}, "no size"),
    ],
)
def test_impossible_choices_are_refused(
    make: Make, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**arguments).plan()
    with pytest.raises(ConfigError, match=message):
        iter(make(**arguments))

"""What strategies hold in memory and on disk: caches by degree, superbatches, victims."""

import errno
import os
import re
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader, ReadError
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.pipeline.epoch import Stages
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.trace import Trace
from gnndrive.strategies import LSMGNN, STRATEGIES, DiskGNN, Ginex, GNNDrive, HierBatching, Marius
from gnndrive.strategies.base import Strategy, batches_of
from gnndrive.strategies.base import strategy as find
from tests.given import moved
from tests.loader.batches import assert_all_same, assert_same, skewed_store
from tests.loader.conftest import NODES
from tests.loader.test_same_batches import victim


def test_hubs_stay_and_the_two_caches_share_the_memory(tmp_path):
    """More of a batch's rows are hits than if the row leaves that was released longest ago. What
    the neighbour cache takes, the feature buffer lacks."""
    store = skewed_store(tmp_path / "skewed.gnn", nodes=1_000, edges=15_000, columns=64, seed=2)
    given: dict[str, Any] = {
        "num_neighbors": [5, 5], "input_nodes": range(500), "batch_size": 5, "buffer": "75KB",
        "sweep": 1, "extracting_queue": 1, "training_queue": 1, "shuffle": True, "seed": 5,
    }  # fmt: skip
    hits = []
    for way in ({"policy": "lru"}, {"strategy": "ali+pg"}):
        with NeighborLoader(store, **moved({**given, **way})) as loader:
            assert len(list(loader)) == 100
            hits.append(loader.stats()["rows_hit"] / loader.stats()["rows"])
    assert hits[1] > hits[0] + 0.05
    given |= {"buffer": None, "memory": "73MB", "samplers": 1, "strategy": "ali+pg"}
    given |= {"input_nodes": range(200), "batch_size": 10, "extracting_queue": 2}
    given.pop("sweep")
    plans = [
        NeighborLoader(
            store, **moved(given | {"topology": "direct", "neighbour_cache": size})
        ).plan()
        for size in (0, 60_000)
    ]
    assert plans[0].slots > plans[1].slots
    assert max(plan.total_bytes for plan in plans) <= 73_000_000


def test_a_sweep_that_is_given_counts_batches(make):
    """Also those of a group."""
    stages = make(buffer="60KB", sweep=5)._assembly().settings().stages
    assert (stages.group, stages.sweep) == (5, 1)


def test_gnndrive_as_published(make):
    """Its parts stand where the user gave none; the batches are the same, in any order."""
    given: dict[str, Any] = {"shuffle": True, "seed": 5, "buffer": None}
    loader = make(strategy=GNNDrive(paper=True), **given)
    (table,) = loader.plan().tables
    assert table.slots == min(4 * table.batch_rows_max, NODES)
    settings = loader._assembly().settings()
    assert (settings.policy, settings.stages) == ("lru", Stages(4, 4, 6, 4, False, 1))
    assert (settings.request.disk.gap_bytes, settings.plan.topology.name) == (0, "mmap")
    with pytest.raises(
        ConfigError, match="any order: give another strategy than gnndrive:paper=True"
    ):
        loader.state_dict()
    batches = {batch.input_id[0].item(): batch for batch in loader}
    plain = list(make(**given))
    assert_all_same([batches[batch.input_id[0].item()] for batch in plain], plain)
    mine = make(strategy="gnndrive:paper=True", policy="belady", **given | {"buffer": "30KB"})
    assert mine._assembly().settings().policy == "belady"
    assert mine.plan().tables[0].slots < table.slots


def test_the_least_memory_of_gnndrive_as_published_works(make):
    given: dict[str, Any] = {"strategy": GNNDrive(paper=True), "buffer": None}
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        make(memory="1MB", **given).plan()
    (least,) = re.findall('at least memory="(.*?)"', str(caught.value))
    assert make(memory=least, **given).plan().tables[0].slots > 0


def test_a_text_gives_what_its_strategy_was_made_of():
    """Names of digits stay names; the loaders and the commands hand strategies on as texts."""
    for each in (
        DiskGNN(packed="123456789012"), DiskGNN(packed="1e5"), Ginex(paper=True, folder="/a b:c,d"),
        HierBatching(static=0.0, passes="auto", megabatch=4), GNNDrive(),
        Marius(partitioned="007", order="beta"), LSMGNN(victim_buffer="1GB", superbatch="auto"),
    ):  # fmt: skip
        assert find(each.text) == each
    assert find("hierbatching:megabatch=None") == HierBatching()


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_has_words_of_its_own_by_which_one_chooses(each):
    assert each.published
    assert 4 <= len(each.does.split()) <= 6
    for word in ("does", "pays"):
        others = {getattr(other, word) for other in STRATEGIES.values() if other is not each}
        assert getattr(each, word) not in others | {""}
    same = batches_of(each) == "gnndrive"
    assert (each.changes == Strategy.changes) == same
    assert (each.preparation == "none") == same


def test_ginex_as_published(make):
    given: dict[str, Any] = {"shuffle": True, "seed": 5, "memory": "90MB", "buffer": None}
    loader = make(strategy=Ginex(paper=True, superbatch=9), **given)
    assert "while batches are sampled apart" in str(loader.plan())
    assert loader.plan().topology.name == "direct"
    assert_all_same(list(loader), list(make(**given)))


@pytest.mark.parametrize(
    ("strategy", "there"),
    [
        ("gnndrive", True), ("ginex", True), ("ali+pg", True), ("rolling", False),
        (GNNDrive(paper=True), False), (Ginex(paper=True), False),
        (replace(GNNDrive(), tiers=("disk",)), False),
    ],
)  # fmt: skip
def test_rows_that_leave_a_device_stay_in_what_memory_leaves(make, strategy, there):
    """Without `memory=` nothing says how much that is."""
    given = {"strategy": strategy, "device": "simulated-cuda", "buffer": "30KB"}
    for memory, expected in (("90MB", there), (None, False)):
        plan = make(memory=memory, **given).plan()
        assert any(table.evicted for table in plan.tables) == expected
        assert ("host level" in plan.details()) == expected


@pytest.mark.parametrize("strategy", ["lsm-gnn", victim("victim")])
def test_rows_come_back_from_the_victim_buffer(make, strategy):
    given = COMMON | {"strategy": strategy, "device": "simulated-cuda", "sweep": 1}
    with_victims, without = make(victim_buffer="20KB", **given), make(victim_buffer=0, **given)
    assert "host level" in str(with_victims.plan())
    assert "host level" not in str(without.plan())
    for ours, theirs in zip(with_victims, without, strict=True):
        assert torch.equal(ours.n_id, theirs.n_id)
    ours, theirs = with_victims.stats(), without.stats()
    assert ours["rows_taken_back"] > 0.1 * ours["rows_loaded"]
    assert theirs["rows_taken_back"] == 0
    assert ours["rows_loaded"] - ours["rows_taken_back"] < theirs["rows_loaded"]
    (table,) = with_victims.plan().tables
    tier = with_victims._runtime._buffers._kept.tables["nodes/x"].tier
    assert tier._memory.rows.shape == (table.evicted, 132) == (20_000 // 132, 132)
    host = make(**COMMON | {"strategy": strategy})
    assert list(host)
    assert host.stats()["rows_taken_back"] == 0, "host memory keeps the rows itself"


# ---- superbatches


SHAPES: dict[str, dict[str, Any]] = {
    "auto": {},
    "short": {"superbatch": 3},
    "several apart": {"phases": "apart", "superbatch": 7},
    "apart from disk": {"phases": "apart", "superbatch": 9, "topology": "direct"},
}
COMMON: dict[str, Any] = {"seed": 5, "shuffle": True, "buffer": "30KB"}


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        ({"strategy": "ginex"} | SHAPES["several apart"], 9),
        ({"strategy": "lsm-gnn", "superbatch": 4}, 3),
    ],
)
def test_a_state_moves_between_strategies(make, other, taken):
    expected, given = list(make(**COMMON)), [{}, other]
    for first, then in (given, given[::-1]):
        loader = make(**COMMON | first)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = make(**COMMON | then)
        resumed.load_state_dict(loader.state_dict())
        assert_all_same(resumed, expected[taken:])


async def test_in_an_event_loop_beside_another_iterator(make):
    """Each iterator has traces of its own; apart there is one only."""
    given = COMMON | {"strategy": "ginex"}
    loader, apart = make(**given, superbatch=3), make(**given, **SHAPES["several apart"])
    batches, beside, alone = aiter(loader), iter(loader), aiter(apart)
    for theirs in make(**COMMON):
        assert_same(await anext(batches), theirs)
        assert_same(await anext(alone), theirs)
        assert next(beside).num_nodes
    assert await anext(alone, None) is None
    again = iter(apart)
    next(again)
    with pytest.raises(ConfigError, match="phases='overlapped'"):
        iter(apart)


@pytest.mark.parametrize("shape", ["auto", "several apart"])
def test_a_disk_that_is_full_or_fails_is_an_error_at_its_batch(make, tmp_path, monkeypatch, shape):
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(trace: Trace, index: int) -> Any:
        if index == 5:
            raise ReadError("trace", 0, errno.EIO)
        return take(trace, index)

    take, before = Trace.take, traces_open()
    loader = make(strategy="ginex", folder=tmp_path, **COMMON, **SHAPES[shape])
    loader.plan()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ConfigError) as caught:
            next(iter(loader))
    for words in (str(tmp_path), "folder=", "strategy='gnndrive'", "free"):
        assert words in str(caught.value)
    with monkeypatch.context() as patch:
        patch.setattr(Trace, "take", fail)
        batches = iter(loader)
        assert len([next(batches) for _ in range(5)]) == 5
        with pytest.raises(ReadError):
            next(batches)
    assert traces_open() == before
    assert len(list(loader)) == len(loader), "the next epoch finds room"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"folder .* folder="):
        make(strategy="ginex")


@pytest.mark.parametrize("shape", ["short", "several apart"])
def test_the_disk_is_used_as_planned(make, tmp_path, monkeypatch, shape):
    loader = make(strategy="ginex", folder=tmp_path, **COMMON, **SHAPES[shape])
    most, open_traces, write = 0, set[Trace](), Trace.write

    def measured(trace: Trace, *batch: Any) -> bool:
        nonlocal most
        open_traces.add(trace)
        written = write(trace, *batch)
        most = max(most, sum(each.nbytes for each in open_traces if each._close.alive))
        return written

    monkeypatch.setattr(Trace, "write", measured)
    assert len(list(loader)) == len(loader)
    plan = loader.plan()
    assert 0 < most <= plan.disk_bytes
    assert str(tmp_path) in str(plan)
    assert os.listdir(tmp_path) == []
    assert not any(each._close.alive for each in open_traces), "all files are closed"


def traces_open() -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sum("(deleted)" in name and "/#" in name for name in names)


def test_between_parts_nothing_is_left_behind(make, monkeypatch):
    """A superbatch that was sampled apart is freed if its replay cannot begin, or is not wanted."""
    before = traces_open()
    loader = make(strategy="ginex", phases="apart", superbatch=5, **COMMON)

    def refuse(*arguments: Any) -> Any:
        raise ConfigError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(BufferPool, "take", refuse)
        with pytest.raises(ConfigError, match="no room"):
            next(iter(loader))
        assert traces_open() == before
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(("superbatch", "parts"), [("auto", 1), (9, 3)])
def test_the_graph_is_read_once_a_superbatch(make, monkeypatch, superbatch, parts):
    """An epoch ends without an empty superbatch behind it; graph and buffer take turns."""
    loads, alive = list[Adjacency](), list[weakref.ref[FeatureBuffer]]()
    load, make_buffer, write = Adjacency.load, BufferPool._make, Trace.write

    def watched(trace: Trace, *batch: Any) -> bool:
        assert not any(ref() for ref in alive), "a feature buffer of an earlier part is there"
        assert loader._runtime._buffers._kept is None
        return write(trace, *batch)

    def made(pool: BufferPool, plans: Any) -> FeatureBuffer:
        buffer = make_buffer(pool, plans)
        alive.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(Trace, "write", watched)
    monkeypatch.setattr(Adjacency, "load", lambda self: loads.append(self) or load(self))
    monkeypatch.setattr(BufferPool, "_make", made)
    loader = make(strategy="ginex", phases="apart", superbatch=superbatch, **COMMON)
    left = [loader._runtime.adjacency.topologies for _ in loader]
    assert (left, len(loads)) == ([[]] * 25, 1 + parts), "once when it is opened"


@pytest.mark.parametrize("phases", ["overlapped", "apart"])
def test_memory_counts_what_is_sampled_ahead(make, phases):
    given: dict[str, Any] = {"buffer": None, "strategy": "ginex", "phases": phases}
    loader = make(memory="40MB", **given)
    names = {line.what for line in loader.plan().lines}
    assert names >= {"next uses", "records"}
    assert ("topology" in names) == (phases == "overlapped")
    assert make(memory="40MB", buffer=None).plan().disk_bytes == 0 < loader.plan().disk_bytes
    assert len(list(loader)) == 25
    with pytest.raises(ConfigError, match="give at least memory="):
        make(memory=1, **given).plan()


def test_edge_features_have_their_window(make, tmp_path):
    """Rows of edges look ahead by the queued samples, and those of nodes by the superbatch."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 200, (2, 2_000), generator=draw)
    x, features = (torch.randn(count, 20, generator=draw) for count in (200, 2_000))
    data = Data(x=x, edge_index=edges, edge_attr=features)
    given = {"data": gnndrive.from_data(data, tmp_path / "edges.gnn"), "buffer": "60KB", "seed": 2}
    plain, ahead = make(**given), make(strategy="ginex", superbatch=5, **given)
    for ours, theirs in zip(ahead, plain, strict=True):
        assert_same(ours, theirs)
        assert torch.equal(ours.edge_attr, features[ours.e_id])


def test_what_was_made_is_freed_if_a_later_part_is_refused(make, monkeypatch):
    """The rows' pinned memory and the tier's thread as well."""

    def refuse(one: Any) -> Any:
        if one is second:
            raise ConfigError("no memory is left")
        return make_table(one)

    loader = make(**COMMON, device="simulated-cuda", strategy=victim("victim"), sweep=1)
    assert sum(1 for _ in loader) == NODES // 16
    pool, driver = loader._runtime._buffers, loader._runtime.device.driver
    before, threads, make_table = driver.pinned_bytes, threading.active_count(), pool._make_table
    (first,) = pool.settings.plan.tables
    assert first.evicted
    second = replace(first, name="none")

    async def main() -> None:
        monkeypatch.setattr(pool, "_make_table", refuse)
        with pytest.raises(ConfigError, match="no memory is left"):
            pool._make([first, second])
        await pool.closed()
        assert driver.pinned_bytes == before
        assert threading.active_count() == threads

    loader._runtime.loop_thread.call(main())

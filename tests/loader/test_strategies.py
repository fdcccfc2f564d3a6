"""What strategies hold in memory and on disk: caches by degree, superbatches, victim buffers.

That their batches are gnndrive's is in test_same_batches.py."""

from __future__ import annotations

import errno
import os
import signal
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader, ReadError, Store
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.loader import buffer_pool
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.runtime import Runtime
from gnndrive.sampling.trace import Trace
from tests import forked
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES
from tests.loader.skewed import skewed_store
from tests.loader.test_same_batches import victim


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """2,000 nodes, some of which have most of the out-edges."""
    folder = tmp_path_factory.mktemp("ali") / "skewed.gnn"
    return skewed_store(folder, nodes=1_000, edges=15_000, columns=64, seed=2)


def hits(loader: NeighborLoader) -> float:
    with loader:
        assert sum(batch.num_nodes for batch in loader)
        stats = loader.stats()
    return float(stats["rows_hit"]) / float(stats["rows"])


def test_hubs_stay(skewed):
    """More of a batch's rows are hits than if the row leaves that was released longest ago."""
    arguments: dict[str, Any] = {
        "num_neighbors": [5, 5], "input_nodes": range(500), "batch_size": 5, "buffer": "75KB",
        "sweep": 1, "extracting_queue": 1, "training_queue": 1, "shuffle": True, "seed": 5,
    }  # fmt: skip
    lru = hits(NeighborLoader(skewed, **arguments, policy="lru"))
    assert hits(NeighborLoader(skewed, **arguments, strategy="ali+pg")) > lru + 0.05


def test_the_two_caches_share_the_memory(skewed):
    """What the neighbour cache takes, the feature buffer lacks."""
    slots, cached = [], []
    for cache in (0, 60_000):
        loader = NeighborLoader(
            skewed, [5, 5], range(200), batch_size=10, memory="73MB", strategy="ali+pg",
            neighbour_cache=cache, samplers=1, extracting_queue=2, training_queue=1, shuffle=True,
            seed=5, topology="direct",
        )  # fmt: skip
        with loader:
            plan = loader.plan()
            assert plan.total_bytes <= 73_000_000
            assert len(list(loader)) == 20
            cached.append(int(loader.stats()["neighbours_cached"]))
        slots.append(plan.slots)
    assert cached[0] == 0 < cached[1]
    assert slots[0] > slots[1]


@pytest.mark.parametrize("strategy", ["lsm-gnn", victim("victim")])
def test_rows_come_back_from_the_victim_buffer(make, strategy):
    given = COMMON | {"strategy": strategy, "device": "simulated-cuda", "sweep": 1}
    with_victims, without = make(victim_buffer="40KB", **given), make(victim_buffer=0, **given)
    assert "victim" in str(with_victims.plan())
    assert "victim" not in str(without.plan())
    for ours, theirs in zip(with_victims, without, strict=True):
        assert torch.equal(ours.n_id, theirs.n_id)
    ours, theirs = with_victims.stats(), without.stats()
    assert ours["rows_from_victims"] > 0.2 * ours["rows_loaded"]
    assert theirs["rows_from_victims"] == 0
    assert ours["rows_loaded"] - ours["rows_from_victims"] < theirs["rows_loaded"]


def test_the_host_has_no_victim_buffer_and_says_so(make):
    loader = make(strategy="lsm-gnn", **COMMON)
    assert "host memory themselves" in str(loader.plan())
    assert list(loader)
    assert loader.stats()["rows_from_victims"] == 0


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
        ({"strategy": "ginex"} | SHAPES["apart from disk"], 0),
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
        state = loader.state_dict()
        batches.close()
        resumed = make(**COMMON | then)
        resumed.load_state_dict(state)
        for ours, theirs in zip(resumed, expected[taken:], strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("shape", ["short", "several apart"])
async def test_in_an_event_loop_beside_another_iterator(make, shape):
    """Each iterator has traces of its own; apart there is one only."""
    loader = make(strategy="ginex", **COMMON, **SHAPES[shape])
    other = make(strategy="ginex", **COMMON, **SHAPES[shape]) if "apart" in shape else loader
    expected, batches = iter(make(**COMMON)), aiter(loader)
    beside = iter(other)
    async for ours in batches:
        assert_same(ours, next(expected))
        assert next(beside).num_nodes
    assert next(expected, None) is None


def test_a_sampler_of_the_user_is_drawn_ahead(make, data):
    drawn: list[int] = []

    class Recording(torch.utils.data.SequentialSampler):
        def __iter__(self) -> Any:
            for each in super().__iter__():
                drawn.append(each)
                yield each

    given: dict[str, Any] = {"batch_size": 20, "sampler": Recording(range(400)), "seed": 1}
    batches = iter(make(strategy="ginex", superbatch=6, **given))
    first = next(batches)
    assert first.input_id.tolist() == list(range(20))
    assert len(drawn) >= 120
    rest = list(batches)
    assert torch.equal(torch.cat([first.input_id, *(b.input_id for b in rest)]), torch.arange(400))


def test_a_folder_that_cannot_be_written_to(make, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"the store's folder .* superbatch_folder="):
        make(strategy="ginex")


def test_a_full_disk_is_an_error_with_its_remedies(make, tmp_path, monkeypatch):
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for shape in ("auto", "several apart"):
        loader = make(strategy="ginex", superbatch_folder=tmp_path, **COMMON, **SHAPES[shape])
        loader.plan()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            batches = iter(loader)
            with pytest.raises(ConfigError) as caught:
                next(batches)
        for words in (str(tmp_path), "superbatch_folder=", "strategy='gnndrive'", "free"):
            assert words in str(caught.value)
        assert len(list(loader)) == len(loader), "the next epoch finds room"


@pytest.mark.parametrize("shape", ["auto", "several apart"])
def test_a_failing_disk_is_an_error_at_its_batch(make, monkeypatch, shape):
    take = Trace.take

    def fail(trace: Trace, index: int) -> Any:
        if index == 5:
            raise ReadError("trace", 0, errno.EIO)
        return take(trace, index)

    monkeypatch.setattr(Trace, "take", fail)
    before = traces_open()
    batches = iter(make(strategy="ginex", **COMMON, **SHAPES[shape]))
    for _ in range(5):
        next(batches)
    with pytest.raises(ReadError):
        next(batches)
    assert traces_open() == before


@pytest.mark.parametrize("shape", ["short", "several apart"])
def test_the_disk_is_used_as_planned(make, tmp_path, monkeypatch, shape):
    given = COMMON | SHAPES[shape] | {"superbatch_folder": tmp_path}
    loader = make(strategy="ginex", **given)
    most, open_traces, write = 0, set[Trace](), Trace.write

    def measured(trace: Trace, *batch: Any) -> bool:
        nonlocal most
        open_traces.add(trace)
        written = write(trace, *batch)
        alive = [each for each in open_traces if each._close.alive]
        most = max(most, sum(each.nbytes for each in alive))
        return written

    monkeypatch.setattr(Trace, "write", measured)
    assert len(list(loader)) == len(loader)
    plan = loader.plan()
    assert 0 < most <= plan.disk_bytes
    assert str(tmp_path) in str(plan)
    assert os.listdir(tmp_path) == []
    assert not any(each._close.alive for each in open_traces), "all files are closed"


def test_kill_leaves_no_file(store, tmp_path):
    script = f"""
        import os, gnndrive
        store = gnndrive.open({str(store.path)!r})
        loader = gnndrive.NeighborLoader(
            store, [4, 3], batch_size=16, buffer="40KB", strategy="ginex", superbatch=10,
            superbatch_folder={str(tmp_path)!r})
        batches = iter(loader)
        next(batches)
        links = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
        files = [os.readlink(link) for link in links if os.path.lexists(link)]
        assert any({str(tmp_path)!r} in name for name in files), files
        os.kill(os.getpid(), 9)
    """
    ended = forked.run(script)
    assert ended.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


def test_a_second_iterator_is_refused_while_phases_are_apart(make):
    loader = make(strategy="ginex", phases="apart", superbatch=5, **COMMON)
    first = iter(loader)
    next(first)
    with pytest.raises(ConfigError, match="phases='overlapped'"):
        iter(loader)
    first.close()
    assert len(list(loader)) == len(loader)


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
        batches = iter(loader)
        with pytest.raises(ConfigError, match="no room"):
            next(batches)
        assert traces_open() == before
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(("superbatch", "parts"), [(None, 1), (5, 5), (9, 3)])
def test_the_graph_is_read_once_a_superbatch(make, monkeypatch, superbatch, parts):
    """An epoch ends without an empty superbatch behind it; graph and buffer take turns."""
    loads, load = [0], Runtime.load_graph
    alive: list[weakref.ref[FeatureBuffer]] = []
    make_buffer, write = BufferPool._make, Trace.write

    def counted(runtime: Runtime) -> None:
        loads[0] += 1
        load(runtime)

    def watched(trace: Trace, *batch: Any) -> bool:
        assert not any(ref() for ref in alive), "a feature buffer of an earlier part is there"
        assert loader._runtime._buffers._kept is None
        return write(trace, *batch)

    def made(pool: BufferPool, plans: Any) -> FeatureBuffer:
        buffer = make_buffer(pool, plans)
        alive.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(Trace, "write", watched)
    monkeypatch.setattr(Runtime, "load_graph", counted)
    monkeypatch.setattr(BufferPool, "_make", made)
    loader = make(strategy="ginex", phases="apart", superbatch=superbatch, **COMMON)
    left = [loader._runtime._files.adjacency.topologies for _ in loader]
    assert (left, loads) == ([[]] * 25, [parts])


@pytest.mark.parametrize("phases", ["overlapped", "apart"])
def test_memory_counts_what_is_sampled_ahead(make, phases):
    given: dict[str, Any] = {"buffer": None, "memory": "40MB", "strategy": "ginex"}
    loader = make(**given, phases=phases)
    plan, plain = loader.plan(), make(buffer=None, memory="40MB").plan()
    names = [line.what for line in plan.lines]
    assert {"next uses", "records"} <= set(names)
    assert ("topology" in names) == (phases == "overlapped")
    assert plain.disk_bytes == 0 < plan.disk_bytes
    assert len(list(loader)) == 25
    with pytest.raises(ConfigError, match="give at least memory="):
        make(buffer=None, memory=1, strategy="ginex", phases=phases).plan()


def test_edge_features_have_their_window(tmp_path):
    """Rows of edges look ahead by the queued samples, and those of nodes by the superbatch."""
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 200, (2, 2_000), generator=draw)
    data = Data(
        x=torch.randn(200, 16, generator=draw), edge_index=edge_index,
        edge_attr=torch.randn(2_000, 20, generator=draw),
    )  # fmt: skip
    store = gnndrive.from_data(data, tmp_path / "edges.gnn")
    given: dict[str, Any] = {"batch_size": 10, "buffer": "60KB", "seed": 2}
    with (
        NeighborLoader(store, [4, 3], **given) as plain,
        NeighborLoader(store, [4, 3], strategy="ginex", superbatch=5, **given) as ahead,
    ):
        for ours, theirs in zip(ahead, plain, strict=True):
            assert_same(ours, theirs)
            assert torch.equal(ours.edge_attr, data.edge_attr[ours.e_id])


# ---- victim buffers


SMALL: dict[str, Any] = {"shuffle": True, "seed": 3, "buffer": "30KB", "sweep": 1}


def test_the_plan_lists_it(make):
    loader = make(device="simulated-cuda", strategy=victim("victim"), victim_buffer="20KB", **SMALL)
    (table,) = loader.plan().tables
    assert table.victims == 20_000 // 132
    assert "victim buffer" in str(loader.plan())
    assert sum(1 for _ in loader) == NODES // 16
    tier = loader._runtime._buffers._kept.tables["nodes/x"].tier
    assert tier._memory.rows.shape == (table.victims, 132)


@pytest.mark.parametrize("refused", ["its table", "the next table's memory"])
def test_what_was_made_is_freed_if_a_later_part_is_refused(make, monkeypatch, refused):
    """The rows' pinned memory and the tier's thread as well."""

    def refuse(*given: Any) -> None:
        raise ConfigError("no memory is left")

    loader = make(device="simulated-cuda", strategy=victim("victim"), **SMALL)
    assert sum(1 for _ in loader) == NODES // 16
    runtime = loader._runtime
    pool, driver = runtime._buffers, runtime.device.driver
    before, threads = driver.pinned_bytes, threading.active_count()
    (plan,) = pool.settings.plan.tables
    assert plan.victims

    async def main() -> None:
        if refused == "its table":
            monkeypatch.setattr(buffer_pool, "SlotTable", refuse)
        else:
            plans = [plan, replace(plan, name="none")]
            make_table = pool._make_table
            monkeypatch.setattr(
                pool, "_make_table", lambda one: refuse() if one is plans[1] else make_table(one)
            )
        with pytest.raises(ConfigError, match="no memory is left"):
            pool._make([plan] if refused == "its table" else plans)
        await pool.closed()
        assert driver.pinned_bytes == before
        assert threading.active_count() == threads

    runtime.loop_thread.call(main())

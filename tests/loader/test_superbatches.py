"""Loaders that sample ahead (`ginex`): same batches, states, arguments, disks, memory."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, ReadError, Store
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.runtime import Runtime
from gnndrive.sampling.trace import Trace
from tests import forked
from tests.loader.batches import assert_same, check

Make = Callable[..., NeighborLoader]
SHAPES: dict[str, dict[str, Any]] = {
    "auto": {},
    "short": {"superbatch": 3},
    "long": {"superbatch": 1000, "sweep": 1},
    "from disk": {"topology": "direct", "superbatch": 10},
    "apart": {"phases": "apart"},
    "several apart": {"phases": "apart", "superbatch": 7},
    "apart from disk": {"phases": "apart", "superbatch": 9, "topology": "direct"},
    "lru": {"policy": "lru"},
}
COMMON: dict[str, Any] = {"seed": 5, "shuffle": True, "buffer": "30KB"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_batches_are_those_of_gnndrive(make: Make, data: Data, shape: str) -> None:
    expected, ahead = make(**COMMON), make(strategy="ginex", **COMMON, **SHAPES[shape])
    assert len(ahead) == len(expected)
    for _ in range(2):
        batches = list(ahead)
        for ours, theirs in zip(batches, expected, strict=True):
            check(ours, data)
            assert_same(ours, theirs)


@pytest.mark.parametrize("shape", ["auto", "short", "several apart"])
def test_in_an_event_loop(make: Make, shape: str) -> None:
    expected = list(make(**COMMON))

    async def load() -> list[Data]:
        return [batch async for batch in make(strategy="ginex", **COMMON, **SHAPES[shape])]

    for ours, theirs in zip(asyncio.run(load()), expected, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("taken", [0, 4, 9])
def test_a_state_moves_between_strategies(make: Make, shape: str, taken: int) -> None:
    expected = list(make(**COMMON))
    given: list[dict[str, Any]] = [{}, {"strategy": "ginex"} | SHAPES[shape]]
    for first, then in (given, given[::-1]):
        loader = make(**COMMON | first)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
        batches.close()
        other = make(**COMMON | then)
        other.load_state_dict(state)
        for ours, theirs in zip(other, expected[taken:], strict=True):
            assert_same(ours, theirs)


def test_a_sampler_of_the_user_is_drawn_ahead(make: Make, data: Data) -> None:
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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"superbatch": 8}, "strategy='ginex'"),
        ({"phases": "apart"}, "strategy='ginex'"),
        ({"superbatch_folder": "x"}, "strategy='ginex'"),
        ({"strategy": "ginex", "superbatch": 0}, "at least 1"),
        ({"strategy": "ginex", "superbatch": 1.5}, "whole number"),
        ({"strategy": "ginex", "superbatch": "many"}, "'auto'"),
        ({"strategy": "ginex", "superbatch": 40_000}, "at most 32,000"),
        ({"strategy": "ginex", "phases": "both"}, "'overlapped' or 'apart'"),
        ({"strategy": "ginex", "superbatch_folder": "/none"}, "give one that is there"),
        ({"strategy": "ginex", "superbatch_folder": 3}, "path of a folder"),
        ({"strategy": "ginex", "disjoint": True}, "strategy='gnndrive'"),
        ({"strategy": "ginex", "subgraph_type": "induced"}, "strategy='gnndrive'"),
    ],
)
def test_arguments_that_cannot_work(make: Make, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**given)


def test_links_are_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="strategy='gnndrive'"):
        LinkNeighborLoader(store, [4, 3], strategy="ginex", batch_size=16)


def test_data_in_memory_takes_no_superbatch(data: Data) -> None:
    with pytest.raises(ConfigError, match="for a store"):
        NeighborLoader(data, [4, 3], superbatch=8)
    assert isinstance(NeighborLoader(data, [4, 3]), PyGNeighborLoader)


def test_a_folder_that_cannot_be_written_to(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"the store's folder .* superbatch_folder="):
        make(strategy="ginex")


def test_a_full_disk_is_an_error_with_its_remedies(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for shape in ("auto", "apart"):
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
def test_a_failing_disk_is_an_error_at_its_batch(
    make: Make, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    take = Trace.take

    def fail(trace: Trace, index: int) -> Any:
        if index == 5:
            raise ReadError("trace", 0, errno.EIO)
        return take(trace, index)

    monkeypatch.setattr(Trace, "take", fail)
    batches = iter(make(strategy="ginex", **COMMON, **SHAPES[shape]))
    for _ in range(5):
        next(batches)
    with pytest.raises(ReadError):
        next(batches)


@pytest.mark.parametrize("shape", ["auto", "short", "several apart"])
def test_the_disk_is_used_as_planned(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
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


def test_kill_leaves_no_file(store: Store, tmp_path: Path) -> None:
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


def test_two_iterators_have_traces_of_their_own(make: Make) -> None:
    loader = make(strategy="ginex", superbatch=4, **COMMON)
    expected = list(make(**COMMON))
    for one, other, theirs in zip(loader, loader, expected, strict=True):
        assert_same(one, theirs)
        assert other.num_nodes


def test_a_second_iterator_is_refused_while_phases_are_apart(make: Make) -> None:
    loader = make(strategy="ginex", phases="apart", superbatch=5, **COMMON)
    first = iter(loader)
    next(first)
    with pytest.raises(ConfigError, match="phases='overlapped'"):
        iter(loader)
    first.close()
    assert len(list(loader)) == len(loader)


def test_apart_the_graph_and_the_buffer_take_turns(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(strategy="ginex", phases="apart", superbatch=6, **COMMON)
    write, while_sampling = Trace.write, []

    def watched(trace: Trace, *batch: Any) -> bool:
        runtime = loader._runtime
        assert runtime is not None
        while_sampling.append(runtime._buffers._kept)  # type: ignore[attr-defined]
        return write(trace, *batch)

    monkeypatch.setattr(Trace, "write", watched)
    for _ in loader:
        runtime = loader._runtime
        assert runtime is not None
        assert runtime._files.adjacency.topologies == []
    assert while_sampling
    assert all(each is None for each in while_sampling)


@pytest.mark.parametrize("shape", ["auto", "several apart"])
def test_closing_in_the_middle_closes_the_files(make: Make, shape: str) -> None:
    before = traces_open()
    for taken in (0, 1, 8):
        loader = make(strategy="ginex", **COMMON, **SHAPES[shape])
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        loader.close()
        del batches, loader
    assert traces_open() == before


def traces_open() -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sum("(deleted)" in name and "/#" in name for name in names)


def test_between_parts_nothing_is_left_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_graph_is_read_once_a_superbatch(
    make: Make, monkeypatch: pytest.MonkeyPatch, superbatch: int | None, parts: int
) -> None:
    """An epoch that ends with a superbatch has no empty one behind it, and no buffer is left."""
    loads, load = [0], Runtime.load_graph
    alive: list[weakref.ref[FeatureBuffer]] = []
    make_buffer, write = BufferPool._make, Trace.write

    def counted(runtime: Runtime) -> None:
        loads[0] += 1
        load(runtime)

    def watched(trace: Trace, *batch: Any) -> bool:
        assert not any(ref() for ref in alive), "a feature buffer of an earlier part is there"
        return write(trace, *batch)

    def made(pool: BufferPool, plans: Any) -> FeatureBuffer:
        buffer = make_buffer(pool, plans)
        alive.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(Trace, "write", watched)
    monkeypatch.setattr(Runtime, "load_graph", counted)
    monkeypatch.setattr(BufferPool, "_make", made)
    loader = make(strategy="ginex", phases="apart", superbatch=superbatch, **COMMON)
    assert len(list(loader)) == 25
    assert loads == [parts]


@pytest.mark.parametrize("phases", ["overlapped", "apart"])
def test_memory_counts_what_is_sampled_ahead(make: Make, phases: str) -> None:
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


def test_edge_features_have_their_window(tmp_path: Path) -> None:
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

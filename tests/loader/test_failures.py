"""Failures surface at their batch's turn, whatever fails: the disk, the user's own code, a sample;
files that are damaged or become shorter while a loader runs are errors too, never a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

import gnndrive
from gnndrive import (
    ClosedError,
    ConfigError,
    LinkNeighborLoader,
    NeighborLoader,
    ReadError,
    Store,
    StoreError,
)
from gnndrive.disk.row_reader import RowReader
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import Faults
from tests.loader.batches import check, simulate
from tests.loader.conftest import NODES
from tests.loader.hetero.graph import CITES, WRITES, make_data

ROW_BYTES = 33 * 4
BAD_NODE = 100  # in batch 6 of 16 seeds each; no row of batch 5 shares its sector
BAD_BATCH = 6


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes simulated engines fail with EIO where node 100 lies, with other faults or without."""

    def breaks(seed: int, **faults: Any) -> None:
        start = DATA_OFFSET + BAD_NODE * ROW_BYTES
        offsets = ((start, start + ROW_BYTES),)
        simulate(monkeypatch, seed, Faults(eio_offsets=offsets, **faults))

    return breaks


def assert_read_error(error: ReadError, store: Store) -> None:
    assert error.path == store.table("x").path
    assert error.errno == errno.EIO
    assert abs(error.offset - DATA_OFFSET - BAD_NODE * ROW_BYTES) < 16 * ROW_BYTES
    for part in (error.path, str(error.offset), "EIO", "gnndrive verify"):
        assert part in str(error)
    assert isinstance(error, OSError)


def test_eio_comes_at_its_batchs_turn(make, store, data, broken, seeds):
    """Also out of `async for`."""

    async def some(loader: NeighborLoader, delivered: list[Data]) -> None:
        async for batch in loader:
            delivered.append(batch)

    for seed in seeds(4):
        broken(seed, short=0.2, eagain=0.05, eintr=0.05, delay_turns_max=seed % 4)
        loader = make([], engine="simulated", buffer=f"{40 * ROW_BYTES}")
        for run in (lambda *given: given[1].extend(given[0]), lambda *g: asyncio.run(some(*g))):
            delivered: list[Data] = []
            with pytest.raises(ReadError) as caught:
                run(loader, delivered)
            assert_read_error(caught.value, store)
            assert len(delivered) == BAD_BATCH
            for batch in delivered:
                check(batch, data)


def test_rows_outside_the_bad_sector_can_still_be_read(make, data, broken):
    broken(1, delay_turns_max=3)
    around = [n for n in range(0, NODES, 2) if abs(n - BAD_NODE) > 8]
    positions = [[BAD_NODE], around[:30]]
    loader = make(batch_sampler=positions, batch_size=1, num_neighbors=[], engine="simulated")
    with pytest.raises(ReadError):
        next(iter(loader))
    positions[:] = [around[k : k + 20] for k in range(0, len(around), 20)]
    for batch in loader:
        check(batch, data)
    assert loader.stats()["batches"] == len(positions)
    positions[:] = [[BAD_NODE]]
    with pytest.raises(ReadError):
        next(iter(loader))


def test_eio_leaves_a_second_iterator_alone(make, broken):
    broken(seed=1)
    positions = [[n] for n in range(8)]
    loader = make([], engine="simulated", batch_sampler=positions, batch_size=1)
    healthy = iter(loader)
    next(healthy)
    positions[0] = [BAD_NODE]
    with pytest.raises(ReadError):
        next(iter(loader))
    assert sum(1 for _ in healthy) == 7


# ---- the user's own code


def failing_at(number: int, error: BaseException) -> Callable[[Data], Data]:
    def transform(batch: Data) -> Data:
        if number in batch.input_id:
            raise error
        return batch

    return transform


def delivered_before(loader: NeighborLoader, kind: type[BaseException]) -> tuple[int, Any]:
    """How many batches came before the error, and the error."""
    delivered, iterator = 0, iter(loader)
    with pytest.raises(kind) as caught:  # noqa: PT012
        for _ in iterator:
            delivered += 1
    assert list(iterator) == []
    return delivered, caught.value


def test_a_transforms_error_comes_at_its_batchs_turn(make):
    error = LookupError("no such word")
    loader = make(transform=failing_at(40, error))
    for _ in range(2):
        assert delivered_before(loader, LookupError) == (2, error)


@pytest.mark.parametrize(
    "error",
    [StopIteration(1), StopAsyncIteration(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_would_end_a_loop_silently_becomes_a_runtime_error(make, error):
    number, caught = delivered_before(make(transform=failing_at(40, error)), RuntimeError)
    assert number == 2
    assert type(error).__name__ in str(caught)
    assert caught.__cause__ is error


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, LookupError])
def test_a_sampler_that_raises_such_an_error(make, kind):
    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0], [1], [2])
            raise kind("no more")

    loader = make(batch_sampler=Sampler(), batch_size=1)
    number, caught = delivered_before(loader, kind if kind is LookupError else RuntimeError)
    assert number == 3
    assert ("no more" if kind is LookupError else kind.__name__) in str(caught)


def test_a_damaged_graph_fails_at_its_turn(make, monkeypatch):
    from gnndrive.sampling.samplers.uniform import Uniform

    sample = Uniform.sample

    def damaged(self: Any, seeds: Any, *rest: Any) -> Any:
        if 50 in seeds.node:
            raise MemoryError("the sample of batch 3")
        return sample(self, seeds, *rest)

    monkeypatch.setattr(Uniform, "sample", damaged)
    assert delivered_before(make(), MemoryError)[0] == 3


def test_a_damaged_edge_id_is_a_store_error(make, data, tmp_path):
    """One position of edge_id names no edge; batches that do not sample it are still right."""
    damaged = gnndrive.from_data(data, tmp_path / "damaged.gnn")
    file = damaged.path / "graph" / "edge_id.npy"
    size, target = damaged.edge_id.itemsize, int(damaged.indices.size // 2)
    for wrong in (data.num_edges, -1):
        with file.open("r+b") as content:
            content.seek(DATA_OFFSET + target * size)
            content.write(wrong.to_bytes(size, "little", signed=True))
        loader = make([-1], data=gnndrive.open(tmp_path / "damaged.gnn"), buffer="80KB")
        node = int(np.searchsorted(loader.data.indptr, target, "right")) - 1
        number, error = delivered_before(loader, StoreError)
        assert number == node // 16
        assert "edge_id" in str(error)
        loader.close()


def test_close_after_an_error(make, broken):
    broken(seed=2)
    with make([], engine="simulated") as loader:
        iterator = iter(loader)
        for _ in range(BAD_BATCH):
            next(iterator)
    with pytest.raises((ReadError, ClosedError)):
        next(iterator)
    assert list(iterator) == []
    assert sys.exc_info() == (None, None, None)


# ---- a file that becomes shorter while a loader runs


LONG, EDGES = 6_000, 40_000  # nodes, edges: every array is several pages long


@pytest.fixture
def long_store(tmp_path: Path) -> Store:
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(LONG, 16, generator=draw),
        y=torch.randint(0, 5, (LONG,), generator=draw),
        year=torch.arange(LONG),
        edge_index=torch.randint(0, LONG, (2, EDGES), generator=draw),
        kind=torch.arange(EDGES),
        time=torch.arange(LONG),
    )
    return gnndrive.from_data(data, tmp_path / "s.gnn")


def nodes(store: Store, **given: Any) -> NeighborLoader:
    return NeighborLoader(store, [4, 4], batch_size=100, seed=0, **given)


LOADERS: dict[str, Callable[[Store], Any]] = {
    "mmap": lambda store: nodes(store, topology="mmap"),
    "resident": lambda store: nodes(store, topology="resident"),
    "direct": lambda store: nodes(store, topology="direct"),
    "temporal": lambda store: nodes(store, topology="mmap", time_attr="time"),
    "induced": lambda store: nodes(store, topology="mmap", subgraph_type="induced"),
    "links": lambda store: LinkNeighborLoader(
        store, [3], batch_size=100, shuffle=True, seed=0, topology="mmap"
    ),
}


def checked(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        assert torch.equal(batch.year, batch.n_id)
        yield batch


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("graph/indices.npy", "mmap"),
        ("graph/indices.npy", "temporal"),
        ("graph/indices.npy", "induced"),
        ("graph/indices.npy", "links"),
        ("graph/edge_id.npy", "mmap"),
        ("graph/edge_id.npy", "direct"),
        ("nodes/year.npy", "resident"),
        ("edges/kind.npy", "links"),
        ("nodes/x.npy", "direct"),
        ("nodes/x.npy", "induced"),
    ],
)
def test_in_the_middle_of_an_epoch(long_store, file, kind):
    with LOADERS[kind](long_store) as loader:
        iterator = iter(loader)
        for _ in range(2):
            assert torch.equal((batch := next(iterator)).year, batch.n_id)
        os.truncate(long_store.path / file, 4096)
        with pytest.raises(ReadError, match="ENODATA") as caught:
            deque(checked(iterator))
        assert caught.value.path == str(long_store.path / file)
        assert caught.value.offset >= 4096
        with pytest.raises((ReadError, StoreError), match=file):
            loader(torch.arange(50))


def test_a_batch_before_the_damage_is_delivered(long_store):
    """Of seeds without in-edges, the first batches need the first page of years only."""
    data = Data(x=torch.randn(LONG, 4), edge_index=torch.empty(2, 0, dtype=torch.int64))
    data.year = torch.arange(LONG)
    given = gnndrive.from_data(data, long_store.path.parent / "t.gnn")
    with NeighborLoader(given, [1], batch_size=64, samplers=4) as loader:
        iterator = iter(loader)
        next(iterator)
        os.truncate(given.path / "nodes" / "year.npy", 4096 + 8 * 1024)
        found: list[Any] = []
        with pytest.raises(ReadError):
            found.extend(checked(iterator))
        assert len(found) == 15, "1,024 years are left"


def test_times_that_are_read_at_the_start(long_store):
    sampler = NeighborSampler(long_store, [3], time_attr="time")
    os.truncate(long_store.path / "nodes" / "time.npy", 4096)
    with pytest.raises((ReadError, StoreError), match=r"time\.npy"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(5), torch.zeros(5)))


# ---- random damage


COUNT, ENDS = 1_500, 9_000
OPTIONS: list[dict[str, Any]] = [
    {"topology": "mmap"},
    {"topology": "resident"},
    {"topology": "direct"},
    {"topology": "direct", "neighbour_cache": "20KB"},
    {"memory": "200MB", "sweep": 1},
    {"replace": True, "topology": "mmap"},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"disjoint": True, "topology": "direct"},
    {"engine": "threads", "policy": "lru"},
    {"feature_dtype": "float16"},
]
TIMED: list[dict[str, Any]] = [
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"weight_attr": "weight"},
]


def write(folder: Path) -> list[Path]:
    """Write the stores: of one type, and of several."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(COUNT, 5, generator=draw),
        y=torch.randint(0, 7, (COUNT,), generator=draw),
        edge_index=torch.randint(0, COUNT, (2, ENDS), generator=draw),
        edge_attr=torch.randn(ENDS, 20, generator=draw),
        weight=torch.rand(ENDS, generator=draw),
        time=torch.randint(0, 9, (ENDS,), generator=draw),
        place=torch.randint(0, 9, (COUNT, 2), generator=draw),
        train_mask=torch.rand(COUNT, generator=draw) < 0.5,
    )
    given = {"homogeneous.gnn": data, "heterogeneous.gnn": make_data()}
    return [gnndrive.from_data(each, folder / name).path for name, each in given.items()]


def damaged(content: bytes, rng: random.Random, text: bool) -> bytes:
    """Change bits, values behind the header (beyond all limits, or their order), or the length."""
    start = 0 if text or rng.random() < 0.1 else min(DATA_OFFSET, len(content) - 1)
    head, data, kind = content[:start], bytearray(content[start:]), rng.randrange(6)
    at = rng.randrange(max(len(data), 1)) // 8 * 8
    if kind == 0 and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        value = rng.choice([-1, -(1 << 63), (1 << 63) - 1, 1 << 31, -1 << 31, COUNT, ENDS, 0])
        data[at : at + 8] = np.int64(value).tobytes()[: len(data) - at]
    elif kind == 2:
        numbers = np.frombuffer(bytes(data[: len(data) // 8 * 8]), rng.choice(["i4", "i8"]))
        order = np.random.default_rng(rng.randrange(1 << 30)).permutation(len(numbers))
        data[: numbers.nbytes] = numbers[order].tobytes()
    elif kind == 3:
        data[at : at + 4096] = bytes([rng.choice([0, 255, 127])]) * len(data[at : at + 4096])
    elif kind == 4:
        return content[: rng.randrange(len(content) + 1)]
    else:
        data += bytes(rng.choice([1, 8, 4096]))
    return head + bytes(data)


def overwrite(file: Path, content: bytes) -> None:
    """Write the content in place, so that maps of the file see it."""
    with open(file, "r+b") as opened:
        opened.write(content)
        os.ftruncate(opened.fileno(), len(content))


def use(path: Path, rng: random.Random, halfway: Callable[[], None]) -> None:
    """Use a store in one way, and damage it more halfway."""
    store = gnndrive.open(path)
    if rng.random() < 0.3:
        halfway()
    way = rng.randrange(7)
    if way == 1:
        reader = RowReader(store)
        try:
            for name, info in store.info.arrays.items():
                if name.startswith(("nodes/", "edges/")):
                    count = info.shape[0]
                    rows = np.array([rng.randrange(count) for _ in range(20)], np.int64)
                    reader.read([(name, rows)])
        finally:
            reader.close()
    else:
        iterate(store, rng, halfway, links=way == 2)


def iterate(store: Store, rng: random.Random, halfway: Callable[[], None], links: bool) -> None:
    """Take some batches of a loader, and one without its pipeline."""
    given = {"batch_size": 50, "seed": rng.randrange(9), "io_depth": 16, **rng.choice(OPTIONS)}
    if rng.random() < 0.3 and not ({"subgraph_type", "replace"} & given.keys()):
        given |= rng.choice(TIMED)
    if links:
        ends = None if not store.is_hetero else rng.choice([WRITES, CITES])
        given.pop("disjoint", None)
        for name in ("time_attr", "temporal_strategy"):
            given.pop(name, None)
        loader: Any = LinkNeighborLoader(store, [4, 3], edge_label_index=ends, **given)
    else:
        first = store.all_nodes()[0]
        ids = torch.arange(first.num_nodes)
        if rng.random() < 0.5 and "train" in first.split_names:
            ids = first.split("train")
        if "time_attr" in given:
            given["input_time"] = torch.full((len(ids),), 6)
        nodes: Any = (first.type, ids) if store.is_hetero else ids
        loader = NeighborLoader(store, [4, 3], input_nodes=nodes, **given)
    with loader:
        for number, batch in enumerate(islice(loader, 4)):
            batch.validate()
            if number == 1 and rng.random() < 0.3:
                halfway()
        loader([0, 1, 2])


def test_random_damage(tmp_path, seeds):
    """A store is damaged, or becomes so while a loader runs; only gnndrive's errors are raised."""
    stores = write(tmp_path)
    for seed in seeds(15):
        rng = random.Random(seed)
        path = rng.choice(stores)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        whole: dict[Path, bytes] = {}

        def change() -> None:
            file = rng.choice(files)  # noqa: B023
            content = file.read_bytes()
            whole.setdefault(file, content)  # noqa: B023
            overwrite(file, damaged(content, rng, file.suffix == ".json"))  # noqa: B023

        try:
            if rng.random() < 0.8:
                change()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(path, rng, change)
        except (StoreError, ConfigError, ReadError):
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        finally:
            for file, content in whole.items():
                overwrite(file, content)

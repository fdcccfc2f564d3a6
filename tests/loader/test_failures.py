"""Failures of the disk, of files and of the user's code surface at their batch's turn."""

import asyncio
import errno
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, ReadError, Store, StoreError
from gnndrive.disk.row_reader import RowReader
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import Faults
from tests.given import moved
from tests.loader.batches import check, simulate
from tests.loader.conftest import NODES
from tests.loader.hetero.graph import CITES, WRITES, make_data
from tests.loader.windows.damage import KINDS, damage

ROW_BYTES = 33 * 4
BAD_NODE = 100  # in batch 6 of 16 seeds each; no row of batch 5 shares its sector
BAD_BATCH = 6
BAD_OFFSET = DATA_OFFSET + BAD_NODE * ROW_BYTES


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes simulated engines fail with EIO where node 100 lies, with other faults or without."""

    def breaks(seed: int, **faults: Any) -> None:
        offsets = ((BAD_OFFSET, BAD_OFFSET + ROW_BYTES),)
        simulate(monkeypatch, seed, Faults(eio_offsets=offsets, **faults))

    return breaks


def test_eio_comes_at_its_batchs_turn(make, store, data, broken, seeds):
    """Also out of `async for`."""

    async def some(loader: NeighborLoader, delivered: list[Data]) -> None:
        async for batch in loader:
            delivered.append(batch)

    for seed in seeds(4):
        broken(seed, short=0.2, eagain=0.05, eintr=0.05, delay_turns_max=seed % 4)
        # Where all rows fit, it is the third batch of a group.
        loader = make([], engine="simulated", buffer=(40, NODES)[seed % 2] * ROW_BYTES)
        for run in (lambda *given: given[1].extend(given[0]), lambda *g: asyncio.run(some(*g))):
            delivered: list[Data] = []
            with pytest.raises(ReadError) as caught:
                run(loader, delivered)
            error = caught.value
            assert (error.path, error.errno) == (store.table("x").path, errno.EIO)
            assert abs(error.offset - BAD_OFFSET) < 16 * ROW_BYTES
            for part in (error.path, str(error.offset), "EIO", "gnndrive verify"):
                assert part in str(error)
            assert isinstance(error, OSError)
            assert len(delivered) == BAD_BATCH
            for batch in delivered:
                check(batch, data)


def test_rows_outside_the_bad_sector_can_still_be_read(make, data, broken):
    """By another iterator that runs meanwhile, and in the next epoch."""
    broken(1, delay_turns_max=3)
    around = [n for n in range(0, NODES, 2) if abs(n - BAD_NODE) > 8]
    good = [around[k : k + 20] for k in range(0, len(around), 20)]
    positions = Positions(good)
    loader = make(batch_sampler=positions, batch_size=1, num_neighbors=[], engine="simulated")
    healthy = iter(loader)
    check(next(healthy), data)
    for _ in range(2):
        positions[:] = [[BAD_NODE], around[:30]]
        with pytest.raises(ReadError):
            next(iter(loader))
        positions[:] = good
        for batch in loader:
            check(batch, data)
    assert sum(1 for _ in healthy) == len(good) - 1


# ---- the user's own code


def delivered_before(loader: NeighborLoader, kind: type[BaseException]) -> tuple[int, Any]:
    """How many batches came before the error, and the error."""
    delivered, iterator = 0, iter(loader)
    with pytest.raises(kind) as caught:  # noqa: PT012
        for _ in iterator:
            delivered += 1
    assert list(iterator) == []
    return delivered, caught.value


class Positions(list[list[int]]):
    """Batches of which each epoch takes those that there are when it begins."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self[:])


def test_a_node_that_is_not_there_is_an_error_at_its_batchs_turn(make):
    """The batches of its group that come before it are delivered."""

    def name_another(output: Any) -> Any:
        if 100 in output.metadata[0]:
            output.node = torch.full_like(output.node, NODES)
        return output

    loader = make(transform_sampler_output=name_another, buffer=NODES * ROW_BYTES)
    count, error = delivered_before(loader, IndexError)
    assert (count, "out of range: check neighbor_sampler=" in str(error)) == (6, True)


ERRORS = [StopIteration(1), StopAsyncIteration(), SystemExit(3), asyncio.CancelledError()]


@pytest.mark.parametrize("error", [LookupError(), *ERRORS], ids=lambda error: type(error).__name__)
def test_an_error_of_the_users_code_comes_at_its_batchs_turn(make, error):
    """One that would end a loop silently becomes a RuntimeError. The batch is its group's third."""

    def transform(batch: Data) -> Data:
        if 100 in batch.input_id:
            raise error
        return batch

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([each] for each in range(6))
            raise error

    silent, given = error in ERRORS, {"buffer": NODES * ROW_BYTES}
    for loader in (
        make(transform=transform, **given), make(batch_sampler=Sampler(), batch_size=1, **given),
    ):  # fmt: skip
        for _ in range(2):
            found = delivered_before(loader, RuntimeError if silent else LookupError)
            assert found[0] == 6
            assert type(error).__name__ in repr(found[1])
            if loader.transform is not None:
                assert error in (found[1], found[1].__cause__)
                assert "was raised while a batch was made" in str(found[1]) or not silent


def test_a_damaged_edge_id_is_a_store_error(make, data, tmp_path):
    """One position of edge_id names no edge; batches that do not sample it are still right."""
    damaged = gnndrive.from_data(data, tmp_path / "damaged.gnn")
    file = damaged.path / "graph" / "edge_id.npy"
    size, target = damaged.edge_id.itemsize, int(damaged.indices.size // 2)
    for wrong, buffer in (
        (data.num_edges, "80KB"),
        (-1, NODES * ROW_BYTES),
    ):  # groups in the second
        with file.open("r+b") as content:
            content.seek(DATA_OFFSET + target * size)
            content.write(wrong.to_bytes(size, "little", signed=True))
        loader = make([-1], data=gnndrive.open(tmp_path / "damaged.gnn"), buffer=buffer)
        node = int(np.searchsorted(loader.data.indptr, target, "right")) - 1
        number, error = delivered_before(loader, StoreError)
        assert number == node // 16
        assert "edge_id" in str(error)
        loader.close()


# ---- a file that becomes shorter while a loader runs


LONG, EDGES = 6_000, 40_000  # nodes, edges: every array is several pages long


@pytest.fixture
def long_store(tmp_path: Path) -> Store:
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(LONG, 16, generator=draw), year=torch.arange(LONG), time=torch.arange(LONG),
        edge_index=torch.randint(0, LONG, (2, EDGES), generator=draw), kind=torch.arange(EDGES),
    )  # fmt: skip
    return gnndrive.from_data(data, tmp_path / "s.gnn")


LOADERS: dict[str, dict[str, Any]] = {
    "mmap": {"topology": "mmap", "sweep": 1},
    "resident": {"topology": "resident"},
    "direct": {"topology": "direct"},
    "temporal": {"topology": "mmap", "time_attr": "time", "sweep": 1},
    "links": {"topology": "mmap", "shuffle": True},
    "pyg+": {"strategy": "pyg+"},
    "no gap": {"topology": "direct", "gap": 0},  # nor are rows read ahead
}


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("graph/indices.npy", "mmap"), ("graph/indices.npy", "temporal"),
        ("graph/edge_id.npy", "mmap"), ("graph/edge_id.npy", "direct"),
        ("nodes/year.npy", "resident"), ("edges/kind.npy", "links"), ("nodes/x.npy", "no gap"),
        ("nodes/x.npy", "pyg+"),
    ],
)  # fmt: skip
def test_in_the_middle_of_an_epoch(long_store, file, kind):
    made: Any = LinkNeighborLoader if kind == "links" else NeighborLoader
    with made(long_store, [4, 4], batch_size=100, seed=0, **moved(LOADERS[kind])) as loader:
        iterator = iter(loader)
        next(iterator)
        os.truncate(long_store.path / file, 4096)
        with pytest.raises(ReadError, match="ENODATA") as caught:  # noqa: PT012
            for batch in iterator:
                assert torch.equal(batch.year, batch.n_id)
        assert caught.value.path == str(long_store.path / file)
        assert caught.value.offset >= 4096
        with pytest.raises((ReadError, StoreError), match=file):
            loader(torch.arange(50))


# ---- random damage


COUNT, ENDS = 1_500, 9_000
OPTIONS: list[dict[str, Any]] = [
    {"topology": "mmap"}, {"topology": "resident"}, {"topology": "direct"},
    {"topology": "direct", "neighbour_cache": "20KB"}, {"memory": "200MB", "sweep": 1},
    {"replace": True, "topology": "mmap"}, {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"}, {"disjoint": True, "topology": "direct"},
    {"engine": "threads", "policy": "lru"}, {"feature_dtype": "float16"},
]  # fmt: skip
TIMED: list[dict[str, Any]] = [
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"weight_attr": "weight"},
]


def write(folder: Path) -> list[Path]:
    """Write the stores: of one type, and of several."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(COUNT, 5, generator=draw), y=torch.randint(0, 7, (COUNT,), generator=draw),
        edge_index=torch.randint(0, COUNT, (2, ENDS), generator=draw),
        edge_attr=torch.randn(ENDS, 20, generator=draw), weight=torch.rand(ENDS, generator=draw),
        time=torch.randint(0, 9, (ENDS,), generator=draw),
        place=torch.randint(0, 9, (COUNT, 2), generator=draw),
        train_mask=torch.rand(COUNT, generator=draw) < 0.5,
    )  # fmt: skip
    given = {"homogeneous.gnn": data, "heterogeneous.gnn": make_data()}
    return [gnndrive.from_data(each, folder / name).path for name, each in given.items()]


def use(path: Path, rng: random.Random, halfway: Callable[[], None]) -> None:
    """Read rows, or take some batches of a loader and one without its pipeline; damage the store
    more halfway."""
    store = gnndrive.open(path)
    if rng.random() < 0.3:
        halfway()
    if rng.randrange(7) == 1:
        with closing(RowReader(store)) as reader:
            for name, info in store.info.arrays.items():
                if name.startswith(("nodes/", "edges/")):
                    rows = [rng.randrange(info.shape[0]) for _ in range(20)]
                    reader.read([(name, np.array(rows, np.int64))])
        return
    given = {"batch_size": 50, "seed": rng.randrange(9), "io_depth": 16, **rng.choice(OPTIONS)}
    kind: Any = NeighborLoader
    if rng.randrange(6) == 2:
        kind, given["edge_label_index"] = LinkNeighborLoader, None
        if store.is_hetero:
            given["edge_label_index"] = rng.choice([WRITES, CITES])
        given.pop("disjoint", None)
    else:
        first = store.all_nodes()[0]
        ids = torch.arange(first.num_nodes)
        if rng.random() < 0.5 and "train" in first.split_names:
            ids = first.split("train")
        if rng.random() < 0.3 and not ({"subgraph_type", "replace"} & given.keys()):
            given |= rng.choice(TIMED)
        if "time_attr" in given:
            given["input_time"] = torch.full((len(ids),), 6)
        given["input_nodes"] = (first.type, ids) if store.is_hetero else ids
    with kind(store, [4, 3], **given) as loader:
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
        whole = {each: each.read_bytes() for each in path.rglob("*.npy")}
        change = partial(change_one, path, rng)
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
                file.write_bytes(content)


def change_one(path: Path, rng: random.Random) -> None:
    """Damage one place of a store's arrays."""
    seed = rng.randrange(1 << 30)
    damage(path, rng.choice(KINDS), seed, "x.npy", lambda file: file.stem in ("indices", "edge_id"))

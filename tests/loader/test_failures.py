"""Errors are raised in the user's loop at their batch's turn, and the loader can still be used."""

import asyncio
import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, NeighborLoader, ReadError, Store, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import check, simulate
from tests.loader.conftest import NODES, Make

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


@pytest.mark.parametrize("seed", range(12))
def test_eio_comes_at_its_batchs_turn(
    make: Make, store: Store, data: Data, broken: Callable[..., None], seed: int
) -> None:
    broken(seed, short=0.2, eagain=0.05, eintr=0.05, delay_turns_max=seed % 4)
    loader = make([], engine="simulated", buffer=f"{40 * ROW_BYTES}")
    for _ in range(3):
        delivered = 0
        iterator = iter(loader)
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for batch in iterator:
                check(batch, data)
                delivered += 1
        assert_read_error(caught.value, store)
        assert delivered == BAD_BATCH
        assert list(iterator) == []


@pytest.mark.parametrize("seed", range(4))
def test_rows_outside_the_bad_sector_can_still_be_read(
    make: Make, data: Data, broken: Callable[..., None], seed: int
) -> None:
    broken(seed, delay_turns_max=3)
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


def test_eio_comes_out_of_async_for(make: Make, store: Store, broken: Callable[..., None]) -> None:
    broken(seed=3)
    loader = make([], engine="simulated")

    async def main() -> None:
        for _ in range(2):
            delivered = []
            with pytest.raises(ReadError) as caught:  # noqa: PT012
                async for batch in loader:
                    delivered.append(batch)
            assert_read_error(caught.value, store)
            assert len(delivered) == BAD_BATCH

    asyncio.run(main())


def test_eio_leaves_a_second_iterator_alone(make: Make, broken: Callable[..., None]) -> None:
    broken(seed=1)
    positions = [[n] for n in range(8)]
    loader = make([], engine="simulated", batch_sampler=positions, batch_size=1)
    healthy = iter(loader)
    next(healthy)
    positions[0] = [BAD_NODE]
    with pytest.raises(ReadError):
        next(iter(loader))
    assert sum(1 for _ in healthy) == 7


@pytest.mark.parametrize("seed", range(8))
def test_noise_changes_nothing(
    make: Make, data: Data, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    simulate(monkeypatch, seed, NOISE)
    loader = make(engine="simulated", seed=seed, gap=0, sweep=1)
    for batch in loader:
        check(batch, data)
    assert loader.stats()["retries"] > 0


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


def test_a_transforms_error_comes_at_its_batchs_turn(make: Make) -> None:
    error = LookupError("no such word")
    loader = make(transform=failing_at(40, error))
    for _ in range(3):
        number, caught = delivered_before(loader, LookupError)
        assert number == 2
        assert caught is error


@pytest.mark.parametrize(
    "error",
    [StopIteration(1), StopAsyncIteration(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_would_end_a_loop_silently_becomes_a_runtime_error(
    make: Make, error: BaseException
) -> None:
    loader = make(transform=failing_at(40, error))
    number, caught = delivered_before(loader, RuntimeError)
    assert number == 2
    assert type(error).__name__ in str(caught)
    assert caught.__cause__ is error
    assert delivered_before(loader, RuntimeError)[0] == 2


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, StopIteration])
def test_a_sampler_that_raises_such_an_error(make: Make, kind: type[BaseException]) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> "Sampler":
            return self

        def __next__(self) -> list[int]:
            self.left -= 1
            if self.left < 0:
                raise kind
            return [self.left]

    loader = make(batch_sampler=Sampler(), batch_size=1)
    if kind is StopIteration:
        assert len(list(loader)) == 3
    else:
        number, caught = delivered_before(loader, RuntimeError)
        assert number == 3
        assert kind.__name__ in str(caught)


def test_a_damaged_graph_fails_at_its_turn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnndrive.sampling.samplers.uniform import Uniform

    sample = Uniform.sample

    def damaged(self: Any, seeds: Any, *rest: Any) -> Any:
        if 50 in seeds.node:
            raise MemoryError("the sample of batch 3")
        return sample(self, seeds, *rest)

    monkeypatch.setattr(Uniform, "sample", damaged)
    assert delivered_before(make(), MemoryError)[0] == 3


def test_a_damaged_edge_id_is_a_store_error(make: Make, data: Data, tmp_path: Path) -> None:
    """One position of edge_id names no edge; batches that do not sample it are still right."""
    damaged = gnndrive.from_data(data, tmp_path / "damaged.gnn")
    file = damaged.path / "graph" / "edge_id.npy"
    size, target = damaged.edge_id.itemsize, int(damaged.indices.size // 2)
    for wrong in (data.num_edges, -1):
        with file.open("r+b") as content:
            content.seek(DATA_OFFSET + target * size)
            content.write(wrong.to_bytes(size, "little", signed=True))
        loader = make([-1], data=gnndrive.open(tmp_path / "damaged.gnn"), batch_size=1)
        node = int(np.searchsorted(loader.data.indptr, target, "right")) - 1
        number, error = delivered_before(loader, StoreError)
        assert number == node
        assert "edge_id" in str(error)
        loader.close()


def test_close_after_an_error(make: Make, broken: Callable[..., None]) -> None:
    broken(seed=2)
    with make([], engine="simulated") as loader:
        iterator = iter(loader)
        for _ in range(BAD_BATCH):
            next(iterator)
    with pytest.raises((ReadError, ClosedError)):
        next(iterator)
    assert list(iterator) == []
    assert sys.exc_info() == (None, None, None)

"""Calls from a loader's own threads, which would wait for themselves: an error that says so."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnndrive import ConfigError, NeighborLoader
from tests.loader.conftest import Make

CALLS: dict[str, Callable[[NeighborLoader], Any]] = {
    "close": lambda loader: loader.close(),
    "iterate": lambda loader: list(loader),
    "begin": iter,
}


@pytest.mark.parametrize("call", CALLS)
def test_in_a_transform(make: Make, call: str) -> None:
    loaders: list[NeighborLoader] = []

    def transform(batch: Any) -> Any:
        CALLS[call](loaders[0])
        return batch

    loaders.append(make(transform=transform))
    with pytest.raises(ConfigError, match="own threads"):
        next(iter(loaders[0]))


def test_an_iterator_in_its_own_transform(make: Make) -> None:
    iterators: list[Iterator[Any]] = []

    def transform(batch: Any) -> Any:
        if len(iterators) > 1:
            next(iterators[1])
        return batch

    loader = make(transform=transform)
    iterators.append(iter(loader))
    next(iterators[0])
    iterators.append(iterators[0])
    with pytest.raises(ConfigError, match="own threads"):
        list(iterators[0])


@pytest.mark.parametrize("call", CALLS)
def test_in_worker_init_fn(make: Make, call: str) -> None:
    loaders: list[NeighborLoader] = []
    loaders.append(make(num_workers=2, worker_init_fn=lambda _: CALLS[call](loaders[0])))
    with pytest.raises(ConfigError, match="own threads"):
        next(iter(loaders[0]))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("at", [0, 40])  # in the user's thread, in the loop thread
def test_in_a_sampler_of_the_user(make: Make, call: str, at: int) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            for number in range(100):
                if number == at:
                    CALLS[call](loaders[0])
                yield number

        def __len__(self) -> int:
            return 100

    loaders: list[NeighborLoader] = []
    loaders.append(make(sampler=Sampler()))
    with pytest.raises((ConfigError, RuntimeError), match=r"own threads|was closed"):
        list(loaders[0])


def test_another_loader_may_be_used_in_a_transform(make: Make) -> None:
    other = make(seed=0)

    def transform(batch: Any) -> Any:
        batch.other = next(iter(other)).num_nodes
        return batch

    assert all(batch.other > 16 for batch in make(transform=transform))


def test_stats_in_a_transform(make: Make) -> None:
    loaders: list[NeighborLoader] = []

    def transform(batch: Any) -> Any:
        batch.so_far = loaders[0].stats()["batches"]
        return batch

    loaders.append(make(transform=transform))
    assert [batch.so_far for batch in loaders[0]] == list(range(len(loaders[0])))

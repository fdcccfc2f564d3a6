"""The same seed gives the same batches with any number of tasks and with any engine."""

from collections.abc import Callable
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_same, simulate
from tests.loader.conftest import NODES, Make

EPOCHS = 2


@pytest.fixture
def epochs(make: Make) -> Callable[..., list[list[Data]]]:
    """Runs two epochs with seed 3 and the arguments given."""

    def run(**arguments: Any) -> list[list[Data]]:
        given = {"shuffle": True, "seed": 3, "engine": "threads"} | arguments
        loader = make(**given)
        return [list(loader) for _ in range(EPOCHS)]

    return run


def assert_same_epochs(one: list[list[Data]], other: list[list[Data]]) -> None:
    for left, right in zip(one, other, strict=True):
        for batch, again in zip(left, right, strict=True):
            assert_same(batch, again)


@pytest.mark.parametrize("engine", ["uring", "threads", "simulated"])
@pytest.mark.parametrize("extractors", [1, 4])
@pytest.mark.parametrize("samplers", [1, 4])
def test_neither_tasks_nor_engines_change_a_batch(
    epochs: Callable[..., list[list[Data]]],
    monkeypatch: pytest.MonkeyPatch,
    samplers: int,
    extractors: int,
    engine: str,
) -> None:
    simulate(monkeypatch, seed=10 * samplers + extractors, faults=NOISE)
    expected = epochs(samplers=1, extractors=1)
    assert len(expected[0]) == NODES // 16
    assert_same_epochs(expected, epochs(samplers=samplers, extractors=extractors, engine=engine))


@pytest.mark.parametrize(
    "arguments",
    [
        {"io_depth": 1},
        {"io_depth": 128},
        {"buffer": "1MB"},
        {"extracting_queue": 1, "training_queue": 1},
        {"extracting_queue": 40, "training_queue": 40},
        {"num_workers": 3},
        {"gap": 0},
        {"gap": "64KB"},
    ],
    ids=str,
)
def test_neither_depth_nor_queues_nor_memory_change_a_batch(
    epochs: Callable[..., list[list[Data]]], arguments: dict[str, Any]
) -> None:
    assert_same_epochs(epochs(), epochs(**arguments))


@pytest.mark.parametrize("seed", range(4))
def test_out_of_order_the_batches_are_the_same(
    epochs: Callable[..., list[list[Data]]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    faults = Faults(short=0.3, eagain=0.1, delay_turns_max=20)
    simulate(monkeypatch, seed=seed, faults=faults)
    mixed = epochs(in_order=False, engine="simulated")
    for expected, got in zip(epochs(), mixed, strict=True):
        place = {tuple(batch.input_id.tolist()): batch for batch in got}
        assert len(place) == len(got)
        for batch in expected:
            assert_same(batch, place[tuple(batch.input_id.tolist())])


def test_two_iterators_at_once_do_not_disturb_each_other(
    make: Make, epochs: Callable[..., list[list[Data]]]
) -> None:
    loader = make(shuffle=True, seed=3)
    first, second = zip(*zip(loader, loader, strict=True), strict=True)
    assert_same_epochs(epochs(), [list(first), list(second)])

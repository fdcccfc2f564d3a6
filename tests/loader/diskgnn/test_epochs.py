"""Epochs of a loader that replays: which recording, in which order, resumed, several at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive.common.errors import ClosedError, ConfigError
from tests.loader.batches import assert_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, loader_of
from tests.soak import product


def seeds_of(batches: Any) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in batches]


def assert_all_same(left: list[Data], right: list[Data]) -> None:
    for one, other in zip(left, right, strict=True):
        assert_same(one, other)


def test_epochs_replay_the_recordings_in_turn(replay):
    """The first time as they were recorded, then in orders of their own."""
    loader = replay()
    epochs = [seeds_of(loader) for _ in range(6)]
    assert all(len(epoch) == BATCHES for epoch in epochs)
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted(epochs[number % EPOCHS])
        assert sorted(epoch) != sorted(epochs[(number + 1) % EPOCHS])
    assert len({json.dumps(epoch) for epoch in epochs}) == 6, "two epochs have one order"
    assert [seeds_of(replay()) for _ in range(2)] == [epochs[0]] * 2
    other = replay(seed=8)
    again = [seeds_of(other) for _ in range(4)]
    assert again[:EPOCHS] == epochs[:EPOCHS], "a recording is drawn with the pack's seed"
    assert again[EPOCHS:] != epochs[EPOCHS:4], "an order depends on the loader's seed"


def test_without_a_seed_epochs_differ_too(replay):
    """The pack says what the first epochs hold; later orders depend on torch's generator."""
    known = replay()
    first = [seeds_of(known) for _ in range(EPOCHS)]
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = replay(seed=None)
        assert [seeds_of(loader) for _ in range(EPOCHS)] == first
        orders.append([seeds_of(loader) for _ in range(EPOCHS)])
    assert orders[0] == orders[1] != first


def test_any_epoch_may_be_the_first(replay):
    loader, other = replay(), replay()
    epochs = [list(loader) for _ in range(5)]
    for number in (4, 2, 0):
        other.set_epoch(number)
        assert_all_same(list(other), epochs[number])


@product("batches,epoch", [0, 1, 7, BATCHES], [3, 0])
def test_another_loader_goes_on(replay, epoch, batches):
    whole = replay()
    epochs = [list(whole) for _ in range(epoch + 2)]
    loader = replay()
    loader.set_epoch(epoch)
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(batches)]
    if batches == BATCHES:
        assert next(iterator, None) is None
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = replay(buffer="100KB", samplers=3)
    resumed.load_state_dict(state)
    if batches < BATCHES:
        assert_all_same(begun + list(resumed), epochs[epoch])
    assert_all_same(list(resumed), epochs[epoch + 1])


def test_the_state_of_another_loader_is_refused(replay, store):
    state = replay().state_dict()
    with (
        loader_of(store, ARGUMENTS, strategy="gnndrive") as drawing,
        pytest.raises(ConfigError, match="strategy was 'diskgnn' and is 'gnndrive'"),
    ):
        drawing.load_state_dict(state)


def test_two_iterators_at_once(replay, graph):
    """Of one epoch each, in one thread; the second has no hot rows of its own."""
    alone = replay()
    epochs = [list(alone) for _ in range(2)]
    loader = replay(buffer="60KB")
    both = list(zip(loader, loader, strict=True))
    for at, (one, other) in enumerate(both):
        assert_same(one, epochs[0][at])
        assert_same(other, epochs[1][at])
        check_rows(one, graph)
    assert len(both) == BATCHES
    third = [iter(loader) for _ in range(3)]
    for iterator in third:
        next(iterator)
    loader.close()
    for iterator in third:
        with pytest.raises(ClosedError):
            list(iterator)


@product("engine,after", ["uring", "threads", "simulated"], [0, 1, 5])
def test_leaving_in_the_middle_and_beginning_again(replay, after, engine, graph):
    alone = replay()
    epochs = [list(alone) for _ in range(4)]
    loader = replay(buffer="60KB", engine=engine)
    for number in range(4):
        iterator = iter(loader)
        for at in range(after if number % 2 else BATCHES):
            batch = next(iterator)
            assert_same(batch, epochs[number][at])
            check_rows(batch, graph)
        del iterator


def test_batches_in_any_order(replay, graph):
    loader, plain = replay(in_order=False, samplers=4), replay()
    for _ in range(3):
        batches = list(loader)
        for batch in batches:
            check_rows(batch, graph)
        assert sorted(seeds_of(batches)) == sorted(seeds_of(plain))


def test_features_of_another_dtype(replay, graph):
    for batch in replay(feature_dtype=torch.float16):
        assert torch.equal(batch.x, graph.x[batch.n_id].half())


def test_stages_of_all_sizes(replay, graph):
    for samplers, extracting, training in ((1, 1, 1), (4, 6, 4), (2, 1, 3)):
        loader = replay(
            samplers=samplers, extracting_queue=extracting, training_queue=training, buffer="90KB"
        )
        batches = list(loader)
        assert len(batches) == BATCHES
        for batch in batches:
            check_rows(batch, graph)

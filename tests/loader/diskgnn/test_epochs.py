"""Epochs of a loader that replays: which recording, in which order, resumed, several at once."""

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import Store
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.plan.costs import Disk
from tests.loader.batches import assert_all_same, assert_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, loader_of
from tests.soak import product


def seeds_of(batches: Any) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in batches]


def test_epochs_replay_the_recordings_in_turn(replay):
    """The first time as they were recorded, then in orders of their own."""
    loader = replay()
    epochs = [seeds_of(loader) for _ in range(6)]
    assert all(len(epoch) == BATCHES for epoch in epochs)
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted(epochs[number % EPOCHS])
        assert sorted(epoch) != sorted(epochs[(number + 1) % EPOCHS])
    assert len({json.dumps(epoch) for epoch in epochs}) == 6, "two epochs have one order"
    other = replay(seed=8)
    again = [seeds_of(other) for _ in range(4)]
    assert again[:EPOCHS] == epochs[:EPOCHS], "a recording is drawn with the pack's seed"
    assert again[EPOCHS:] != epochs[EPOCHS:4], "an order depends on the loader's seed"
    orders = []
    for _ in range(2):  # without a seed, on torch's generator
        torch.manual_seed(5)
        loader = replay(seed=None)
        assert [seeds_of(loader) for _ in range(EPOCHS)] == epochs[:EPOCHS]
        orders.append([seeds_of(loader) for _ in range(EPOCHS)])
    assert orders[0] == orders[1] != epochs[EPOCHS:4]


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
    resumed = replay(buffer="100KB", samplers=3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    if batches < BATCHES:
        assert_all_same(begun + list(resumed), epochs[epoch])
    assert_all_same(list(resumed), epochs[epoch + 1])


def test_two_iterators_at_once(replay, graph):
    """Of one epoch each, in one thread; the second has no hot rows of its own."""
    alone = replay()
    epochs = [list(alone) for _ in range(2)]
    loader = replay(buffer="60KB")
    both = list(zip(loader, loader, strict=True))
    assert len(both) == BATCHES
    for at, (one, other) in enumerate(both):
        assert_same(one, epochs[0][at])
        assert_same(other, epochs[1][at])
        check_rows(one, graph)
    third = [iter(loader) for _ in range(3)]
    for iterator in third:
        next(iterator)
    loader.close()
    for iterator in third:
        with pytest.raises(ClosedError):
            list(iterator)


def test_batches_in_any_order(replay, graph):
    loader, plain = replay(in_order=False, samplers=4), replay()
    for _ in range(2):
        batches = list(loader)
        for batch in batches:
            check_rows(batch, graph)
        assert sorted(seeds_of(batches)) == sorted(seeds_of(plain))


def least_of(error: ConfigError, name: str) -> int:
    found = re.search(rf'give at least {name}="([^"]+)"', str(error))
    assert found is not None, error
    return parse_size(found[1], name)


@pytest.mark.parametrize("name", ["memory", "buffer", "device_memory"])
def test_the_least_that_is_named_works(replay, graph, name):
    """Less does not, and a second iterator does not fit into it."""
    if name == "device_memory":
        replay = partial(replay, device="simulated-cuda", memory="50MB")
    with pytest.raises(ConfigError) as caught:
        replay(**{name: "1KB"}).plan()
    least = least_of(caught.value, name)
    with pytest.raises(ConfigError):
        replay(**{name: int(least * 0.98)}).plan()
    loader = replay(**{name: least})
    batches = iter(loader)
    check_rows(next(batches), graph)
    if name == "memory":
        with pytest.raises(ConfigError, match="second live iterator"):
            iter(loader)
    for batch in batches:
        check_rows(batch, graph)


def test_index_pointers_are_not_counted_because_none_are_read(store, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("index pointers are read")

    monkeypatch.setattr(Store, "read_pointers", refuse)
    with loader_of(gnndrive.open(store.path), ARGUMENTS, memory="6MB") as loader:
        assert len(list(loader)) == BATCHES


def test_more_memory_holds_more(replay):
    """With room for all hot rows the fewest are read. What the plan prints of a batch's rows adds
    up to what batches use."""
    read: list[float] = []
    for buffer in ("46KB", "80KB", "1MB"):
        loader = replay(buffer=buffer)
        batches: list[Any] = [*loader, *loader]
        plan = loader.plan()
        read.append(float(loader.stats()["rows_loaded"]))
        assert len({table.places for table in plan.tables}) == 1
        assert ("hot rows for which there is no room" in str(plan)) is (buffer == "46KB")
        said = re.findall(r"([\d.]+ [KM]?B) (?:from|of|chunk)", plan.levels[0])
        total = sum(parse_size(number.replace(" ", ""), "said") for number in said)
        mean = sum(80 * b.num_nodes + 64 * b.num_edges for b in batches) / len(batches)
        assert abs(total - mean) < 0.1 * mean
    assert read[-1] == min(read) < 0.8 * read[0]


def test_hot_rows_without_room_are_counted_in_the_requests_that_read_them(replay):
    """Not in one a row: rows that lie close together are read at once."""
    loader = replay(buffer="46KB")
    assembly = replay(buffer="46KB")._assembly()
    request = assembly.request()
    request = replace(request, disk=Disk(1.0, 0.0, request.disk.gap_bytes))
    of_requests = assembly.scheme.planner(request)
    predicted = of_requests.slots.batch_seconds(loader.plan(), 1.0)[0]["disk"]
    list(loader)  # residents are read once
    before = float(loader.stats()["requests"])
    list(loader)
    done = (float(loader.stats()["requests"]) - before) / BATCHES
    assert done / 2 < predicted < 2 * done


@pytest.mark.parametrize("name", ["memory", "buffer"])
def test_ranks_divide_the_budget_and_share_nothing(replay, name):
    nbytes = {"memory": 5_000_000, "buffer": 60_000}[name]
    assembly = replay(**{name: nbytes})._assembly()
    request, make_planner = assembly.request(), assembly.scheme.planner
    one = make_planner(request).plan()
    several = replace(request, ranks=3, shared=True)
    plan = make_planner(replace(several, **{name: 3 * nbytes})).plan()
    assert not plan.shared
    assert plan.tables == one.tables
    assert [line.nbytes for line in plan.lines] == [line.nbytes for line in one.lines]
    assert plan.host_bytes == 3 * one.host_bytes == 3 * plan.total_bytes
    with pytest.raises(ConfigError, match="is too little") as caught:
        make_planner(replace(several, **{name: 30_000})).plan()
    named = least_of(caught.value, name)
    assert make_planner(replace(several, **{name: named})).plan().tables[0].places == 1
    with pytest.raises(ConfigError):
        make_planner(replace(several, **{name: int(0.98 * named)})).plan()

"""Epochs of windows: the same for the same seed, whatever loads them, and resumed anywhere."""

import copy
import json
import pickle
import re
from collections import Counter, deque
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import NeighborLoader
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda
from gnndrive.common.errors import ConfigError
from gnndrive.store.partitioned.partition import partition
from gnndrive.strategies.windows.scheme import PASSES_MAX, passes_for
from gnndrive.testing.faults import NOISE
from tests.loader.batches import assert_all_same, simulate
from tests.loader.ranks.conftest import AsRank
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    MARIUS,
    MEMORY,
    NODES,
    PARTS,
    WINDOWS,
    inputs_of,
    make_graph,
    make_store,
    windows_of,
)
from tests.soak import product

WAYS: list[dict[str, Any]] = [
    {"samplers": 1, "extracting_queue": 12, "training_queue": 7, "gap": 0},
    {"samplers": 5, "extracting_queue": 1, "training_queue": 1, "extractors": 1, "io_depth": 1},
    {"engine": "threads", "buffer": "1MB", "num_workers": 3},
    {"engine": "simulated", "memory": "80MB"},
    {"engine": "uring", "device": "simulated-cuda"},
    {"engine": "threads", "device": "simulated-cuda"},
    {"engine": "simulated", "device": "simulated-cuda"},
]
WHOLE = {"input_nodes": torch.arange(0, NODES, 3), "drop_last": True, "batch_size": 20}
OWN = {"ranks": True, "megabatch": 2, "per_rank": True}
RESUMED = [{}, WHOLE, {"passes": 2}, {"seed": None}, MARIUS, MARIUS | {"static": 0.02}]


def test_batches_depend_on_the_seed_alone(make, monkeypatch, seeds):
    """Not on threads, queues, the disk's noise and a device's delays."""
    made = SimulatedCuda.__init__
    plain = make()
    epochs = [list(plain) for _ in range(2)]
    for arguments, seed in zip(WAYS, seeds(len(WAYS)), strict=True):
        simulate(monkeypatch, seed, NOISE)
        monkeypatch.setattr(SimulatedCuda, "__init__", lambda self, seed=seed: made(self, seed))
        loader = make(**arguments)
        for epoch in epochs:
            assert_all_same(list(loader), epoch)
    assert inputs_of(make(seed=6)) != inputs_of(epochs[0])


def test_copies_and_pickles_draw_the_same_in_any_epoch(make: Make) -> None:
    loader = make()
    epochs = [list(loader) for _ in range(3)]
    pickled = pickle.dumps(loader)
    assert len(pickled) < NODES * 36, "the partitions are not in it"
    for other, number in ((copy.copy(loader), 0), (pickle.loads(pickled), 2)):
        other.set_epoch(number)
        assert_all_same(list(other), epochs[number])
        other.close()


# ---- resuming


def places(loader: NeighborLoader) -> list[int]:
    """Numbers of batches after which an epoch is broken off: none, between two windows, before the
    last batch of a window, before the last batch of all and after it."""
    window = windows_of(loader)[1]
    return [0, window.first, window.first + window.count - 1, len(loader) - 1, len(loader)]


@product("arguments,place", RESUMED, range(5))
def test_another_loader_goes_on(make: Make, place: int, arguments: dict[str, Any]) -> None:
    done = places(make(**{**arguments, "seed": 5}))[place]
    torch.manual_seed(9)
    loader = make(**arguments)
    first, following = list(loader), list(loader)
    torch.manual_seed(9)
    loader = make(**arguments)
    finished = done == len(loader)
    begun = list(loader if finished else islice(loader, done))
    resumed = make(**arguments, samplers=3, engine="threads")
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert resumed.state_dict()["batches"] == (0 if finished else done)
    assert resumed.epoch == finished
    if not finished:
        assert_all_same(begun + list(resumed), first)
    if "seed" not in arguments:
        assert_all_same(list(resumed), following)


def test_windows_that_are_done_are_not_loaded(make: Make) -> None:
    loader = make()
    last = windows_of(loader)[-1]
    loader.load_state_dict(loader.state_dict() | {"batches": last.first + 1})
    assert len(list(loader)) == last.count - 1
    assert loader.stats()["windows"] == 1


@pytest.mark.parametrize(
    ("arguments", "name", "value", "said"),
    [
        ({}, "megabatch", 4, "megabatch was 3 and is 4."),
        ({}, "static", 0, "static was 9 and is 0"),
        ({}, "passes", 2, "passes was 1 and is 2"),
        ({}, "passes", "auto", "passes was 1 and is 'auto'"),
        ({}, "strategy", "marius", "strategy was "),
        (MARIUS, "order", "dispersed", "order was "),
    ],
)
def test_other_arguments_are_refused_by_name(make, arguments, name, value, said):
    state = make(**arguments).state_dict()
    other = make(**{**arguments, name: value})
    with pytest.raises(ConfigError, match=f"other settings: .*{re.escape(said)}"):
        other.load_state_dict(state)
    make(**arguments).load_state_dict(state)


def test_a_loader_takes_over_the_size(make: Make) -> None:
    """If megabatch= does not say another one, because the memory may differ from that of the saving
    loader, and if no epoch has begun."""
    saving, whole, begins = make(), list(make()), make(megabatch=None)
    list(begins)
    begun = list(islice(saving, 8))
    resumed = make(megabatch=None)
    assert len(resumed) != len(whole), "it would have one window"
    resumed.load_state_dict(saving.state_dict())
    assert_all_same(begun + list(resumed), whole)
    assert len(resumed) == len(whole), "it stays"
    again = make(megabatch=None)
    again.load_state_dict(resumed.state_dict())
    assert len(again) == len(whole)
    with pytest.raises(ConfigError, match="megabatch was 3 and is 12"):
        begins.load_state_dict(saving.state_dict())
    assert len(list(begins)) == len(begins)


def test_a_size_that_does_not_fit_is_refused(make: Make) -> None:
    state = make(megabatch=6).state_dict()
    loader = make(megabatch=None, buffer="9KB")
    before = len(loader)
    with pytest.raises(ConfigError, match=r"saved with megabatch=6: buffer=9 KB is too little"):
        loader.load_state_dict(state)
    assert len(loader) == before == len(list(loader)), "a state that is refused changes nothing"


def test_a_damaged_state_is_refused(make: Make) -> None:
    state, loader = make().state_dict(), make(megabatch=None)
    for megabatch in (0, True, "3", 1.5, None, PARTS + 1, [3]):
        settings = state["settings"] | {"megabatch": megabatch}
        with pytest.raises(ConfigError, match="megabatch was"):
            loader.load_state_dict(state | {"settings": settings})
    for passes in (0, True, "3", 1.5):
        with pytest.raises(ConfigError, match="the state is damaged"):
            loader.load_state_dict(state | {"passes": passes})


def test_other_partitions_are_refused(tmp_path: Path, make: Make) -> None:
    store = make_store(make_graph(), tmp_path)
    state = make(data=store).state_dict()
    partition(store, PARTS, "random", MEMORY, seed=1, name="other")
    partition(store, PARTS, "random", MEMORY, name="same")
    with pytest.raises(ConfigError, match=r"other settings: partitioned was '\w+' and is '\w+'\."):
        make(data=store, partitioned="other").load_state_dict(state)
    make(data=store, partitioned="same").load_state_dict(state)


# ---- passes="auto": one in the first epoch, which decides


def measured(loader: NeighborLoader, load_s: float) -> None:
    """Have each window of the loader taken so many seconds to load, and its batches one."""
    seconds = loader._runtime.counters.window_seconds
    assert len(seconds) % WINDOWS == 0
    assert all(load > 0 and compute > 0 for load, compute in seconds)
    loader._runtime.counters.window_seconds = deque([(load_s, 1.0)] * len(seconds))


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [
        ([], None),
        ([(0.0, 1.0)], 1),
        ([(2.99, 1.0)], 2),
        ([(3.0, 1.0)], 3),
        ([(0.0, 0.0)], PASSES_MAX),
        ([(1.0, 5e-324)], PASSES_MAX),
        ([(4.0, 1.0), (100.0, 90.0), (0.1, 0.9)], 4),
        ([(4.0, 1.0), (6.0, 3.0)], 2),
    ],
)
def test_passes_follow_from_medians(seconds: list[tuple[float, float]], passes: int | None) -> None:
    assert passes_for(seconds) == passes


@pytest.mark.parametrize("load_s", [0.3, 3.7])
def test_the_first_epoch_decides(make: Make, load_s: float) -> None:
    """Unless it is broken off."""
    loader, passes = make(passes="auto"), max(int(load_s), 1)
    once = len(loader)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert len(loader) == once
    loader.set_epoch(0)
    assert_all_same(list(loader), list(make()))
    loader._runtime.counters.window_seconds = deque([(load_s, 1.0)])
    for _ in range(2):
        assert len(loader) == passes * once
        found = Counter(number for each in inputs_of(loader) for number in each)
        assert found == Counter(dict.fromkeys(range(NODES), passes))
        loader._runtime.counters.window_seconds = deque([(99.0, 1.0)])  # changes nothing any more


def test_a_resumed_loader_has_the_same_passes(make: Make) -> None:
    def resumed(of: NeighborLoader) -> NeighborLoader:
        other = make(passes="auto")
        other.load_state_dict(json.loads(json.dumps(of.state_dict())))
        assert len(other) == 2 * once
        return other

    loader = make(passes="auto")
    once = len(loader)
    list(loader)
    measured(loader, 2.0)
    between, iterator = resumed(loader), iter(loader)
    begun = list(islice(iterator, once + 2))
    middle, rest = resumed(loader), list(iterator)
    assert_all_same(list(middle), rest)
    assert_all_same(list(between), begun + rest)
    assert_all_same(list(resumed(middle)), list(loader))


def test_a_state_of_the_first_epoch(make: Make) -> None:
    """Its epoch has one pass, whatever the loader that goes on has decided before."""
    whole, saving = list(make()), make(passes="auto")
    begun = list(islice(saving, 5))
    state = saving.state_dict()
    fresh, decided = make(passes="auto"), make(passes="auto")
    list(decided)
    measured(decided, 4.0)
    assert len(decided) == 4 * len(whole)
    for loader in (fresh, decided):
        loader.load_state_dict(state)
        assert len(loader) == len(whole)
        assert_all_same(begun + list(loader), whole)


def test_draws_of_ranks_differ(make: Make, graph: Data, as_rank: AsRank) -> None:
    """Of a seed that two ranks have, because there are fewer windows with seeds than ranks."""
    drawn = []
    for rank in range(2):
        as_rank(rank, 2)
        nodes = graph.edge_index[1].mode().values.reshape(1)  # it has the most neighbours
        drawn.append([batch.e_id.tolist() for batch in
                      make(ranks=True, input_nodes=nodes, passes=9, per_rank=True)])  # fmt: skip
    assert len(drawn[0]) == len(drawn[1]) == 9
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    "given", [{}, WHOLE, {"passes": 2}, MARIUS, {"edge_label_index": True, **MARIUS}]
)
@pytest.mark.parametrize("done", [0, 5])
def test_ranks_yield_the_batches_of_one_process(make, graph, as_rank, given, done):
    """From any batch on, with any number of ranks, in the windows of one process."""
    if "edge_label_index" in given:
        given = given | {"edge_label_index": graph.edge_index[:, ::9], "neg_sampling": "binary"}
    saving = make(**given)
    begun = iter(saving)
    whole = [next(begun) for _ in range(done)]
    state = saving.state_dict()
    whole += list(begun)
    for world in (2, 3):
        ranks = []
        for rank in range(world):
            as_rank(rank, world)
            loader = make(ranks=True, **given)
            if done:
                loader.load_state_dict(state)
            ranks.append(list(loader))
            assert len(ranks[-1]) == len(ranks[0]) == loader._assembly().steps(done, 5)
        found = [batch for step in zip(*ranks, strict=True) for batch in step]
        wanted = whole[done : done + len(found)]
        assert_all_same(found[: len(wanted)], wanted)
        left_out = len(whole) - done - len(wanted)
        assert left_out in (range(world) if given is WHOLE else [0])
        pads = [batch.n_id.tolist() for batch in found[len(wanted) :]]
        assert all(pad in [batch.n_id.tolist() for batch in wanted] for pad in pads)


@product("done,world", [0, 1, 4], [2, 3])
def test_as_many_ranks_go_on(make: Make, as_rank: AsRank, world: int, done: int) -> None:
    states = []
    for rank in range(world):
        as_rank(rank, world)
        whole, saving = list(make(**OWN)), make(**OWN)
        begun = list(islice(saving, done))
        states.append(json.loads(json.dumps(saving.state_dict())))
        assert states[-1] == states[0], "it is the same on all ranks"
        resumed = make(**OWN | {"megabatch": None})
        resumed.load_state_dict(states[0])
        rest = list(resumed)
        assert_all_same([*begun, *rest], whole)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1), (1, 2)])
def test_another_number_of_ranks_is_refused(make, as_rank, before, after):
    """In the middle of an epoch; after it, any number begins the next one."""
    as_rank(0, before)
    saving = make(**OWN)
    iterator = iter(saving)
    next(iterator)
    middle = saving.state_dict()
    list(iterator)
    end = saving.state_dict()
    as_rank(0, after)
    resumed = make(**OWN)
    said = f"dealt to {before} ranks and are dealt to {after} now.* per_rank={before > 1}, or"
    with pytest.raises(ConfigError, match=said):
        resumed.load_state_dict(middle)
    resumed.load_state_dict(end)
    assert resumed.epoch == 1
    assert list(resumed)


@pytest.mark.parametrize(
    ("world", "arguments", "said"),
    [
        (3, OWN | {"megabatch": 6}, "has 2 windows for 3 ranks.* a smaller megabatch= than"),
        (PARTS + 1, {"per_rank": True}, r"12 windows for 13 ranks.* partition the store into m"),
        # The memory that each finds, and the seconds that it measures, may differ.
        (2, {"buffer": "200KB"}, r"as large on all ranks: give megabatch=\d+, which"),
        (2, {"megabatch": 2, "passes": "auto"}, "have to yield as many batches: give a number"),
    ],
)
def test_what_ranks_cannot_have_is_refused(make, as_rank, world, arguments, said):
    as_rank(0, world)
    with pytest.raises(ConfigError, match=said):
        len(make(**{"ranks": True, "megabatch": None, **arguments}))


def test_a_host_service_has_the_windows_that_ranks_share(make, as_rank, monkeypatch):
    """host_service="auto" goes without one if they have windows of their own."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    as_rank(0, 2, group=object())
    with pytest.raises(ConfigError, match="per_rank=True' each rank has windows of its own: give"):
        make(host_service=True, **OWN).plan()
    for given, copies in ({**OWN, "host_service": "auto"}, 2), (OWN | {"per_rank": False}, 1):
        plan = make(**given, memory="100MB").plan()
        assert (plan.ranks, plan.shared) == (2, copies == 1)
        found = {line.what: line.copies for line in plan.lines}
        items = "feature buffer", "held rows", "window graphs"
        assert [found[what] for what in items] == [copies] * len(items)

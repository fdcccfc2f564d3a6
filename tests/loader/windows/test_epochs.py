"""Epochs of windows: the same for the same seed, whatever loads them, and resumed anywhere."""

from __future__ import annotations

import copy
import json
import pickle
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError
from gnndrive.store.partitioned.partition import partition
from gnndrive.testing.faults import NOISE
from tests import forked
from tests.loader.batches import assert_same, simulate
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    ARGUMENTS,
    MEMORY,
    NODES,
    PARTS,
    inputs_of,
    make_graph,
    make_store,
    windows_of,
)

SOME = torch.arange(0, NODES, 3)


def assert_all_same(left: list[Data], right: list[Data]) -> None:
    for one, other in zip(left, right, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    "arguments",
    [
        {"samplers": 1},
        {"samplers": 5, "extractors": 1},
        {"extracting_queue": 1, "training_queue": 1},
        {"extracting_queue": 12, "training_queue": 7},
        {"io_depth": 1},
        {"engine": "threads"},
        {"engine": "simulated"},
        {"buffer": "1MB"},
        {"gap": 0},
        {"memory": "80MB"},
        {"device": "simulated-cuda"},
    ],
)
def test_batches_depend_on_the_seed_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    simulate(monkeypatch, 3, NOISE)
    one, other = make(passes=2), make(passes=2, **arguments)
    for _ in range(2):
        assert_all_same(list(one), list(other))


def test_other_seeds_draw_other_batches(make: Make) -> None:
    assert inputs_of(make()) != inputs_of(make(seed=6))
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = make(seed=None)
        drawn.append([inputs_of(loader) for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_any_epoch_may_be_the_first(make: Make) -> None:
    loader, other = make(), make()
    epochs = [list(loader) for _ in range(4)]
    for number in (3, 1, 0):
        other.set_epoch(number)
        assert_all_same(list(other), epochs[number])


def test_copies_and_pickles_draw_the_same(make: Make) -> None:
    loader = make()
    first = list(loader)
    pickled = pickle.dumps(loader)
    assert len(pickled) < NODES * 36, "the partitions are not in it"
    for other in (copy.copy(loader), pickle.loads(pickled)):
        other.set_epoch(0)
        assert_all_same(list(other), first)
        other.close()


# ---- resuming


def places(loader: NeighborLoader) -> list[int]:
    """Numbers of batches after which an epoch is broken off: none, between two windows, before the
    last batch of a window, before the last batch of all and after it."""
    window = windows_of(loader)[1]
    return [0, window.first, window.first + window.count - 1, len(loader) - 1, len(loader)]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"passes": 2}, {"drop_last": True}, {"input_nodes": SOME}, {"seed": None}],
    ids=["plain", "passes", "drop_last", "some nodes", "no seed"],
)
@pytest.mark.parametrize("place", range(5))
def test_another_loader_goes_on(make: Make, place: int, arguments: dict[str, Any]) -> None:
    done = places(make(**arguments | {"seed": 5}))[place]
    torch.manual_seed(9)
    loader = make(**arguments)
    first = [list(loader) for _ in range(2)][1]
    torch.manual_seed(9)
    loader = make(**arguments)
    assert len(list(loader)) == len(loader)
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(done)]
    if done == len(loader):
        assert next(iterator, None) is None
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make(**arguments, samplers=3, engine="threads")
    resumed.load_state_dict(state)
    assert resumed.state_dict()["batches"] == (done if done < len(loader) else 0)
    if done < len(loader):
        assert_all_same(begun + list(resumed), first)
    else:
        assert resumed.epoch == 2


def test_a_resumed_epoch_is_broken_off_again(make: Make) -> None:
    whole, got, state = list(make()), list[Data](), make().state_dict()
    while len(got) < len(whole):
        loader = make()
        loader.load_state_dict(state)
        got += islice(loader, 3)
        state = loader.state_dict()
    assert_all_same(got, whole)


def test_windows_that_are_done_are_not_loaded(make: Make) -> None:
    loader = make()
    last = windows_of(loader)[-1]
    loader.load_state_dict(loader.state_dict() | {"batches": last.first + 1})
    assert len(list(loader)) == last.count - 1
    assert loader.stats()["windows"] == 1


def test_another_process_goes_on(make: Make, store: Store) -> None:
    loader = make()
    whole = list(make())
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(10)]
    script = f"""
import json, sys
import gnndrive
state = json.loads(sys.stdin.read())
loader = gnndrive.NeighborLoader(gnndrive.open({str(store.path)!r}), **{ARGUMENTS!r})
with loader:
    loader.load_state_dict(state)
    print([[batch.input_id.tolist(), batch.n_id.tolist(), batch.e_id.tolist()] for batch in loader])
"""
    told = json.dumps(loader.state_dict())
    ended = forked.run(script, told=told)
    assert ended.returncode == 0, ended.stderr
    rest = [[each[name].tolist() for name in ("input_id", "n_id", "e_id")]
            for each in whole[len(begun) :]]  # fmt: skip
    assert json.loads(ended.stdout) == rest


# ---- the size of windows


def test_another_size_is_refused_by_name(make: Make) -> None:
    state = make().state_dict()
    with pytest.raises(ConfigError, match=r"other settings: megabatch was 3 and is 4\."):
        make(megabatch=4).load_state_dict(state)
    make(megabatch=3).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("static", 0, "static was 9 and is 0"),
        ("passes", 2, "passes was 1 and is 2"),
        ("passes", "auto", "passes was 1 and is 'auto'"),
        ("seed", 6, "seed was 5 and is 6"),
        ("num_neighbors", [4, 2], "num_neighbors was [4, 3] and is [4, 2]"),
    ],
)
def test_other_arguments_are_refused_by_name(make: Make, name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make(**{name: value}).load_state_dict(make().state_dict())


def test_the_state_of_another_strategy_is_refused(make: Make) -> None:
    other = make(strategy="gnndrive", megabatch=None)
    for one, another in ((make(), other), (other, make(megabatch=None))):
        with pytest.raises(ConfigError, match="strategy was "):
            another.load_state_dict(one.state_dict())


def test_a_loader_takes_over_the_size(make: Make) -> None:
    """If megabatch= does not say another one: the memory may differ from that of the saving."""
    saving = make()
    whole = list(make())
    iterator = iter(saving)
    begun = [next(iterator) for _ in range(8)]
    state = saving.state_dict()
    resumed = make(megabatch=None)
    assert len(resumed) != len(whole), "it would have one window"
    resumed.load_state_dict(state)
    assert resumed.megabatch is None
    assert_all_same(begun + list(resumed), whole)
    assert len(resumed) == len(whole), "it stays"
    again = make(megabatch=None)
    again.load_state_dict(resumed.state_dict())
    assert len(again) == len(whole)


def test_a_size_that_does_not_fit_is_refused(make: Make) -> None:
    state = make(megabatch=6).state_dict()
    loader = make(megabatch=None, buffer="9KB")
    before = len(loader)
    with pytest.raises(ConfigError, match=r"saved with megabatch=6: buffer=9 KB is too little"):
        loader.load_state_dict(state)
    assert len(loader) == before, "a state that is refused changes nothing"
    assert len(list(loader)) == before


def test_a_loader_that_has_begun_keeps_its_size(make: Make) -> None:
    loader = make(megabatch=None)
    list(loader)
    with pytest.raises(ConfigError, match="megabatch was 3 and is 12"):
        loader.load_state_dict(make().state_dict())
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("megabatch", [0, -1, True, "3", 1.5, None, PARTS + 1, [3]])
def test_a_damaged_size_is_refused(make: Make, megabatch: Any) -> None:
    state = make().state_dict()
    state["settings"]["megabatch"] = megabatch
    with pytest.raises(ConfigError, match="megabatch was"):
        make(megabatch=None).load_state_dict(state)


@pytest.mark.parametrize("passes", [0, -1, True, "3", 1.5])
def test_damaged_passes_are_refused(make: Make, passes: Any) -> None:
    with pytest.raises(ConfigError, match="the state is damaged"):
        make().load_state_dict(make().state_dict() | {"passes": passes})


def test_other_partitions_are_refused(tmp_path: Path, make: Make) -> None:
    store = make_store(make_graph(), tmp_path)
    state = make(data=store).state_dict()
    partition(store, PARTS, "random", MEMORY, seed=1, name="other")
    partition(store, PARTS, "random", MEMORY, name="same")
    with pytest.raises(ConfigError, match=r"other settings: partitioned was '\w+' and is '\w+'\."):
        make(data=store, partitioned="other").load_state_dict(state)
    make(data=store, partitioned="same").load_state_dict(state)
    opened = gnndrive.open(store.path)
    make(data=opened, partitioned="default").load_state_dict(state)

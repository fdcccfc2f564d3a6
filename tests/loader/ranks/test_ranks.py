"""Which rank a process is, by `ranks=`, its sampler and torch.distributed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from gnndrive import ConfigError, NeighborLoader
from gnndrive.loader.ranks import Ranks, check_same, resolve_ranks
from tests.loader.conftest import Make

SPLITS = BatchSampler(DistributedSampler(range(10), 3, 1), 2, False)
SPLITS_ITSELF: Any = SimpleNamespace(num_replicas=4, rank=2)
DOES_NOT = BatchSampler(RandomSampler(range(10)), 2, False)


class Group:
    """A process group of ranks 2 and 5 of 8, in the process of rank 5."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def in_group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """This process is rank 5 of 8, and rank 1 of 2 in the group that is returned."""
    group, distributed = Group(), torch.distributed
    monkeypatch.setattr(distributed, "ProcessGroup", Group)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda of=None: 1 if of is group else 5)
    monkeypatch.setattr(distributed, "get_world_size", lambda of=None: 2 if of is group else 8)
    return group


def test_without_a_group_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for argument, said in ((None, ""), (True, "1"), (True, "x")):
        monkeypatch.setenv("WORLD_SIZE", said)
        found = resolve_ranks(argument, None)
        assert (found.rank, found.world, found.group) == (0, 1, None)
        assert found.exchange("told") == ["told"]


def test_several_processes_need_their_group_before_the_loader_is_used(monkeypatch, make):
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = make(ranks=True)
    for use in (len, iter, NeighborLoader.plan):
        with pytest.raises(ConfigError, match=r"WORLD_SIZE=2 .* call .*init_process_group before"):
            use(loader)
    assert loader.state_dict()["batches"] == 0
    assert len(make()) == 25


def test_a_sampler_that_splits_deals(in_group: Group, make: Make) -> None:
    found = resolve_ranks(None, SPLITS)
    assert found == Ranks(1, 3, "sampler")
    assert resolve_ranks(None, SPLITS_ITSELF) == Ranks(2, 4, "sampler")
    assert found.exchange("told") == ["told"], "nothing is exchanged"
    for argument in (True, in_group):
        with pytest.raises(ConfigError, match=r"the sampler rank 1 of 3: give the sampler num_rep"):
            resolve_ranks(argument, SPLITS)
        with pytest.raises(ConfigError, match=r"give shuffle=True instead, or a sampler that"):
            resolve_ranks(argument, DOES_NOT)
    same = SimpleNamespace(sampler=SimpleNamespace(rank=1, num_replicas=2))
    assert resolve_ranks(None, same) == Ranks(1, 2, "sampler")
    assert resolve_ranks(in_group, same) == Ranks(1, 2, "sampler", in_group), "to share a buffer"
    loader = make(ranks=True, sampler=RandomSampler(range(400)))
    with pytest.raises(ConfigError, match=r"give shuffle=True instead"):
        len(loader)


def test_a_group_of_torch(in_group: Group) -> None:
    assert resolve_ranks(None, None) == Ranks(5, 8, "user")
    assert resolve_ranks(None, DOES_NOT) == Ranks(5, 8, "user")
    assert resolve_ranks(True, None) == Ranks(5, 8, "loader", torch.distributed.group.WORLD)
    assert resolve_ranks(in_group, None) == Ranks(1, 2, "loader", in_group)


def test_other_values_are_refused(make: Make, data: Any) -> None:
    for value in (False, 1, "True", [0, 1]):
        with pytest.raises(ConfigError, match=r"ranks=.*: give True for all ranks"):
            make(ranks=value)
    for value in (None, 1, "yes"):
        with pytest.raises(ConfigError, match=r"host_service=.*: give True, False or 'auto'"):
            make(host_service=value)
    with pytest.raises(ConfigError, match="ranks=True is for a store"):
        NeighborLoader(data, [3], ranks=True)


def test_ranks_that_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, world, ranks in (("4", 8, 4), ("4", 2, 2), ("1", 2, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        assert Ranks(0, world, "loader").on_host == Ranks(0, world, "sampler").on_host == ranks
        assert Ranks(0, world, "user").on_host == 1


def test_the_seed_of_draws_differs_where_batches_have_the_same_numbers() -> None:
    seeds = [Ranks(rank, 5, "user").drawing_seed(7) for rank in range(5)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 5
    assert Ranks(3, 5, "loader").drawing_seed(7) == Ranks(3, 5, "sampler").drawing_seed(7) == 7


def test_a_difference_names_its_ranks() -> None:
    check_same([{"seed": 1, "batch_size": 2}] * 3)
    with pytest.raises(ConfigError, match="seed is 1 on ranks 0, 2 and 2 on rank 1; more is None "):
        check_same([{"seed": 1, "n": 3}, {"seed": 2, "n": 3}, {"seed": 1, "n": 3, "more": "x"}])

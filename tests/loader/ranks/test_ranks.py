"""Which rank a process is, and ranks that a loader deals to: they yield one process's batches."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Tuning
from gnndrive.loader import sharing
from gnndrive.loader.lightning import InTrainer
from gnndrive.loader.ranks import Ranks, check_same, resolve_ranks
from gnndrive.loader.store_loader import plan_for_ranks
from gnndrive.plan.scale import Cluster, layouts
from gnndrive.sampling.dealing import steps_left
from tests.given import moved
from tests.loader.batches import assert_all_same, assert_same
from tests.loader.conftest import NODES, Make
from tests.loader.diskgnn.packs import loader_of, make_pack
from tests.loader.ranks.conftest import AsRank
from tests.soak import product

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


def test_what_ranks_cannot_share_is_named_by_an_argument_or_else_by_what_follows_from_it() -> None:
    def told(**more: Any) -> Any:
        return sharing._Told(**({"buffer": {"places": 4, "io_depth": 8}} | more))

    other = {"buffer": {"places": 5, "io_depth": 9}}
    sharing._check_needs([told(), told(buffer={"places": 5, "io_depth": 8})], [3, 4])
    with pytest.raises(ConfigError, match=r"differ in: gap is None on rank 3 and 1 on rank 4\. "):
        sharing._check_needs([told(), told(**other, given={"gap": 1})], [3, 4])
    with pytest.raises(ConfigError, match=r"differ in: io_depth is 8 on rank 3 and 9 on rank 4"):
        sharing._check_needs([told(), told(**other, given={})], [3, 4])


SIZE, BATCHES, EPOCHS = 37, 11, 2


@pytest.fixture
def draw(make: Make) -> Make:
    """Makes loaders of 11 shuffled batches, the last of which is smaller."""
    given = {"batch_size": SIZE, "shuffle": True, "seed": 5}
    return lambda **arguments: make(**(given | arguments))


def rounds(loaders: list[Any], as_rank: AsRank) -> list[Data]:
    """The batches of an epoch in the order of their turns: those of each step, by rank."""
    begun = []
    for rank, loader in enumerate(loaders):
        as_rank(rank, len(loaders))
        begun.append(list(loader))
    return [batch for step in zip(*begun, strict=True) for batch in step]


def padded(whole: list[Data], world: int, drop_last: bool = False, done: int = 0) -> list[Data]:
    """What `world` ranks yield together, from batch `done` on."""
    count = steps_left(len(whole), done, world, drop_last) * world
    return [whole[(done + at) % len(whole)] for at in range(count)]


@product("world,drop_last", [2, 3, 12], [False, True])
def test_ranks_together_yield_one_processs_batches(draw, as_rank, world, drop_last):
    alone = draw(drop_last=drop_last)
    ranks = [draw(drop_last=drop_last, ranks=True) for _ in range(world)]
    for _ in range(EPOCHS):
        as_rank(0, 1)
        whole = list(alone)
        expected = padded(whole, world, drop_last)
        assert_all_same(expected, rounds(ranks, as_rank))
        assert len(ranks[0]) * world == len(expected)


def test_the_batches_of_one_rank_without_ranks_are_as_ever(draw: Make) -> None:
    """Seed 5 gave this batch before there were ranks, too."""
    batch = next(iter(draw()))
    assert batch.input_id[:6].tolist() == [303, 107, 330, 185, 374, 197]
    assert batch.n_id[SIZE : SIZE + 6].tolist() == [202, 205, 35, 110, 289, 83]


def test_recorded_batches(as_rank: AsRank, data: Data, tmp_path: Any) -> None:
    """Epoch 1 replays the pack's second recording, epoch 2 the first one in another order."""
    store = gnndrive.from_data(data, tmp_path / "packed.gnn")
    given: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 40, "shuffle": True}
    make_pack(store, given, epochs=2)
    loaders = [loader_of(store, given, ranks=True) for _ in range(4)]
    for epoch in (1, 2):
        for loader in loaders:
            loader.set_epoch(epoch)
        as_rank(0, 1)
        whole = list(loaders[0])
        loaders[0].set_epoch(epoch)
        assert len(whole) == 10
        assert_all_same(padded(whole, 4), rounds(loaders, as_rank))


# ---- resuming


@product("change,drop_last", [(3, 2), (2, 4), (1, 3)], [True, False])
def test_an_epoch_goes_on_with_another_number_of_ranks(draw, as_rank, change, drop_last):
    before, after = change
    as_rank(0, 1)
    alone = draw(drop_last=drop_last)
    whole, following = list(alone), list(alone)
    as_rank(before - 1, before)
    loader = draw(drop_last=drop_last, ranks=True)
    states = [loader.state_dict()]
    for _ in loader:
        states.append(json.loads(json.dumps(loader.state_dict())))
    last = loader.state_dict()
    assert last["finished"]
    assert len(states) == steps_left(len(whole), 0, before, drop_last) + 1
    loaders = [draw(drop_last=drop_last, ranks=True) for _ in range(after)]
    for step in (1, len(states) - 2, len(states) - 1):
        for each in loaders:
            each.load_state_dict(states[step])
        expected = padded(whole, after, drop_last, step * before)
        assert_all_same(expected, rounds(loaders, as_rank))
    for each in loaders:
        each.load_state_dict(last)
    assert_all_same(padded(following, after, drop_last), rounds(loaders, as_rank))


def test_a_state_of_ranks_and_one_of_a_loader_without(draw: Make, as_rank: AsRank) -> None:
    whole = list(draw())
    as_rank(1, 3)
    loader, alone = draw(ranks=True), draw()
    next(iter(loader))
    alone.load_state_dict(loader.state_dict())
    as_rank(0, 1, "user")
    rest = iter(alone)
    assert_same(whole[3], next(rest))
    two = draw(ranks=True)
    two.load_state_dict(alone.state_dict())
    as_rank(1, 2)
    assert_all_same(padded(whole, 2, done=4)[1::2], list(two))


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_end_of_an_epoch_for_lightnings_trainer(store, as_rank, drop_last):
    """A Trainer that has counted all steps does not ask for one more. With drop_last= two ranks
    would go on with the two of ten batches that four have left out."""

    class Loader(InTrainer, NeighborLoader):
        pass

    def made() -> Loader:
        given = {"batch_size": SIZE, "buffer": "40KB", "seed": 5, "drop_last": drop_last}
        return Loader(store, [2], **moved(given), ranks=True)

    with made() as loader, made() as other:
        as_rank(0, 4)
        batches = iter(loader)
        steps = len(loader)
        for step in range(1, steps + 1):
            next(batches)
            as_rank(0, 4)
            state = loader.state_dict()
            as_rank(0, 2)
            other.load_state_dict(state)
            ended = step == steps
            assert (other.epoch, other._resumed is None) == ((1, True) if ended else (0, False))


# ---- seeds and arguments of all ranks


class Gathering:
    """Stands for a process group: rank 0 tells first; each later one gets what all have told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told, self.calls = list[Any](), 0
        monkeypatch.setattr("torch.distributed.all_gather_object", self)

    def __call__(self, everyone: list[Any], told: Any, group: Any = None) -> None:
        assert group is self
        if told.purpose != "beginning an epoch":  # what a host's ranks share: nothing here
            everyone[:] = len(everyone) * [told]
            return
        self.calls += 1
        self.told.append(pickle.loads(pickle.dumps(told)))
        everyone[:] = self.told + (len(everyone) - len(self.told)) * self.told[:1]


def test_without_a_seed_the_first_ranks_counts(draw, as_rank, monkeypatch):
    group, batches = Gathering(monkeypatch), []
    for rank in range(2):
        as_rank(rank, 2, group=group)
        torch.manual_seed(rank)
        batches.append(list(draw(ranks=True, seed=None)))
    torch.manual_seed(0)
    as_rank(0, 1)
    both = [batch for step in zip(*batches, strict=True) for batch in step]
    assert_all_same(padded(list(draw(seed=None)), 2), both)
    assert group.calls == 2, "one exchange for each iter"


def test_a_plan_for_hosts_has_the_memory_of_ranks_that_exchange(make, as_rank):
    given = {"memory": "40MB", "batch_size": 8}
    planner, loading, _, exchanging = plan_for_ranks(make(**given), 1, False)
    asked = []

    def keep(exchange):
        asked.append(exchange)
        return exchanging(exchange)

    layouts(planner, keep, loading, Cluster(2, net_bytes_s=1.0), 10**9)
    of_two = plan_for_ranks(make(**given), 2, True).exchanging(asked[0]).plan()
    copies = {line.what: line.copies for line in of_two.lines}
    assert (copies["feature buffer"], copies["index pointers"]) == (2, 1), "they share the graph"
    as_rank(1, 2, group=object())
    for cache in (0, 20_000):
        ranked = make(**given, ranks=True, tuning=Tuning(exchange=True, remote_cache=cache))
        found = exchanging(replace(asked[0], kept_bytes=cache)).plan()
        assert found.host_bytes == ranked.plan().host_bytes


@pytest.mark.parametrize(
    ("more", "change", "match"),
    [
        ({"seed": 6}, None, r"the epoch's seed is 5 on rank 0 and 6 on rank 1; seed is 5"),
        ({"num_neighbors": [4, 2]}, None, r"num_neighbors is \[4, 3\] on rank 0 and \[4, 2\] on r"),
        ({"input_nodes": range(30)}, None, "inputs is "),
        ({"seed": None}, None, "the epoch's seed is 5 on rank 0 and None on rank 1"),
        ({}, lambda loader: loader.set_epoch(4), "the epoch is 0 on rank 0 and 4 on rank 1"),
        ({}, lambda loader: loader.load_state_dict(loader.state_dict() | {"batches": 6}),
         "the number of batches done is 0 on rank 0 and 6 on rank 1"),
        ({"data": "another store"}, None, "the store is "),
    ],
)  # fmt: skip
def test_what_differs_is_refused(draw, as_rank, data, tmp_path, monkeypatch, more, change, match):
    if "data" in more:
        changed = Data(x=data.x + 1, edge_index=data.edge_index)
        more = {"data": gnndrive.from_data(changed, tmp_path / "o.gnn")}
    group = Gathering(monkeypatch)
    as_rank(0, 2, group=group)
    iter(draw(ranks=True)).close()
    as_rank(1, 2, group=group)
    loader = draw(ranks=True, **more)
    if change:
        change(loader)
    epoch = loader.epoch
    with pytest.raises(ConfigError, match=match):
        iter(loader)
    assert loader.epoch == epoch, "no epoch has begun"
    assert not loader.stats(), "nothing was started"


# ---- ranks that others deal to


class Same(DistributedSampler[int]):
    """Gives the first 100 nodes to each rank."""

    def __iter__(self) -> Any:
        return iter(range(100))


def by_sampler(make: Make, rank: int, world: int, **more: Any) -> NeighborLoader:
    given = {"batch_size": 20, "seed": 5} | more
    return make(sampler=Same(range(NODES), world, rank), **given)


def test_ranks_of_a_sampler_draw_what_one_process_draws_in_turn(make: Make) -> None:
    """Each rank has the same seeds, so a hub would otherwise have the same neighbours on all."""
    ranks = [list(by_sampler(make, rank, 2, ranks=True)) for rank in range(2)]
    twice = [node for first in range(0, 100, 20) for node in 2 * list(range(first, first + 20))]
    alone = list(make(sampler=twice, batch_size=20, seed=5))
    assert_all_same(alone, [batch for step in zip(*ranks, strict=True) for batch in step])
    assert not any(torch.equal(one.n_id, other.n_id) for one, other in zip(*ranks, strict=True))


def test_a_sampler_goes_on_with_as_many_ranks(make: Make) -> None:
    whole, loader = list(by_sampler(make, 1, 3)), by_sampler(make, 1, 3)
    other, resumed = by_sampler(make, 0, 2), by_sampler(make, 1, 3)
    other.load_state_dict(loader.state_dict())  # nothing was yielded
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    with pytest.raises(ConfigError, match=r"dealt this epoch to 3 ranks .* and deals it to 2 now"):
        other.load_state_dict(state)
    with pytest.raises(ConfigError, match="deals it to 1 now"):
        by_sampler(make, 0, 1).load_state_dict(state)
    resumed.load_state_dict(state)
    assert_all_same(whole[1:], list(resumed))
    assert len(list(batches)) == 4
    other.load_state_dict(loader.state_dict())  # finished
    assert other.epoch == 1


def test_a_user_who_deals_gives_each_rank_other_draws(make: Make, as_rank: AsRank) -> None:
    def epoch(rank: int, world: int, **more: Any) -> list[Data]:
        as_rank(rank, world, "user")
        loader = make(shuffle=True, seed=5, **more)
        batches = iter(loader)
        taken = [next(batches) for _ in range(7)]
        batches.close()
        other = make(shuffle=True, seed=5, **more)
        other.load_state_dict(loader.state_dict())
        return [*taken, *other]

    alone, first, second = epoch(0, 1), epoch(0, 2), epoch(1, 2)
    assert_all_same(alone, first)
    assert len(second) == len(first) == 25
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.input_id, other.input_id)
        assert not torch.equal(one.n_id, other.n_id)


# ---- states of earlier versions


def test_a_state_of_the_version_before_ranks(make, as_rank, monkeypatch):
    def old(loader: NeighborLoader) -> Any:
        state = loader.state_dict() | {"version": 2, "batches": 4}
        del state["dealt_to"]
        return state

    state, given = old(make(seed=5)), {"seed": 5}
    whole = list(make(**given))
    for rank, world, loader in ((0, 1, make(**given)), (1, 3, make(**given, ranks=True))):
        loader.load_state_dict(state)
        as_rank(rank, world)
        assert_all_same(padded(whole, world, done=4)[rank::world], list(loader))
    split, alone = by_sampler(make, 0, 2), by_sampler(make, 0, 1)
    alone.load_state_dict(old(alone))
    with pytest.raises(ConfigError, match="all ranks drew the same neighbours"):
        split.load_state_dict(old(split))
    split.load_state_dict(old(split) | {"finished": True})
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    make(**given).load_state_dict(state)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with pytest.raises(ConfigError, match="all ranks drew the same neighbours"):
        make(**given).load_state_dict(state)

"""The loader as torch's DataLoader: its attributes, its argument checks, samplers, rebuilding."""

import copy
import inspect
import pickle
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler
from torch_geometric.data import Data
from torch_geometric.sampler.base import SubgraphType

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.records import DiskCost
from gnndrive.store.calibration import disk_identity, save_calibration
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES, Make


def input_ids(loader: NeighborLoader) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in loader]


def test_it_is_a_dataloader(make: Make) -> None:
    loader = make(input_nodes=range(35))
    assert isinstance(loader, DataLoader)
    assert repr(loader) == "NeighborLoader()"
    assert loader.dataset == range(35)
    assert len(loader) == 3
    assert len(make(input_nodes=range(35), drop_last=True)) == 2
    assert make(batch_size=7).batch_size == 7
    assert loader.in_order is True
    assert loader.collate_fn is not None


@pytest.mark.filterwarnings("error")
def test_workers_are_threads_and_torch_does_not_warn_of_processes(make: Make) -> None:
    loader = make(num_workers=64)
    assert loader.samplers == loader.num_workers == 64
    loader.check_worker_number_rationality()


def test_the_batch_size_is_one_unless_given(store: Store) -> None:
    with NeighborLoader(store, [2], [5, 6], buffer="40KB") as loader:
        assert [batch.batch_size for batch in loader] == [1, 1]


def test_each_iter_starts_a_new_epoch(make: Make) -> None:
    loader = make()
    one, other = iter(loader), iter(loader)
    assert one is not other
    assert torch.equal(next(one).input_id, next(other).input_id)
    assert sum(1 for _ in one) == sum(1 for _ in other) == len(loader) - 1


# ---- shuffling


def test_shuffling_has_its_own_order_in_each_epoch(make: Make) -> None:
    loader = make(shuffle=True, seed=5)
    first, second = input_ids(loader), input_ids(loader)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(NODES))
    assert first != [list(range(start, start + 16)) for start in range(0, NODES, 16)]


def test_a_seed_repeats_epochs(make: Make) -> None:
    one, other = make(shuffle=True, seed=5), make(shuffle=True, seed=5)
    for _ in range(2):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    assert input_ids(make(shuffle=True, seed=6)) != input_ids(make(shuffle=True, seed=5))


def test_manual_seed_repeats_an_epoch(make: Make) -> None:
    loader = make(shuffle=True)
    torch.manual_seed(7)
    first = list(loader)
    torch.manual_seed(7)
    for left, right in zip(first, loader, strict=True):
        assert_same(left, right)
    assert input_ids(loader) != [batch.input_id.tolist() for batch in first]


def test_a_generator_repeats_epochs(make: Make) -> None:
    def epochs() -> list[list[list[int]]]:
        loader = make(shuffle=True, generator=torch.Generator().manual_seed(9))
        return [input_ids(loader), input_ids(loader)]

    first = epochs()
    assert first == epochs()
    assert first[0] != first[1]


def test_without_shuffling_only_the_neighbours_change(make: Make) -> None:
    loader = make()
    one, other = list(loader), list(loader)
    assert [b.input_id.tolist() for b in one] == [b.input_id.tolist() for b in other]
    assert any(a.e_id.tolist() != b.e_id.tolist() for a, b in zip(one, other, strict=True))


# ---- samplers


def test_a_sampler(make: Make, data: Data) -> None:
    loader = make(sampler=[5, 3, 1, 7], batch_size=3, input_nodes=range(100, 200))
    assert input_ids(loader) == [[5, 3, 1], [7]]
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id + 100)


def test_a_batch_sampler(make: Make) -> None:
    batches = [[9, 8], [1], [2, 3, 4]]
    loader = make(batch_sampler=batches, batch_size=1)
    assert len(loader) == 3
    assert input_ids(loader) == batches
    sampler = BatchSampler(SubsetRandomSampler([1, 2, 3]), 2, drop_last=True)
    (batch,) = make(batch_sampler=sampler, batch_size=1)
    assert batch.batch_size == 2


def test_a_sampler_draws_as_it_would_in_torch(make: Make) -> None:
    """The order must not depend on what else draws from the global generator meanwhile."""
    drawn_in: list[threading.Thread] = []

    class Sampler(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            drawn_in.append(threading.current_thread())
            yield from super().__iter__()

    loader = make(sampler=Sampler(range(NODES)))

    def epoch() -> list[list[int]]:
        torch.manual_seed(11)
        batches = []
        for batch in loader:
            torch.rand(3)
            batches.append(batch.input_id.tolist())
        return batches

    assert epoch() == epoch()
    assert drawn_in == [threading.main_thread()] * 2


def test_a_sampler_that_fails_fails_at_its_turn(make: Make) -> None:
    class Failing:
        batch_size = 2

        def __iter__(self) -> Iterator[list[int]]:
            yield [1, 2]
            yield [3, 4]
            raise LookupError("no more where that came from")

    batches = iter(make(batch_sampler=Failing(), batch_size=1))
    assert [next(batches).input_id.tolist() for _ in range(2)] == [[1, 2], [3, 4]]
    with pytest.raises(LookupError, match="no more"):
        next(batches)
    assert list(batches) == []


def test_a_position_out_of_range_fails_at_its_turn(make: Make) -> None:
    batches = iter(make(batch_sampler=[[0], [1], [NODES]], batch_size=1))
    assert [next(batches).input_id.item() for _ in range(2)] == [0, 1]
    with pytest.raises(IndexError):
        next(batches)


# ---- what is refused


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "shuffle": True, "batch_size": 1},
        {"batch_sampler": [[1]], "drop_last": True, "batch_size": 1},
        {"batch_sampler": [[1]], "batch_size": 4},
        {"batch_size": 0},
    ],
    ids=str,
)
def test_torchs_own_checks(make: Make, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are torch's
        make(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", None),
        ("device", "mps"),
    ],
)
def test_an_argument_that_is_not_built_is_named(make: Make, name: str, value: Any) -> None:
    with pytest.raises(NotImplementedError, match=name):
        make(**{name: value})


def test_defaults_may_be_given_explicitly(make: Make) -> None:
    loader = make(
        input_time=None,
        subgraph_type=SubgraphType.directional,
        disjoint=False,
        temporal_strategy="uniform",
        is_sorted=True,
        filter_per_worker=True,
        timeout=0,
        pin_memory=True,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    assert sum(batch.batch_size for batch in loader) == NODES


def test_a_worker_init_fn_is_called_in_each_thread_before_its_work(make: Make) -> None:
    called: dict[str, int] = {}

    def begin(number: int) -> None:
        assert called.setdefault(threading.current_thread().name, number) == number

    assert len(list(make(worker_init_fn=begin, num_workers=2))) == 25
    assert called
    assert called == {f"gnndrive-worker-{number}": number for number in called.values()}


def test_an_error_in_a_worker_init_fn_surfaces(make: Make) -> None:
    def begin(number: int) -> None:
        raise LookupError("no seed for it")

    with pytest.raises(LookupError, match="no seed for it"):
        next(iter(make(worker_init_fn=begin)))


def test_a_timeout_that_is_long_enough(make: Make) -> None:
    assert len(list(make(timeout=300))) == 25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_neighbors", [2, -2]),
        ("num_neighbors", [2.5]),
        ("num_neighbors", 5),
        ("io_depth", 0),
        ("samplers", 0),
        ("extractors", 0),
        ("extracting_queue", 0),
        ("training_queue", -1),
        ("seed", "today"),
        ("policy", "fifo"),
        ("topology", "typo"),
        ("gap", "wide"),
        ("neighbour_cache", "lots"),
        ("memory", "x"),
        ("sweep", 0),
        ("sweep", "two"),
        ("strategy", "ginx"),
        ("input_nodes", [NODES]),
        ("input_nodes", [-1]),
        ("input_nodes", torch.ones(3, dtype=torch.bool)),
        ("input_nodes", torch.ones(3, 2, dtype=torch.int64)),
        ("input_nodes", [0.5]),
    ],
)
def test_an_argument_that_cannot_work_is_named(make: Make, name: str, value: Any) -> None:
    named = {"strategy": "there are: .*gnndrive"}.get(name, name)
    with pytest.raises(ConfigError, match=named):
        make(**{name: value})


@pytest.mark.parametrize("name", ["buffer", "memory"])
@pytest.mark.parametrize("size", ["8 apples", "", "-1GB", "GB", 0, -5, True, None.__class__, "1e3"])
def test_an_argument_that_is_not_a_size_is_named(make: Make, name: str, size: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        iter(make(**{name: size}))


def test_an_unknown_engine_is_refused_and_leaves_nothing(make: Make) -> None:
    with pytest.raises(ConfigError, match="there are: simulated, threads, uring"):
        iter(make(engine="steam"))


# ---- rebuilding


def rebuilt(loader: NeighborLoader, **changes: Any) -> NeighborLoader:
    """A new loader from the attributes that have the names of init arguments, as Lightning does."""
    names = inspect.signature(NeighborLoader.__init__).parameters.keys()
    names |= inspect.signature(DataLoader.__init__).parameters.keys()
    attributes = {name: value for name, value in vars(loader).items() if name in names}
    attributes |= {"batch_sampler": None} | changes
    return NeighborLoader(**attributes)


def test_each_argument_is_an_attribute_of_its_name(make: Make) -> None:
    loader = make()
    names = inspect.signature(NeighborLoader.__init__).parameters.keys()
    assert names - {"self", "kwargs"} <= vars(loader).keys()


def test_a_loader_can_be_rebuilt_from_its_attributes(make: Make, data: Data) -> None:
    loader = make(input_nodes=data.train_mask, seed=4, num_workers=2, batch_size=9)
    with rebuilt(loader) as again:
        assert again.samplers == again.num_workers == 2
        for left, right in zip(loader, again, strict=True):
            assert_same(left, right)


def test_a_loader_can_be_rebuilt_with_another_sampler(make: Make) -> None:
    loader = make(input_nodes=range(100), shuffle=True, batch_size=25)
    with rebuilt(loader, sampler=range(0, 100, 2), shuffle=False) as again:
        assert list(chain(*input_ids(again))) == list(range(0, 100, 2))
    assert len(input_ids(loader)) == 4


def test_the_arguments_survive_pickling(make: Make) -> None:
    """As they must to reach a spawned process, which builds its own loader."""
    loader = make(seed=1)
    names = inspect.signature(NeighborLoader.__init__).parameters.keys() & vars(loader).keys()
    arguments = pickle.loads(pickle.dumps({name: vars(loader)[name] for name in names}))
    with NeighborLoader(**arguments, batch_size=16) as again:
        for left, right in zip(loader, again, strict=True):
            assert_same(left, right)


def test_a_loader_pickles_and_copies_and_shares_nothing(make: Make) -> None:
    loader = make(seed=2)
    under_way = iter(loader)
    first = next(under_way)
    loader.epoch = 0
    for again in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        with again:
            assert again.stats() == {}
            assert_same(next(iter(again)), first)
    assert sum(batch.batch_size for batch in under_way) == NODES - 16


def test_the_gap_follows_the_calibration(data, tmp_path):
    store = gnndrive.from_data(data, tmp_path / "own.gnn")
    disk = disk_identity(store.path)

    def gap_of(**options):
        return (
            NeighborLoader(store, [2], batch_size=4, **options)._assembly().settings().gap_bytes_max
        )

    assert gap_of() == 8192
    save_calibration(store, DiskCost(1e-5, 1e-9, 128, "uring", "2026-01-01", disk, ()))
    assert gap_of() == 9728
    assert gap_of(gap=0) == 0
    assert gap_of(gap="4KiB") == 4096
    save_calibration(store, DiskCost(1.0, 1e-9, 128, "uring", "2026-01-01", disk, ()))
    assert gap_of() == 24576


@pytest.mark.parametrize("depth", [4_097, 2**31, 10**30])
def test_more_reads_in_flight_than_a_ring_has_are_refused(make: Make, depth: int) -> None:
    with pytest.raises(ConfigError, match=r"io_depth=\d+: give at most 4,096 reads in flight"):
        make(io_depth=depth)
    assert make(io_depth=4_096).plan().total_bytes > 4_096 * 65_536


def test_a_path_is_no_store(store: Store) -> None:
    for loader in (NeighborLoader, LinkNeighborLoader):
        for path in (store.path, "data.gnn"):
            with pytest.raises(ConfigError, match=r"open store: give gnndrive\.open\('.*\.gnn'\)"):
                loader(path, [2])

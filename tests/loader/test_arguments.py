"""The loader as torch's DataLoader: its attributes, its argument checks, samplers, rebuilding."""

import copy
import inspect
import math
import pickle
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.sampler.base import SubgraphType

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader
from gnndrive.common.records import DiskCost
from gnndrive.store.calibration import disk_identity, save_calibration
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES


def input_ids(loader: NeighborLoader) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in loader]


def test_it_is_a_dataloader(make):
    loader = make(input_nodes=range(35))
    assert isinstance(loader, DataLoader)
    assert loader.dataset == range(35)
    assert len(loader) == 3
    assert [batch.batch_size for batch in loader] == [16, 16, 3]
    dropping = make(input_nodes=range(35), drop_last=True)
    assert len(dropping) == 2
    assert [batch.batch_size for batch in dropping] == [16, 16]
    assert make(batch_size=7).batch_size == 7
    assert loader.in_order is True
    assert loader.collate_fn is not None


@pytest.mark.filterwarnings("error")
def test_workers_are_threads_and_torch_does_not_warn_of_processes(make):
    loader = make(num_workers=64)
    assert loader.samplers == loader.num_workers == 64
    loader.check_worker_number_rationality()


def test_the_batch_size_is_one_unless_given(store):
    with NeighborLoader(store, [2], [5, 6], buffer="40KB") as loader:
        assert [batch.batch_size for batch in loader] == [1, 1]


# ---- shuffling


def test_shuffling_has_its_own_order_in_each_epoch(make):
    loader = make(shuffle=True, seed=5)
    first, second = input_ids(loader), input_ids(loader)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(NODES))
    assert first != [list(range(start, start + 16)) for start in range(0, NODES, 16)]
    assert first == input_ids(make(shuffle=True, seed=5)) != input_ids(make(shuffle=True, seed=6))


def test_manual_seed_repeats_an_epoch(make):
    loader = make(shuffle=True)
    torch.manual_seed(7)
    first = list(loader)
    torch.manual_seed(7)
    for left, right in zip(first, loader, strict=True):
        assert_same(left, right)
    assert input_ids(loader) != [batch.input_id.tolist() for batch in first]


def test_a_generator_repeats_epochs(make):
    def epochs() -> list[list[list[int]]]:
        loader = make(shuffle=True, generator=torch.Generator().manual_seed(9))
        return [input_ids(loader), input_ids(loader)]

    first = epochs()
    assert first == epochs()
    assert first[0] != first[1]


def test_without_shuffling_only_the_neighbours_change(make):
    loader = make()
    one, other = list(loader), list(loader)
    assert [b.input_id.tolist() for b in one] == [b.input_id.tolist() for b in other]
    assert any(a.e_id.tolist() != b.e_id.tolist() for a, b in zip(one, other, strict=True))


# ---- samplers


def test_a_sampler(make, data):
    loader = make(sampler=[5, 3, 1, 7], batch_size=3, input_nodes=range(100, 200))
    assert input_ids(loader) == [[5, 3, 1], [7]]
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id + 100)


def test_a_batch_sampler(make):
    batches = [[9, 8], [1], [2, 3, 4]]
    loader = make(batch_sampler=batches, batch_size=1)
    assert len(loader) == 3
    assert input_ids(loader) == batches
    sampler = BatchSampler(SubsetRandomSampler([1, 2, 3]), 2, drop_last=True)
    (batch,) = make(batch_sampler=sampler, batch_size=1)
    assert batch.batch_size == 2


def test_a_sampler_draws_as_it_would_in_torch(make):
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


def test_a_position_out_of_range_fails_at_its_turn(make):
    batches = iter(make(batch_sampler=[[0], [1], [NODES]], batch_size=1))
    assert [next(batches).input_id.item() for _ in range(2)] == [0, 1]
    with pytest.raises(IndexError):
        next(batches)


# ---- what is refused


LABOR: dict[str, Any] = {"sampling": "labor"}
GINEX: dict[str, Any] = {"strategy": "ginex"}
BATCH_SAMPLER: dict[str, Any] = {"batch_sampler": [[1]], "batch_size": 1}


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, None, {"num_workers": -1}),  # torch's own words
        (ValueError, None, {"timeout": -1}),
        (ValueError, None, {"persistent_workers": True}),
        (ValueError, None, {"sampler": [1], "shuffle": True}),
        (ValueError, None, BATCH_SAMPLER | {"shuffle": True}),
        (ValueError, None, BATCH_SAMPLER | {"batch_size": 4}),
        (ValueError, None, {"batch_size": 0}),
        (NotImplementedError, "batch_size", {"batch_size": None}),
        (NotImplementedError, "device", {"device": "mps"}),
        (ConfigError, "num_neighbors", {"num_neighbors": [2, -2]}),
        (ConfigError, "num_neighbors", {"num_neighbors": 5}),
        (ConfigError, "io_depth", {"io_depth": 0}),
        (ConfigError, r"io_depth=\d+: give at most 4,096 reads", {"io_depth": 4_097}),
        (ConfigError, "samplers", {"samplers": 0}),
        (ConfigError, "extractors", {"extractors": 0}),
        (ConfigError, "training_queue", {"training_queue": -1}),
        (ConfigError, "seed", {"seed": "today"}),
        (ConfigError, "policy", {"policy": "fifo"}),
        (ConfigError, "gap", {"gap": "wide"}),
        (ConfigError, "neighbour_cache", {"neighbour_cache": "lots"}),
        (ConfigError, "sweep", {"sweep": "two"}),
        (ConfigError, "input_nodes", {"input_nodes": [NODES]}),
        (ConfigError, "input_nodes", {"input_nodes": torch.ones(3, dtype=torch.bool)}),
        (ConfigError, "input_nodes", {"input_nodes": torch.ones(3, 2, dtype=torch.int64)}),
        (ConfigError, "input_nodes", {"input_nodes": [0.5]}),
        (ConfigError, "400 inputs", {"input_id": torch.arange(3)}),
        (ConfigError, "a whole number for each of", {"input_id": torch.rand(400)}),
        (ConfigError, "feature_dtype", {"feature_dtype": "int8"}),
        (ConfigError, "on_stats=3: give a function that takes a dict", {"on_stats": 3}),
        (ConfigError, "stats_interval=0: give a positive", {"stats_interval": 0}),
        (ConfigError, "stats_interval=nan: give a positive", {"stats_interval": math.nan}),
        (ConfigError, "stats_interval=True: give a positive", {"stats_interval": True}),
        (ConfigError, r"trace=3: give a file whose name ends in \.json", {"trace": 3}),
        (ConfigError, r"trace='a\.gz': give a file", {"trace": "a.gz"}),
        (ConfigError, "victim_buffer=.*'gnndrive' does not: leave it out", {"victim_buffer": 0}),
        (ConfigError, "sampling='ladies': give 'neighbor' or 'labor'", {"sampling": "ladies"}),
        (ConfigError, "give sampling='labor', or leave it out", {"batch_dependency": 4}),
        (ConfigError, "whole number of at least 1", LABOR | {"batch_dependency": 0}),
        (ConfigError, "leave replace=True out, or give sampling=", LABOR | {"replace": True}),
        (ConfigError, 'give sampling="neighbor"', LABOR | {"disjoint": True}),
        (ConfigError, 'give sampling="neighbor"', LABOR | {"subgraph_type": "induced"}),
        (ConfigError, 'give sampling="neighbor"', LABOR | {"weight_attr": "edge_attr"}),
        (ConfigError, "='much' is no size", {"strategy": "lsm-gnn", "victim_buffer": "much"}),
        (ConfigError, "strategy='ginex'", {"superbatch": 8}),
        (ConfigError, "give strategy='ginex'", {"strategy": "auto", "superbatch": 8}),
        (ConfigError, "give strategy='diskgnn'", {"strategy": "auto", "packed": "there"}),
        (ConfigError, "at least 1", GINEX | {"superbatch": 0}),
        (ConfigError, "'auto'", GINEX | {"superbatch": "many"}),
        (ConfigError, "at most 32,000", GINEX | {"superbatch": 40_000}),
        (ConfigError, "'overlapped' or 'apart'", GINEX | {"phases": "both"}),
        (ConfigError, "give one that is there", GINEX | {"superbatch_folder": "/none"}),
        (ConfigError, "path of a folder", GINEX | {"superbatch_folder": 3}),
        (ConfigError, "strategy='gnndrive'", GINEX | {"disjoint": True}),
        (ConfigError, "strategy='gnndrive'", GINEX | {"subgraph_type": "induced"}),
    ],
)
def test_an_argument_that_cannot_work_is_named(make, error, words, arguments):
    with pytest.raises(error, match=words):
        make(**arguments)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        *(("buffer", {"buffer": size}) for size in ("8 apples", "", "-1GB", 0, True, dict, "1e3")),
        ("memory", {"memory": "8 apples"}),
        ("device_memory", {"device_memory": "x", "device": "simulated-cuda"}),
        ("memory= or buffer= for the host", {"device_memory": "1GB"}),
        ("there are: simulated, threads, uring", {"engine": "steam"}),
        ("topology.*direct, mmap, resident", {"topology": "mapped"}),
        ("topology='direct'", {"topology": "mmap", "neighbour_cache": "1MB"}),
        ("holds no list", {"topology": "direct", "neighbour_cache": "1KB"}),
    ],
)
def test_so_is_one_that_is_found_at_the_start(make, words, arguments):
    with pytest.raises(ConfigError, match=words):
        iter(make(**arguments))


@pytest.mark.parametrize(
    "given",
    [
        {"on_stats": print}, {"stats_interval": 3.0}, {"trace": "epoch.json"},
        {"superbatch": 8}, {"victim_buffer": "1GB"}, {"sampling": "labor"}, {"batch_dependency": 3},
    ],
)  # fmt: skip
def test_data_in_memory_has_no_use_for_it(data, given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=.* is for a store"):
        NeighborLoader(data, [2], **given)
    loader = NeighborLoader(data, [2])
    assert isinstance(loader, PyGNeighborLoader)
    assert (loader.sampling, loader.stage_stats()) == ("neighbor", {})


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("on_stats=3", {"on_stats": 3}), ("trace=3", {"trace": 3}),
        ("strategy='gnndrive'", {"strategy": "ginex"}),
        ('edges as seeds.*give sampling="neighbor"', {"sampling": "labor"}),
    ],
)  # fmt: skip
def test_links_are_refused_the_same(store, words, given):
    with pytest.raises(ConfigError, match=words):
        LinkNeighborLoader(store, [4, 3], batch_size=16, **given)


def test_defaults_may_be_given_explicitly(make):
    loader = make(
        input_time=None,
        subgraph_type=SubgraphType.directional,
        disjoint=False,
        temporal_strategy="uniform",
        is_sorted=True,
        filter_per_worker=True,
        timeout=300,
        pin_memory=True,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    assert sum(batch.batch_size for batch in loader) == NODES


def test_a_worker_init_fn_is_called_in_each_thread_before_its_work(make):
    called: dict[str, int] = {}

    def begin(number: int) -> None:
        assert called.setdefault(threading.current_thread().name, number) == number

    assert len(list(make(worker_init_fn=begin, num_workers=2))) == 25
    assert called
    assert called == {f"gnndrive-worker-{number}": number for number in called.values()}


def test_an_error_in_a_worker_init_fn_surfaces(make):
    def begin(number: int) -> None:
        raise LookupError("no seed for it")

    with pytest.raises(LookupError, match="no seed for it"):
        next(iter(make(worker_init_fn=begin)))


# ---- rebuilding


def rebuilt(loader: NeighborLoader, **changes: Any) -> NeighborLoader:
    """A new loader from the attributes that have the names of init arguments, as Lightning does."""
    names = inspect.signature(NeighborLoader.__init__).parameters.keys()
    names |= inspect.signature(DataLoader.__init__).parameters.keys()
    attributes = {name: value for name, value in vars(loader).items() if name in names}
    attributes |= {"batch_sampler": None} | changes
    return NeighborLoader(**attributes)


def test_each_argument_is_an_attribute_of_its_name(make):
    loader = make()
    names = inspect.signature(NeighborLoader.__init__).parameters.keys()
    assert names - {"self", "kwargs"} <= vars(loader).keys()


def test_a_loader_can_be_rebuilt_from_its_attributes(make, data):
    loader = make(input_nodes=data.train_mask, seed=4, num_workers=2, batch_size=9)
    with rebuilt(loader) as again:
        assert again.samplers == again.num_workers == 2
        for left, right in zip(loader, again, strict=True):
            assert_same(left, right)
    loader = make(input_nodes=range(100), shuffle=True, batch_size=25)
    with rebuilt(loader, sampler=range(0, 100, 2), shuffle=False) as again:
        assert list(chain(*input_ids(again))) == list(range(0, 100, 2))


def test_a_loader_pickles_and_copies_and_shares_nothing(make):
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


def test_a_path_is_no_store(store):
    for loader in (NeighborLoader, LinkNeighborLoader):
        for path in (store.path, "data.gnn"):
            with pytest.raises(ConfigError, match=r"open store: give gnndrive\.open\('.*\.gnn'\)"):
                loader(path, [2])

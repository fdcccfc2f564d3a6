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
from torch_geometric.sampler.base import SubgraphType

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Tuning
from gnndrive.common.records import DiskCost
from gnndrive.store.calibration import disk_identity, save_calibration
from tests.given import moved
from tests.loader.batches import NoSampler, assert_all_same, assert_same, check
from tests.loader.conftest import NODES


def input_ids(loader: NeighborLoader) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in loader]


def test_it_is_a_dataloader(make):
    loader = make(input_nodes=range(35), num_workers=64)
    assert isinstance(loader, DataLoader)
    assert loader.dataset == range(35)
    assert (len(loader), loader.batch_size, loader.in_order) == (3, 16, True)
    assert [batch.batch_size for batch in loader] == [16, 16, 3]
    assert loader.tuning.samplers == loader.num_workers == 64
    loader.check_worker_number_rationality()  # warns of processes, which they are not
    dropping = make(input_nodes=range(35), drop_last=True)
    assert [batch.batch_size for batch in dropping] == [16] * len(dropping) == [16, 16]


# ---- shuffling


def test_shuffling_has_its_own_order_in_each_epoch(make):
    loader = make(shuffle=True, seed=5)
    first, second = input_ids(loader), input_ids(loader)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(NODES))
    assert first != [list(range(start, start + 16)) for start in range(0, NODES, 16)]
    assert first == input_ids(make(shuffle=True, seed=5)) != input_ids(make(shuffle=True, seed=6))


def test_manual_seed_or_a_generator_repeats_epochs(make):
    loader, epochs = make(shuffle=True), []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        epochs.append(list(loader))
    assert_all_same(*epochs[:2])
    assert epochs[2][0].input_id.tolist() != epochs[0][0].input_id.tolist()
    one, other = (make(shuffle=True, generator=torch.Generator().manual_seed(9)) for _ in range(2))
    first = [input_ids(one), input_ids(one)]
    assert first == [input_ids(other), input_ids(other)]
    assert first[0] != first[1]


# ---- samplers


def test_samplers_of_positions_and_of_batches(make, data):
    loader = make(sampler=[5, 3, 1, 7], batch_size=3, input_nodes=range(100, 200))
    assert input_ids(loader) == [[5, 3, 1], [7]]
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id + 100)
    ids = torch.arange(NODES).eq(1).long()  # as input_nodes this is refused: it looks like a mask
    assert torch.equal(next(iter(make(sampler=ids, batch_size=NODES))).input_id, ids)
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

    loader, epochs = make(sampler=Sampler(range(NODES))), []
    for _ in range(2):
        torch.manual_seed(11)
        epochs.append([(batch.input_id.tolist(), torch.rand(3))[0] for batch in loader])
    assert epochs[0] == epochs[1]
    assert drawn_in == [threading.main_thread()] * 2


def test_a_position_out_of_range_fails_at_its_turn(make):
    batches = iter(make(batch_sampler=[[0], [1], [NODES]], batch_size=1))
    assert [next(batches).input_id.item() for _ in range(2)] == [0, 1]
    with pytest.raises(IndexError):
        next(batches)


# ---- what is refused


LABOR: dict[str, Any] = {"sampling": "labor"}
GINEX: dict[str, Any] = {"strategy": "ginex"}
LINKS: dict[str, Any] = {"edge_label_index": None}
BATCH_SAMPLER: dict[str, Any] = {"batch_sampler": [[1]], "batch_size": 1}


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "num_workers .* non-negative", {"num_workers": -1}),  # torch's own words
        (ValueError, None, {"sampler": [1], "shuffle": True}),
        (ValueError, None, BATCH_SAMPLER | {"batch_size": 4}),
        (ValueError, None, {"batch_size": 0}),
        (NotImplementedError, "batch_size", {"batch_size": None}),
        (NotImplementedError, "device", {"device": "mps"}),
        (ConfigError, "num_neighbors", {"num_neighbors": [2, -2]}),
        (ConfigError, "io_depth", {"io_depth": 0}),
        (ConfigError, r"io_depth=\d+: give at most 4,096 reads", {"io_depth": 4_097}),
        (ConfigError, "samplers", {"samplers": 0}),
        (ConfigError, "seed", {"seed": "today"}),
        (ConfigError, "policy", {"policy": "fifo"}),
        (ConfigError, "gap", {"gap": "wide"}),
        (ConfigError, "neighbour_cache", {"neighbour_cache": "lots"}),
        (ConfigError, "sweep", {"sweep": "two"}),
        (ConfigError, "input_nodes", {"input_nodes": [NODES]}),
        (ConfigError, "input_nodes", {"input_nodes": torch.ones(3, dtype=torch.bool)}),
        (ConfigError, "input_nodes", {"input_nodes": torch.ones(3, 2, dtype=torch.int64)}),
        (ConfigError, "input_nodes", {"input_nodes": [0.5]}),
        *(
            (
                ConfigError,
                r"input_nodes has a 0 or 1 .* give mask.bool\(\); if .* sampler=ids",
                {"input_nodes": torch.arange(NODES).eq(1).to(dtype)},
            )
            for dtype in (torch.int64, torch.uint8, torch.int8)
        ),
        (ConfigError, "400 inputs", {"input_id": torch.arange(3)}),
        (ConfigError, "a whole number for each of", {"input_id": torch.rand(400)}),
        (ConfigError, "feature_dtype", {"feature_dtype": "int8"}),
        (ConfigError, "pad=1: give 'power-of-two', a number above 1", {"pad": 1}),
        (ConfigError, "pad='power of two': give 'power-of-two'", {"pad": "power of two"}),
        (ConfigError, "because pad=2 needs .*: leave it out", {"exchange": True, "pad": 2}),
        (ConfigError, "remote_cache= is for ranks that exchange rows", {"remote_cache": "1MB"}),
        (ConfigError, "remote_cache='much' is no size", {"remote_cache": "much"}),
        (
            ConfigError,
            "because strategy='ginex' tells owners which rows",
            {"exchange": True, "remote_cache": "1MB", "strategy": "ginex"},
        ),
        (ConfigError, "on_stats=3: give a function that takes a dict", {"on_stats": 3}),
        (ConfigError, "stats_interval=nan: give a positive", {"stats_interval": math.nan}),
        (ConfigError, r"trace=3: give a file whose name ends in \.json", {"trace": 3}),
        (
            ConfigError,
            r'strategy=LSMGNN\(victim_buffer=0\), .*"lsm-gnn:victim_buffer=0"',
            {"victim_buffer": 0},
        ),
        (ConfigError, "sampling='ladies': give 'neighbor', 'labor' or", {"sampling": "ladies"}),
        (ConfigError, r"give sampling=gnndrive.Labor\(dependency=4\)", {"batch_dependency": 4}),
        (ConfigError, "write labor:dependency=NUMBER", {"sampling": "labor:batches=2"}),
        (ConfigError, r"tuning=3: give gnndrive.Tuning", {"tuning": 3}),
        (ConfigError, "whole number of at least 1", LABOR | {"batch_dependency": 0}),
        (ConfigError, "leave replace=True out, or give sampling=", LABOR | {"replace": True}),
        (ConfigError, 'give sampling="neighbor"', LABOR | {"disjoint": True}),
        (ConfigError, 'give sampling="neighbor"', LABOR | {"weight_attr": "edge_attr"}),
        (ConfigError, "='much' is no size", {"strategy": "lsm-gnn", "victim_buffer": "much"}),
        (ConfigError, r"Ginex\(superbatch=8\) or .* LSMGNN\(superbatch=8\)", {"superbatch": 8}),
        (ConfigError, "DiskGNN", {"strategy": "auto", "packed": "there"}),
        (ConfigError, "at least 1", GINEX | {"superbatch": 0}),
        (ConfigError, "'overlapped' or 'apart'", GINEX | {"phases": "both"}),
        (ConfigError, "give one that is there", GINEX | {"folder": "/none"}),
        (ConfigError, "path of a folder", GINEX | {"folder": 3}),
        (ConfigError, "leave them out, or give", GINEX | {"neighbor_sampler": NoSampler()}),
        (ConfigError, "buffer", {"buffer": "8 apples"}),
        (ConfigError, "device_memory", {"device_memory": "x", "device": "simulated-cuda"}),
        (ConfigError, "memory= or buffer= for the host", {"device_memory": "1GB"}),
        (ConfigError, "memory= or buffer= for the host", {"device_memory": 0}),
        (ConfigError, "there are: simulated, threads, uring", {"engine": "steam"}),
        (ConfigError, "topology.*direct, mmap, resident", {"topology": "mapped"}),
        (ConfigError, "topology='direct'", {"topology": "mmap", "neighbour_cache": "1MB"}),
        (ConfigError, "holds no list", {"topology": "direct", "neighbour_cache": "1KB"}),
        (
            ConfigError,
            "out, or give",
            LINKS | GINEX | {"transform_sampler_output": lambda out: out},
        ),
        (ConfigError, 'edges as seeds.*give sampling="neighbor"', LINKS | LABOR),
    ],
)
def test_an_argument_that_cannot_work_is_named(make, store, error, words, arguments):
    def begin() -> None:
        if LINKS.keys() <= arguments.keys():
            LinkNeighborLoader(store, [4, 3], **moved(arguments))
        iter(make(**arguments))

    with pytest.raises(error, match=words):
        begin()


def test_an_argument_of_tuning_beside_it_is_named(store):
    with pytest.raises(ConfigError, match=r"give tuning=gnndrive.Tuning\(samplers=2\)"):
        NeighborLoader(store, [4, 3], samplers=2)


@pytest.mark.parametrize(
    "given",
    [
        {"on_stats": print}, {"stats_interval": 3.0}, {"trace": "epoch.json"},
        {"sampling": "labor"}, {"tuning": Tuning(sweep=1)},
    ],
)  # fmt: skip
def test_data_in_memory_has_no_use_for_it(data, given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=.* is for a store"):
        NeighborLoader(data, [2], **moved(given))


def test_defaults_may_be_given_explicitly(make):
    loader = make(
        input_time=None, subgraph_type=SubgraphType.directional, disjoint=False, is_sorted=True,
        temporal_strategy="uniform", filter_per_worker=True, timeout=300, pin_memory=True,
        num_workers=2, prefetch_factor=4, persistent_workers=True,
        multiprocessing_context="spawn",
    )  # fmt: skip
    assert sum(batch.batch_size for batch in loader) == NODES


def test_a_worker_init_fn_is_called_in_each_thread_before_its_work(make):
    called: dict[str, int] = {}

    def begin(number: int) -> None:
        assert called.setdefault(threading.current_thread().name, number) == number

    def fail(number: int) -> None:
        raise LookupError("no seed for it")

    assert len(list(make(worker_init_fn=begin, num_workers=2))) == 25
    assert called == {f"gnndrive-worker-{number}": number for number in called.values()} != {}
    with pytest.raises(LookupError, match="no seed for it"):
        next(iter(make(worker_init_fn=fail)))


# ---- rebuilding


def rebuilt(loader: NeighborLoader, **changes: Any) -> NeighborLoader:
    """A new loader from the attributes that have the names of init arguments, as Lightning does."""
    names = inspect.signature(NeighborLoader.__init__).parameters.keys()
    assert names - {"self", "kwargs"} <= vars(loader).keys()
    names |= inspect.signature(DataLoader.__init__).parameters.keys()
    attributes = {name: value for name, value in vars(loader).items() if name in names}
    return NeighborLoader(**(attributes | {"batch_sampler": None} | changes))


def test_a_loader_can_be_rebuilt_from_its_attributes(make, data):
    loader = make(input_nodes=data.train_mask, seed=4, num_workers=2, batch_size=9)
    with rebuilt(loader) as again:
        assert again.tuning.samplers == again.num_workers == 2
        assert_all_same(loader, again)
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

    def gap_of(**options):
        loader = NeighborLoader(store, [2], batch_size=4, **moved(options))
        return loader._assembly().request().disk.gap_bytes

    assert gap_of() == 8192
    disk = disk_identity(store.path)
    save_calibration(store, DiskCost(1e-5, 1e-9, 128, "uring", "2026-01-01", disk, ()))
    assert (gap_of(), gap_of(gap=0), gap_of(gap="4KiB")) == (9728, 0, 4096)

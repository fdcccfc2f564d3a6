"""What a loader of windows says to arguments, stores, folders and memory that cannot work."""

import os
import re
import shutil
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NegativeSampling

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.partitioned.partition import partition
from tests.loader.batches import NoSampler
from tests.loader.hetero.graph import make_data as make_typed
from tests.loader.windows.conftest import Make
from tests.loader.windows.damage import KINDS, damage, outcome
from tests.loader.windows.stores import (
    MARIUS,
    MEMORY,
    NODES,
    PARTS,
    make_graph,
    make_store,
)
from tests.soak import product

LEAST = re.compile(r'give (?:at least )?(memory|buffer|device_memory)="([^"]+)"')


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """A store that the test may change, with partitions."""
    return make_store(make_graph(), tmp_path)


# ---- arguments


EDGE = {"edge_label_index": torch.zeros(2, 50, dtype=torch.int64), "batch_size": 90} | MARIUS
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"topology": "resident"}, "^topology='resident' is for batches that are sampled"),
    ({"neighbour_cache": "1MB"}, "^neighbour_cache='1MB' is for batches that are sampled"),
    ({"static": -0.1}, "^static=-0.1: give a share of the nodes, from 0 to 1"),
    ({"static": True}, "^static=True: give a share"),
    ({"static": 0.5}, r"static=0.5: .* has the lists of 0\.04 of the nodes"),
    ({"passes": 1.5}, r"^passes=1\.5"),
    ({"megabatch": 0}, "^megabatch=0 must be a whole number of at least 1"),
    ({"packed": "x"}, r"^packed='x' belongs to a strategy: give strategy=DiskGNN\(packed='x'\)"),
    ({"partitioned": 3}, "^partitioned=3 is no name or path of a folder"),
    # more than plain sampling
    ({"disjoint": True}, "disjoint="),
    ({"subgraph_type": "induced"}, "subgraph_type='induced'"),
    ({"time_attr": "y", "input_time": torch.zeros(NODES).long()}, "time_attr="),
    ({"weight_attr": "y"}, "weight_attr="),
    ({"neighbor_sampler": NoSampler()}, "neighbor_sampler="),
    ({"sampler": range(20), "shuffle": None}, "sampler= and batch_sampler="),
    ({"batch_sampler": [[1], [2]], "shuffle": None, "batch_size": 1}, "batch_sampler="),
    # marius
    (MARIUS | {"transform_sampler_output": dict}, "leave transform_sampler_output= out"),
    (MARIUS | {"order": "best"}, "order='best' is not an order"),
    # seed edges
    (EDGE | {"disjoint": True}, "leave disjoint= out, or give strategy='gnndrive'"),
    (EDGE | {"strategy": "hierbatching"}, 'give LinkNeighborLoader strategy="marius"'),
    (EDGE | {"megabatch": 1}, "'comet' needs 2 of 12 .*: give megabatch=2 or more"),
    (EDGE | {"weight_attr": "edge_attr"}, "leave weight_attr= out, or give strategy='gnndrive'"),
    (EDGE | {"time_attr": "y", "edge_label_time": torch.zeros(50).long()}, "leave time_attr= out"),
    (EDGE | {"subgraph_type": "bidirectional"}, "leave subgraph_type='bidirectional' out"),
    (EDGE | {"neg_sampling": NegativeSampling("binary", 1, None, torch.ones(NODES))},
     "leave the weights of neg_sampling= out"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_cannot_work_is_refused(make: Make, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        iter(make(**arguments))


def test_types_are_refused(tmp_path: Path) -> None:
    typed = gnndrive.from_data(make_typed(), tmp_path / "typed.gnn")
    with pytest.raises(ConfigError, match=r"samples inside partitions, and .* is heterogeneous: g"):
        NeighborLoader(typed, [3], input_nodes="paper", strategy="hierbatching")


def test_single_batches_are_refused(make: Make) -> None:
    loader = make()
    for call in (loader, loader.collate_fn):
        with pytest.raises(ConfigError, match=r"loader\(index\) and collate_fn .* inside windows"):
            call([0, 1, 2])
    assert len(list(loader)) == len(loader)


def test_features_that_the_program_has_set_are_refused_at_any_time(make: Make, own: Store) -> None:
    later = make(data=own)
    own.x = torch.randn(own.num_nodes, 4)
    for use in (lambda: make(data=own), lambda: iter(later)):
        with pytest.raises(ConfigError, match="features that you have set yourself"):
            use()


# ---- folders


def test_several_partitions_need_a_choice(make: Make, own: Store, tmp_path: Path) -> None:
    partition(own, 4, "random", MEMORY, name="four")
    named = "'hierbatching:partitioned=default' or 'hierba.*; four: 4 partitions, random, seed 0"
    with pytest.raises(ConfigError, match=named):
        make(data=own)
    partition(own, 3, "ldg", MEMORY, name="three")
    assert "of 3 partitions" in make(data=own).plan().details(), "it alone suits the strategy"
    shutil.rmtree(own.path / "partitioned" / "three")
    shutil.copytree(own.path / "partitioned" / "four", tmp_path / "elsewhere")
    for named in ("four", b"four", own.path / "partitioned" / "four", tmp_path / "elsewhere"):
        loader = make(data=own, partitioned=named, megabatch=1)
        assert "each of 1 of 4 partitions" in loader.plan().details()
    assert f"3 of {PARTS}" in make(data=own, partitioned="default").plan().details()
    (own.path / "partitioned" / "default" / "partition.json").write_text("{}")
    assert "1 of 4" in make(data=own, megabatch=1).plan().details(), "one is damaged"
    with pytest.raises(StoreError, match=r"default/partition\.json"):
        make(data=own, partitioned="default")


def test_dots_are_no_name(make: Make, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.path / "partitioned" / "default")
    for named in (".", "../default"):
        plan = make(data=own, partitioned=named, megabatch=1).plan()
        assert f"of {PARTS}" in plan.details()


def test_what_is_not_there_is_refused(make: Make, tmp_path: Path) -> None:
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    with pytest.raises(ConfigError, match=r"has none: make them with gnndrive\.partition\(store\)"):
        make(data=store)
    for named in ("nowhere", b"bytes", "../nowhere"):
        with pytest.raises(ConfigError, match=r"is not there: .* has default; make it with `gnndr"):
            make(partitioned=named)
    with pytest.raises(ConfigError, match=r"is no name or path of a folder; .* has default; make"):
        make(partitioned="")
    with pytest.raises(StoreError, match="is not a partitioned folder; make one with gnndrive"):
        make(partitioned=tmp_path)


# ---- memory


@product("megabatch,name", [None, 1, 5], ["memory", "buffer", "device_memory"])
def test_the_least_that_works_is_named(make: Make, name: str, megabatch: int | None) -> None:
    """And works; a fiftieth less does not."""
    if name == "device_memory":
        make = partial(make, device="simulated-cuda")
    with pytest.raises(ConfigError, match=f"{name}=1 KB is too little") as caught:
        make(megabatch=megabatch, **{name: "1KB"}).plan()
    found = LEAST.search(str(caught.value))
    assert found[1] == name
    # For memory= only what was tried is named, and nothing makes 1 KB enough.
    assert ("megabatch=" in str(caught.value)) is (megabatch == 5 and name != "memory")
    loader = make(megabatch=megabatch, **{name: found[2]})
    assert len(list(loader)) == len(loader)
    plan = loader.plan()
    used = {
        "memory": plan.total_bytes, "buffer": plan.buffer_bytes,
        "device_memory": plan.device_bytes,
    }[name]  # fmt: skip
    with pytest.raises(ConfigError, match="is too little"):
        make(megabatch=megabatch, **{name: used * 49 // 50}).plan()


def test_large_attributes_that_memory_has_no_room_for(make, tmp_path, monkeypatch):
    """The least memory counts that their rows are read then."""
    monkeypatch.setattr("gnndrive.plan.plan.RING_BYTES", 1 << 16)  # for so small a file
    data = make_graph()
    data.wide = torch.randn(NODES, 600)
    store = make_store(data, tmp_path)
    with pytest.raises(ConfigError, match="memory=1 KB is too little") as caught:
        make(data=store, memory="1KB").plan()
    loader = make(data=store, memory=LEAST.search(str(caught.value))[2])
    assert loader.plan().fetched == ("nodes/wide",)
    for batch in islice(loader, 3):
        assert torch.equal(batch.wide, data.wide[batch.n_id])


MEND = r"remove the folder, and partition the store again \(gnndrive partition\)"
NARROW = ("order.npy", "place.npy", "indices.npy", "static_indices.npy")


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's partitions, which the test may damage."""
    return Path(shutil.copytree(store.path / "partitioned" / "default", tmp_path / "parts"))


@pytest.mark.parametrize("opened", [False, True], ids=["before", "after it was opened"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_an_error_or_harmless(make, folder, kind, opened, seeds, tmp_path):
    for seed in seeds(4):
        damaged = shutil.copytree(folder, tmp_path / f"damaged{seed}")
        change = partial(damage, damaged, kind, seed, "x.npy", lambda file: file.name in NARROW)
        said = None if opened else change()
        what, message = outcome(
            partial(make, partitioned=damaged), change if opened else lambda: None
        )
        assert what == "sound" or str(damaged) in message, (seed, said, message)
        assert what == "refused" or opened or kind != "short"


def test_order_and_place_that_end_early(make: Make, folder: Path) -> None:
    """They are mapped: the kernel's signal becomes an error. `place` says which partitions the
    inputs are in, once for a loader."""
    iterator = iter(make(partitioned=folder))
    next(iterator)
    later = make(partitioned=folder)
    for name, batches in (("order", iterator), ("place", later), ("place", later)):
        os.truncate(folder / f"{name}.npy", DATA_OFFSET)
        with pytest.raises(ReadError) as caught:
            list(batches)
        assert caught.value.path == str(folder / f"{name}.npy")


def test_order_and_place_that_contradict_each_other(make: Make, folder: Path) -> None:
    loader = make(partitioned=folder)
    place = np.memmap(folder / "place.npy", np.int32, "r+", DATA_OFFSET)
    place[:] = place[::-1].copy()
    place.flush()
    with pytest.raises(StoreError, match=r"order\.npy and place\.npy beside .* do not fit"):
        list(loader)

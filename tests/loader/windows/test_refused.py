"""What a loader of windows says to arguments, stores and folders that cannot work."""

from __future__ import annotations

import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.partitioned.partition import partition
from tests.loader.hetero.graph import make_data as make_typed
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import MEMORY, PARTS, make_graph, make_store
from tests.soak import product

LEAST = re.compile(r'(memory|buffer)="([^"]+)"')


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """A store that the test may change, with partitions."""
    return make_store(make_graph(), tmp_path)


# ---- arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [("partitioned", "default"), ("megabatch", 3), ("static", 0.1), ("passes", 2), ("order", "x")],
)
def test_arguments_of_windows_are_for_strategies_with_windows(store, name, value):
    for strategy in ("gnndrive", "diskgnn"):
        said = re.escape(f"{name}={value!r} is for a strategy that samples inside windows")
        with pytest.raises(ConfigError, match=said):
            NeighborLoader(store, [3], strategy=strategy, **{name: value})
    with pytest.raises(ConfigError, match=f"{name}=.* is for a store"):
        NeighborLoader(make_graph(), [3], **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("topology", "resident"), ("policy", "belady"), ("sweep", 2), ("neighbour_cache", "1MB")],
)
def test_arguments_of_other_loaders_are_refused(make: Make, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}={value!r} is for batches that are sampled"):
        make(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"static": -0.1}, "static=-0.1: give a share of the nodes, from 0 to 1"),
        ({"static": float("nan")}, "static=nan: give a share"),
        ({"static": True}, "static=True: give a share"),
        ({"passes": 1.5}, "passes=1.5"),
        ({"megabatch": 0}, "megabatch=0 must be a whole number of at least 1"),
        ({"packed": "x"}, "packed= is for a strategy that replays"),
        ({"partitioned": 3}, "partitioned=3: give a name, or the path of a folder"),
    ],
)
def test_values_that_cannot_work(make: Make, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        make(**arguments)


class Users(NeighborSampler):
    """A sampler of the user's, which needs no graph."""

    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"disjoint": True}, "disjoint="),
        ({"subgraph_type": "induced"}, "subgraph_type='induced'"),
        ({"time_attr": "y", "input_time": torch.zeros(900).long()}, "time_attr="),
        ({"weight_attr": "weight"}, "weight_attr="),
        ({"neighbor_sampler": Users()}, "neighbor_sampler="),
        ({"sampler": range(20), "shuffle": None}, "sampler= and batch_sampler="),
        ({"batch_sampler": [[1], [2]], "shuffle": None, "batch_size": 1}, "batch_sampler="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_more_than_plain_sampling_is_refused(make, tmp_path, arguments, named):
    data = make_graph()
    data.weight = torch.ones(data.num_edges)
    store = make_store(data, tmp_path)
    for use in (len, iter, NeighborLoader.plan):
        with pytest.raises(ConfigError, match=re.escape(named)):
            use(make(data=store, **arguments))


def test_types_are_refused(tmp_path: Path) -> None:
    typed = gnndrive.from_data(make_typed(), tmp_path / "typed.gnn")
    with pytest.raises(ConfigError, match=r"samples inside partitions, and .* is heterogeneous: g"):
        NeighborLoader(typed, [3], input_nodes="paper", strategy="hierbatching")
    with pytest.raises(ConfigError, match=r"is heterogeneous, .* train with another strategy"):
        partition(typed)


def test_single_batches_are_refused(make: Make) -> None:
    loader = make()
    for call in (loader, loader.collate_fn):
        with pytest.raises(ConfigError, match=r"loader\(index\) and collate_fn .* inside windows"):
            call([0, 1, 2])
    assert len(list(loader)) == len(loader)


# ---- tables


def test_features_of_edges_with_a_table_are_refused(make: Make, tmp_path: Path) -> None:
    """They are those of at least 64 bytes; smaller ones are read beside the tables."""
    data = make_graph()
    for width, works in ((15, True), (16, False)):
        data.edge_attr = torch.randn(data.num_edges, width)
        folder = tmp_path / str(width)
        folder.mkdir()
        store = make_store(data, folder)
        if works:
            for batch in make(data=store):
                assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        else:
            with pytest.raises(ConfigError, match="use another strategy for edge features of 64 b"):
                make(data=store)


def test_features_of_the_programs_own_are_refused(make: Make, own: Store) -> None:
    """Before the loader is made, and after that."""
    loader = make(data=own)
    kept = list(loader)
    own.x = torch.randn(own.num_nodes, 4)
    with pytest.raises(ConfigError, match="features that you have set yourself"):
        make(data=own)
    other = gnndrive.open(own.path)
    later = make(data=other)
    other.x = torch.randn(own.num_nodes, 4)
    with pytest.raises(ConfigError, match="features that you have set yourself"):
        iter(later)
    assert kept


# ---- folders


def test_without_partitions_the_message_says_how_to_make_them(tmp_path: Path) -> None:
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    with pytest.raises(ConfigError, match=r"has none: make them with gnndrive\.partition\(store\)"):
        NeighborLoader(store, strategy="hierbatching", num_neighbors=[3])


def test_several_partitions_need_a_choice(make: Make, own: Store, tmp_path: Path) -> None:
    partition(own, 4, "random", MEMORY, name="four")
    with pytest.raises(ConfigError, match="give partitioned='default', partitioned='four'"):
        make(data=own)
    shutil.copytree(own.path / "partitioned" / "four", tmp_path / "elsewhere")
    for named in ("four", b"four", own.path / "partitioned" / "four", tmp_path / "elsewhere"):
        loader = make(data=own, partitioned=named, megabatch=1)
        assert "each of 1 of 4 partitions" in str(loader.plan())
    assert f"3 of {PARTS}" in str(make(data=own, partitioned="default").plan())
    (own.path / "partitioned" / "default" / "partition.json").write_text("{}")
    assert "1 of 4" in str(make(data=own, megabatch=1).plan()), "one is damaged"
    with pytest.raises(StoreError, match=r"default/partition\.json"):
        make(data=own, partitioned="default")


def test_what_is_not_there_is_refused(make: Make, tmp_path: Path) -> None:
    for named in ("nowhere", b"bytes", "../nowhere", ""):
        with pytest.raises(ConfigError, match=r"is not there: .* has default; make it with `gnndr"):
            make(partitioned=named)
    with pytest.raises(StoreError, match="is no partitioned folder; make one with gnndrive"):
        make(partitioned=tmp_path)


def test_a_store_that_was_imported_again(make: Make, own: Store) -> None:
    kept = own.path.with_name("kept")
    shutil.copytree(own.path / "partitioned", kept)
    data: Data = make_graph()
    data.x += 1
    again = gnndrive.from_data(data, own.path, if_exists="replace")
    with pytest.raises(ConfigError, match="has none: make them"):
        make(data=again)
    shutil.copytree(kept, own.path / "partitioned")
    with pytest.raises(StoreError, match="has changed since"):
        make(data=again)


# ---- memory


@product("megabatch,name", [None, 1, 5], ["memory", "buffer"])
def test_the_least_that_works_is_named(make: Make, name: str, megabatch: int | None) -> None:
    """And works; a fiftieth less does not."""
    with pytest.raises(ConfigError, match=f"{name}=1 KB is too little") as caught:
        make(megabatch=megabatch, **{name: "1KB"}).plan()
    found = LEAST.search(str(caught.value))
    assert found[1] == name
    assert ("megabatch=" in str(caught.value)) is (megabatch == 5)
    loader = make(megabatch=megabatch, **{name: found[2]})
    assert len(list(loader)) == len(loader)
    plan = loader.plan()
    used = plan.total_bytes if name == "memory" else plan.buffer_bytes
    with pytest.raises(ConfigError, match="is too little"):
        make(megabatch=megabatch, **{name: used * 49 // 50}).plan()


def test_large_attributes_that_memory_has_no_room_for(make, tmp_path, monkeypatch):
    """The least memory counts that their rows are read then."""
    monkeypatch.setattr("gnndrive.plan.planner.RING_BYTES", 1 << 16)  # for so small a file
    data = make_graph()
    data.wide = torch.randn(data.num_nodes, 600)
    store = make_store(data, tmp_path)
    with pytest.raises(ConfigError, match="memory=1 KB is too little") as caught:
        make(data=store, memory="1KB").plan()
    loader = make(data=store, memory=LEAST.search(str(caught.value))[2])
    assert loader.plan().fetched == ("nodes/wide",)
    for batch in islice(loader, 3):
        assert torch.equal(batch.wide, data.wide[batch.n_id])


def test_more_static_nodes_than_the_folder_has(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"static=0.5: .* has the lists of 0\.04 of the nodes"):
        len(make(static=0.5))

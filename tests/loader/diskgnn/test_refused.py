"""Which pack a loader replays, and what it says when there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from tests.loader.batches import assert_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, Replay
from tests.loader.diskgnn.packs import loader_of, make_pack, pack_folder
from tests.store.packed.graphs import make_graph

OTHER = {
    "batch_size": (31, "batch_size was 32 and is 31"),
    "shuffle": (False, "shuffle was True and is False"),
    "drop_last": (True, "drop_last was False and is True"),
    "num_neighbors": ([4, 2], "fanout was [4, 3] and is [4, 2]"),
    "replace": (True, "replace was False and is True"),
    "input_nodes": (torch.arange(9), "the input nodes or edges was "),
    "disjoint": (True, "sampling was that of plain neighbour sampling and is "),
    "weight_attr": ("weight", "sampling was that of plain neighbour sampling and is "),
    "subgraph_type": ("induced", "sampling was that of plain neighbour sampling and is "),
}


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """A store that the test may damage, with a pack."""
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    make_pack(store, ARGUMENTS)
    return store


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_that_differs_is_named(replay: Replay, store: Store, name: str) -> None:
    """Also with packed=, which says where the pack is and not what it holds."""
    value, message = OTHER[name]
    for packed in (None, pack_folder(store)):
        with pytest.raises(ConfigError, match=re.escape(message)) as caught:
            replay(buffer="100KB", packed=packed, **{name: value})
        assert "gnndrive.pack(" in str(caught.value)
        assert str(pack_folder(store)) in str(caught.value)


def test_without_a_pack_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    with pytest.raises(ConfigError, match=r"no pack of this loader's: .*gnndrive\.pack\(store, "):
        loader_of(store, ARGUMENTS, buffer="100KB")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({}, "[4, 3], input_nodes=…, batch_size=32, memory=…"),
        ({"edge_label_index": None}, "[4, 3], edge_label_index=…, batch_size=32, memory=…"),
    ],
    ids=["nodes", "links"],
)
def test_the_advice_is_for_this_kind_of_loader(
    store: Store, arguments: dict[str, Any], advice: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)) as caught:
        loader_of(store, ARGUMENTS | {"shuffle": False} | arguments, buffer="100KB")
    assert ("or with gnndrive pack" in str(caught.value)) == (not arguments)


def test_several_packs_need_a_choice(own: Store) -> None:
    make_pack(own, ARGUMENTS, seed=9)
    names = sorted(path.name for path in Path(own.path, "packed").iterdir())
    assert len(names) == 2
    with pytest.raises(ConfigError, match=f"packed='{names[0]}', packed='{names[1]}'"):
        loader_of(own, ARGUMENTS, buffer="100KB")
    inputs = set()
    for name in names:
        with loader_of(own, ARGUMENTS, buffer="100KB", packed=name) as loader:
            inputs.add(str([batch.input_id.tolist() for batch in loader]))
    assert len(inputs) == 2, "both replayed one pack"


def test_a_pack_may_be_anywhere(own: Store, tmp_path: Path) -> None:
    with loader_of(own, ARGUMENTS, buffer="100KB") as loader:
        expected = list(loader)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(pack_folder(own), elsewhere)
    for packed in (elsewhere, str(elsewhere)):
        with loader_of(own, ARGUMENTS, buffer="100KB", packed=packed) as loader:
            for one, other in zip(loader, expected, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("packed", ["", b"", "a\0b", 3, object()])
def test_what_is_no_path_is_refused(own: Store, packed: Any) -> None:
    with pytest.raises(ConfigError, match=r"packed=.*: give the path of a pack's folder"):
        loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)


@pytest.mark.parametrize("packed", ["nowhere", b"bytes", "n" * 300, "nowhere/else"])
def test_what_is_not_there_is_refused(own: Store, packed: str | bytes) -> None:
    """The message says where the loader has looked."""
    name = os.fsdecode(packed)
    with pytest.raises(ConfigError, match=r"is not there: .*\(gnndrive pack\)") as caught:
        loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)
    assert f" at {own.path}/packed/{name} or {Path.cwd()}/{name}; " in str(caught.value)


def test_a_folder_that_is_no_pack_is_refused(own: Store, tmp_path: Path) -> None:
    for packed in ("..", tmp_path):
        with pytest.raises(StoreError, match=r"is not a pack; make one with gnndrive pack"):
            loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)


def test_a_store_that_has_changed_is_refused(own: Store) -> None:
    path, pack = own.path, pack_folder(own)
    kept = Path(path).with_name("kept")
    shutil.move(pack, kept)
    changed: Data = make_graph()
    changed.x += 1
    store = gnndrive.from_data(changed, path, if_exists="replace")
    pack.parent.mkdir(exist_ok=True)
    shutil.move(kept, pack)
    with pytest.raises(StoreError, match=r"has changed since .* was packed"):
        loader_of(store, ARGUMENTS, buffer="100KB", packed=pack)
    with pytest.raises(ConfigError, match=r"has changed since .* was packed"):
        loader_of(store, ARGUMENTS, buffer="100KB")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": SequentialSampler(range(300)), "shuffle": None}, "sampler= or batch_sampler="),
        ({"transform_sampler_output": lambda output: output}, "transform_sampler_output="),
    ],
)
def test_batches_of_the_users_own_are_refused(
    store: Store, arguments: dict[str, Any], named: str
) -> None:
    given = ARGUMENTS | {"disjoint": True} | arguments
    with pytest.raises(ConfigError, match=named):
        NeighborLoader(store, strategy="diskgnn", buffer="100KB", **given)


class Users(NeighborSampler):
    """A sampler of the user's, which needs no graph."""

    def __init__(self) -> None: ...


def test_a_sampler_of_the_users_own_is_refused(store: Store) -> None:
    given = ARGUMENTS | {"neighbor_sampler": Users(), "disjoint": True}
    with pytest.raises(ConfigError, match="neighbor_sampler="):
        NeighborLoader(store, strategy="diskgnn", buffer="100KB", **given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy", "belady"), ("sweep", 2), ("topology", "resident"), ("neighbour_cache", "1MB")],
)
def test_arguments_for_drawn_batches_are_refused(replay: Replay, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r} is for batches that are drawn"):
        replay(buffer="100KB", **{name: value})


def test_packed_is_for_loaders_that_replay(store: Store) -> None:
    with pytest.raises(ConfigError, match="packed= is for a strategy that replays"):
        loader_of(store, ARGUMENTS, strategy="gnndrive", packed=pack_folder(store))


def test_single_batches_are_refused(replay: Replay) -> None:
    """There are the recorded batches only."""
    loader = replay()
    for call in (loader, loader.collate_fn):
        with pytest.raises(ConfigError, match="recorded batches only"):
            call([0, 1, 2])
    assert len(list(loader)) == BATCHES


def test_an_argument_that_is_changed_later(replay: Replay) -> None:
    """As users may: the loader looks for another pack."""
    loader = replay()
    loader.num_neighbors = [4, 2]
    with pytest.raises(ConfigError, match="fanout was"):
        iter(loader)
    loader.num_neighbors = [4, 3]
    assert len(list(loader)) == BATCHES


def test_features_that_changed_are_refused(own: Store) -> None:
    """Those that `gnndrive.infer` adds may change without the store's identity."""
    path = pack_folder(own) / "pack.json"
    document = json.loads(path.read_text())
    assert document["tables"]["nodes/x"] == own.info.arrays["nodes/x"].sha256
    document["tables"]["nodes/x"] = "0" * 64
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"the features of .* have changed since .* was packed"):
        loader_of(own, ARGUMENTS, buffer="100KB")

"""Which pack a loader replays; what it says when there is none, or another in its place."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import SequentialSampler
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.packed.recording import Recording
from tests.loader.batches import assert_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, loader_of, make_pack, pack_folder
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
def test_a_setting_that_differs_is_named(replay, store, name):
    """Also with packed=, which says where the pack is and not what it holds."""
    value, message = OTHER[name]
    for packed in (None, pack_folder(store)):
        with pytest.raises(ConfigError, match=re.escape(message)) as caught:
            replay(buffer="100KB", packed=packed, **{name: value})
        assert "gnndrive.pack(" in str(caught.value)
        assert str(pack_folder(store)) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({}, "[4, 3], input_nodes=…, batch_size=32, memory=…"),
        ({"edge_label_index": None}, "[4, 3], edge_label_index=…, batch_size=32, memory=…"),
    ],
)
def test_the_advice_is_for_this_kind_of_loader(store, arguments, advice):
    with pytest.raises(ConfigError, match=re.escape(advice)) as caught:
        loader_of(store, ARGUMENTS | {"shuffle": False} | arguments, buffer="100KB")
    assert ("or with gnndrive pack" in str(caught.value)) == (not arguments)


def test_without_a_pack_the_message_says_how_to_make_one(graph, tmp_path):
    store = gnndrive.from_data(graph, tmp_path / "graph.gnn")
    with pytest.raises(ConfigError, match=r"no pack of this loader's: .*gnndrive\.pack\(store, "):
        loader_of(store, ARGUMENTS, buffer="100KB")


def test_several_packs_need_a_choice(own):
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


def test_a_pack_may_be_anywhere(own, tmp_path):
    with loader_of(own, ARGUMENTS, buffer="100KB") as loader:
        expected = list(loader)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(pack_folder(own), elsewhere)
    for packed in (elsewhere, str(elsewhere)):
        with loader_of(own, ARGUMENTS, buffer="100KB", packed=packed) as loader:
            for one, other in zip(loader, expected, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("packed", ["", "a\0b", 3])
def test_what_is_no_path_is_refused(own, packed):
    with pytest.raises(ConfigError, match=r"packed=.*: give the path of a pack's folder"):
        loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)


@pytest.mark.parametrize("packed", [b"bytes", "n" * 300, "nowhere/else"])
def test_what_is_not_there_is_refused(own, packed):
    """The message says where the loader has looked."""
    name = os.fsdecode(packed)
    with pytest.raises(ConfigError, match=r"is not there: .*\(gnndrive pack\)") as caught:
        loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)
    assert f" at {own.path}/packed/{name} or {Path.cwd()}/{name}; " in str(caught.value)


def test_a_folder_that_is_no_pack_is_refused(own, tmp_path):
    for packed in ("..", tmp_path):
        with pytest.raises(StoreError, match=r"is not a pack; make one with gnndrive pack"):
            loader_of(own, ARGUMENTS, buffer="100KB", packed=packed)


def test_a_store_that_has_changed_is_refused(own):
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


class Users(NeighborSampler):
    """A sampler of the user's, which needs no graph."""

    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": SequentialSampler(range(300)), "shuffle": None}, "sampler= or batch_sampler="),
        ({"transform_sampler_output": lambda output: output}, "transform_sampler_output="),
        ({"neighbor_sampler": Users()}, "neighbor_sampler="),
    ],
)
def test_batches_of_the_users_own_are_refused(store, arguments, named):
    given = ARGUMENTS | {"disjoint": True} | arguments
    with pytest.raises(ConfigError, match=named):
        NeighborLoader(store, strategy="diskgnn", buffer="100KB", **given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy", "belady"), ("sweep", 2), ("topology", "resident"), ("neighbour_cache", "1MB")],
)
def test_arguments_for_drawn_batches_are_refused(replay, name, value):
    with pytest.raises(ConfigError, match=f"{name}={value!r} is for batches that are drawn"):
        replay(buffer="100KB", **{name: value})


def test_packed_is_for_loaders_that_replay(store):
    with pytest.raises(ConfigError, match="packed= is for a strategy that replays"):
        loader_of(store, ARGUMENTS, strategy="gnndrive", packed=pack_folder(store))


def test_single_batches_are_refused(replay):
    """There are the recorded batches only."""
    loader = replay()
    for call in (loader, loader.collate_fn):
        with pytest.raises(ConfigError, match="recorded batches only"):
            call([0, 1, 2])
    assert len(list(loader)) == BATCHES


def test_an_argument_that_is_changed_later(replay):
    """As users may: the loader looks for another pack."""
    loader = replay()
    loader.num_neighbors = [4, 2]
    with pytest.raises(ConfigError, match="fanout was"):
        iter(loader)
    loader.num_neighbors = [4, 3]
    assert len(list(loader)) == BATCHES


def test_features_that_changed_are_refused(own):
    """Those that `gnndrive.infer` adds may change without the store's identity."""
    path = pack_folder(own) / "pack.json"
    document = json.loads(path.read_text())
    assert document["tables"]["nodes/x"] == own.info.arrays["nodes/x"].sha256
    document["tables"]["nodes/x"] = "0" * 64
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"the features of .* have changed since .* was packed"):
        loader_of(own, ARGUMENTS, buffer="100KB")


# ---- a store with two packs


def test_a_running_loader_does_not_change_its_pack(tmp_path):
    """Its layouts, plan and places are the first pack's."""
    data = make_graph()
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    make_pack(store, ARGUMENTS)
    make_pack(store, ARGUMENTS | {"num_neighbors": [2, 2]})
    with loader_of(store, ARGUMENTS, buffer="100KB") as loader:
        loader.num_neighbors = [2, 2]
        small = max(batch.num_nodes for batch in loader)  # it has not started before
        loader.num_neighbors = ARGUMENTS["num_neighbors"]
        with pytest.raises(ConfigError, match=r"another pack, .* make another loader"):
            iter(loader)
        loader.num_neighbors = [2, 2]
        assert max(batch.num_nodes for batch in loader) == small


def test_a_state_belongs_to_the_batches_and_not_to_their_places(tmp_path):
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    first = make_pack(store, ARGUMENTS, segment=1).settings.digest
    second = make_pack(store, ARGUMENTS, segment=5).settings.digest
    other = make_pack(store, ARGUMENTS, seed=9).settings.digest
    with loader_of(store, ARGUMENTS, buffer="100KB", packed=first) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with loader_of(store, ARGUMENTS, buffer="100KB", packed=second) as loader:
        loader.load_state_dict(state)
        for one, expected in zip(loader, rest, strict=True):
            assert sorted(one.n_id.tolist()) == sorted(expected.n_id.tolist())
            assert one.input_id.equal(expected.input_id)
    with (
        loader_of(store, ARGUMENTS, buffer="100KB", packed=other) as loader,
        pytest.raises(ConfigError, match="packed was "),
    ):
        loader.load_state_dict(state)


# ---- a pack that is removed or replaced while a loader lives: an error, never rows of another pack


REFUSED = r"was removed or replaced since it was opened: make a new loader"


@pytest.fixture
def pack(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's pack, which the test may replace."""
    return Path(shutil.copytree(pack_folder(store), tmp_path / "pack"))


@pytest.fixture(scope="module")
def other(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of the same batches, which has each batch's rows elsewhere."""
    made = tmp_path_factory.mktemp("other") / "pack"
    make_pack(store, ARGUMENTS, epochs=EPOCHS, segment=1, buffer="1GB", out=made)
    return made


def put(other: Path, pack: Path) -> None:
    """Replace a pack by a copy of another one."""
    pack.rename(pack.with_name("away"))
    shutil.copytree(other, pack)


def open_at(store: Store, pack: Path) -> NeighborLoader:
    return loader_of(store, ARGUMENTS, packed=pack, buffer="100KB")


@pytest.mark.parametrize("change", [put, lambda _, pack: shutil.rmtree(pack)], ids=["put", "gone"])
@pytest.mark.parametrize("epochs", [0, 1], ids=["opened", "started"])
def test_between_epochs(store, pack, other, change, epochs):
    """The rows' files are open if the loader has started; samples are opened for each batch."""
    with open_at(store, pack) as loader:
        for _ in range(epochs):
            assert len(list(loader)) == BATCHES
        change(other, pack)
        with pytest.raises(StoreError, match=REFUSED):
            list(loader)


def test_a_loader_opens_no_rows_of_another_pack(store, graph, pack, other):
    """Also if its own pack is there again before a sample is read."""
    with open_at(store, pack) as loader:
        put(other, pack)
        with pytest.raises(StoreError, match=REFUSED):
            iter(loader)
        shutil.rmtree(pack)
        pack.with_name("away").rename(pack)
        batches = list(loader)
        assert len(batches) == BATCHES
        for batch in batches:
            check_rows(batch, graph)


def test_within_an_epoch(store, graph, pack, other):
    """Batches whose samples are read already are delivered, and are right."""
    with loader_of(
        store, ARGUMENTS, packed=pack, samplers=1, extracting_queue=1, training_queue=1
    ) as loader:
        batches = iter(loader)
        check_rows(next(batches), graph)
        put(other, pack)
        with pytest.raises(StoreError, match=REFUSED):  # noqa: PT012
            for batch in batches:
                check_rows(batch, graph)


def test_a_copy_of_the_same_pack_is_taken(store, pack):
    with open_at(store, pack) as loader:
        first = list(loader)
        put(pack_folder(store), pack)
        loader.set_epoch(0)
        for one, expected in zip(loader, first, strict=True):
            assert_same(one, expected)


def test_a_pickled_loader_refuses_another_pack(store, pack, other):
    with open_at(store, pack) as loader:
        pickled = pickle.dumps(loader)
    put(other, pack)
    with pickle.loads(pickled) as again, pytest.raises(StoreError, match=REFUSED):
        list(again)
    shutil.rmtree(pack)
    shutil.copytree(pack_folder(store), pack)
    with pickle.loads(pickled) as again:
        assert len(list(again)) == BATCHES


def test_files_are_those_of_the_pack_json_that_was_read(store, pack, other):
    """The pack is replaced between reading pack.json and opening the files."""
    with open_at(store, pack) as loader:
        assembly = loader._assembly()
    assert assembly.recording is not None
    info, tables = assembly.recording.info, assembly.collate.tables
    Recording(pack, info, store, tables)
    put(other, pack)
    with pytest.raises(StoreError, match=REFUSED):
        Recording(pack, info, store, tables)

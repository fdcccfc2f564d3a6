"""Which pack a loader replays; what it says when there is none, or another in its place."""

import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from tests.loader.batches import NoSampler, assert_all_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, loader_of, make_pack, pack_folder
from tests.loader.hetero.graph import make_data
from tests.store.packed.packs import make_graph

REFUSED: list[tuple[dict[str, Any], str]] = [
    # another pack's: the setting is named, and what would make the pack
    ({"num_neighbors": [4, 2]}, r"(?s)gnndrive\.pack\(.*fanout was \[4, 3\] and is \[4, 2\]"),
    ({"input_nodes": torch.arange(9)}, r"(?s)gnndrive\.pack\(.*input nodes or edges was "),
    ({"disjoint": True}, "sampling was that of plain neighbour sampling and is "),
    ({"shuffle": False}, r"(?s)\[4, 3\], input_nodes=…, batch_size=32, memory=…"),
    ({"edge_label_index": None}, r"\[4, 3\], edge_label_index=…, batch_size=32, memory=…"),
    # batches of the user's own
    ({"sampler": SequentialSampler(range(300)), "shuffle": None}, "sampler= or batch_sampler="),
    ({"transform_sampler_output": dict, "disjoint": True}, "transform_sampler_output="),
    ({"neighbor_sampler": NoSampler()}, "neighbor_sampler="),
    # for batches that are drawn
    ({"policy": "belady"}, "policy='belady' is for batches that are drawn"),
    ({"neighbour_cache": "1MB"}, "neighbour_cache='1MB' is for batches that are drawn"),
    # no pack
    ({"strategy": "gnndrive", "packed": "x"}, "packed='x' belongs to a strategy"),
    ({"packed": ""}, r"packed=.* is no name or path of a folder; give .*\(gnndrive pack\)"),
    ({"packed": "a\0b"}, "packed=.* is no name or path of a folder"),
    ({"packed": 3}, "packed=.* is no name or path of a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_work_is_refused(store, arguments, message):
    with pytest.raises(ConfigError, match=message):
        loader_of(store, ARGUMENTS | arguments, buffer="100KB")


def test_a_store_of_types_without_a_pack(tmp_path):
    store = gnndrive.from_data(make_data(), tmp_path / "types.gnn")
    with pytest.raises(ConfigError, match=r"make one with gnndrive\.pack\(store, .*input_nodes=…"):
        NeighborLoader(store, [3], ("paper", torch.arange(9)), strategy="diskgnn", batch_size=3)


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """A store that the test may damage, with a pack."""
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    make_pack(store, ARGUMENTS)
    return store


def open_at(store: Store, pack: Any) -> NeighborLoader:
    return loader_of(store, ARGUMENTS, packed=pack, buffer="100KB")


def test_several_packs_need_a_choice(own):
    make_pack(own, ARGUMENTS, seed=9)
    names = sorted(path.name for path in Path(own.path, "packed").iterdir())
    assert len(names) == 2
    given = " or ".join(f"'diskgnn:packed={name}'" for name in names)
    with pytest.raises(ConfigError, match=rf"{given} \({names[0]}: seed \d, .*; {names[1]}: seed"):
        open_at(own, None)
    inputs = set()
    for name in names:
        with open_at(own, name) as loader:
            inputs.add(str([batch.input_id.tolist() for batch in loader]))
    assert len(inputs) == 2, "both replayed one pack"


def test_where_a_pack_may_be(own, tmp_path):
    """Anywhere; a message says where the loader has looked."""
    with open_at(own, None) as loader:
        expected = list(loader)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(pack_folder(own), elsewhere)
    with pytest.raises(ConfigError, match=r"no pack of this loader's: .*gnndrive\.pack\(store, "):
        open_at(own, None)
    for packed in (elsewhere, str(elsewhere)):
        with open_at(own, packed) as loader:
            assert_all_same(loader, expected)
        with pytest.raises(ConfigError, match=re.escape(f"{elsewhere}: fanout was")) as caught:
            loader_of(own, ARGUMENTS | {"num_neighbors": [4, 2]}, packed=packed, buffer="100KB")
    for packed in (b"bytes", "n" * 300, "nowhere/else"):
        name = os.fsdecode(packed)
        with pytest.raises(ConfigError, match=r"is not there: .*\(gnndrive pack\)") as caught:
            open_at(own, packed)
        assert f" at {own.path}/packed/{name} or {Path.cwd()}/{name}; " in str(caught.value)
    for packed in ("..", tmp_path):
        with pytest.raises(StoreError, match=r"is not a pack; make one with gnndrive pack"):
            open_at(own, packed)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        # Those that `gnndrive.infer` adds may change without the store's identity.
        ({"tables": {"nodes/x": "0" * 64}}, StoreError, "nodes/x of .* has changed since"),
        ({"store": "0" * 64}, ConfigError, "has changed since .* was made"),
    ],
)
def test_what_has_changed_since_is_refused(own, change, error, said):
    path = pack_folder(own) / "pack.json"
    document = json.loads(path.read_text())
    assert document["tables"]["nodes/x"] == own.info.arrays["nodes/x"].sha256
    change = change | {"tables": document["tables"] | change.get("tables", {})}
    path.write_text(json.dumps(document | change))
    with pytest.raises(error, match=said):
        open_at(own, None)


def test_single_batches_are_refused(replay):
    """There are the recorded batches only."""
    loader = replay()
    for call in (loader, loader.collate_fn):
        with pytest.raises(ConfigError, match="recorded batches only"):
            call([0, 1, 2])
    assert len(list(loader)) == BATCHES


def test_an_argument_that_is_changed_later(own):
    """As users may. A loader that has not started looks for another pack; one that has keeps its
    own, because layouts, plan and places are that pack's."""
    make_pack(own, ARGUMENTS | {"num_neighbors": [2, 2]})
    with loader_of(own, ARGUMENTS, buffer="100KB") as loader:
        loader.num_neighbors = [4, 2]
        with pytest.raises(ConfigError, match="fanout was"):
            iter(loader)
        loader.num_neighbors = [2, 2]
        small = max(batch.num_nodes for batch in loader)
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
    with open_at(store, first) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with open_at(store, second) as loader:
        loader.load_state_dict(state)
        for one, expected in zip(loader, rest, strict=True):
            assert sorted(one.n_id.tolist()) == sorted(expected.n_id.tolist())
            assert one.input_id.equal(expected.input_id)
    with open_at(store, other) as loader, pytest.raises(ConfigError, match="packed was "):
        loader.load_state_dict(state)


# ---- a pack that is removed or replaced while a loader lives: an error, never rows of another pack


GONE = r"was removed or replaced since it was opened: make a new loader"


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


@pytest.mark.parametrize("change", [put, lambda _, pack: shutil.rmtree(pack)], ids=["put", "gone"])
def test_between_epochs(store, pack, other, change):
    """The rows' files are open; samples are opened for each batch."""
    with open_at(store, pack) as loader:
        assert len(list(loader)) == BATCHES
        change(other, pack)
        with pytest.raises(StoreError, match=GONE):
            list(loader)


def test_a_loader_opens_no_rows_of_another_pack(store, graph, pack, other):
    """Also if its own pack is there again before a sample is read."""
    with open_at(store, pack) as loader:
        pickled = pickle.dumps(loader)
        put(other, pack)
        with pytest.raises(StoreError, match=GONE):
            iter(loader)
        with pickle.loads(pickled) as again, pytest.raises(StoreError, match=GONE):
            list(again)
        shutil.rmtree(pack)
        pack.with_name("away").rename(pack)
        batches = list(loader)
        assert len(batches) == BATCHES
        for batch in batches:
            check_rows(batch, graph)


def test_the_least_memory_has_room_for_attributes(own, monkeypatch):
    monkeypatch.setattr("gnndrive.plan.plan.MAPPED_BYTES", 100)
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        loader_of(own, ARGUMENTS, memory="1MB").plan()
    (named,) = re.findall('give at least memory="([^"]+)"', str(caught.value))
    assert loader_of(own, ARGUMENTS, memory=named).plan()

"""split_links: seeds, opening again, arguments that cannot work, memory."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, Store, StoreError, open_links, split_links
from tests.store.link_split.graphs import (
    EDGES,
    NODES,
    distinct,
    halves_count,
    of,
)

# ---- seeds, opening again, errors


def test_the_seed_decides(store: Store, tmp_path: Path) -> None:
    first, same, other = (
        split_links(store, tmp_path / name, seed=seed)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first.train.path != same.train.path
    for one, two in zip(first, same, strict=True):
        assert np.array_equal(of(one), of(two))
        assert torch.equal(one.edge_label_index, two.edge_label_index)
    assert not np.array_equal(of(first.train), of(other.train))


def test_a_split_is_opened_again(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "p"
    made = split_links(store, path, if_exists="open", disjoint_train_ratio=0.2)
    for again in (
        split_links(store, path, if_exists="open", disjoint_train_ratio=0.2),
        open_links(path),
        pickle.loads(pickle.dumps(made)),
    ):
        for one, two in zip(made, again, strict=True):
            assert one.identity == two.identity
            assert torch.equal(one.edge_label_index, two.edge_label_index)
            assert torch.equal(one.edge_label, two.edge_label)
    assert gnndrive.open(path).identity == made.train.identity
    with pytest.raises(ConfigError, match=r'another num_val, another seed: choose.*"replace"'):
        split_links(store, path, if_exists="open", disjoint_train_ratio=0.2, num_val=0.3, seed=1)
    with pytest.raises(ConfigError, match="exists"):
        split_links(store, path)
    replaced = split_links(store, path, if_exists="replace", seed=9)
    assert not (path / "val").exists()
    assert replaced.val.identity == replaced.train.identity
    assert sorted(os.listdir(tmp_path)) == ["p", "s.gnn"]


def test_a_damaged_split_is_refused(store: Store, tmp_path: Path) -> None:
    path = split_links(store, tmp_path / "p").train.path
    with pytest.raises(StoreError, match="is not a split of links"):
        open_links(store.path)
    for file, words in (
        ("links/val/edges.npy", "cannot be read"),
        ("links/val/labels.npy", "cannot be read"),
        ("links/links.json", "is not a split"),
    ):
        content = (path / file).read_bytes()
        for damaged in (b"", content[:100], content[1:], b'{"edge_types": [3]}'):
            (path / file).write_bytes(damaged)
            with pytest.raises(StoreError, match=words):
                open_links(path)
        (path / file).write_bytes(content)
    (path / "links/links.json").write_text('{"edge_types": [["a", "..", "b"]]}')
    with pytest.raises(StoreError, match="is not a split"):
        open_links(path)


@pytest.mark.parametrize(
    "types",
    [[["a", ["b"], "c"]], [[1, 2, 3]], [], [[]] * 2, {}, {"": 1}, "x", None, [[None] * 3], [{}]],
)
def test_edge_types_of_a_stranger_are_checked(store: Store, tmp_path: Path, types: Any) -> None:
    path = split_links(store, tmp_path / "p").train.path
    settings = json.loads((path / "links/links.json").read_text())
    (path / "links/links.json").write_text(json.dumps(settings | {"edge_types": types}))
    with pytest.raises(StoreError, match="is not a split"):
        open_links(path)


def test_nested_json_is_refused(store: Store, tmp_path: Path) -> None:
    path = split_links(store, tmp_path / "p").train.path
    (path / "links/links.json").write_text("[" * 10**6)
    with pytest.raises(StoreError, match="is not a split"):
        open_links(path)


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_part_of_another_graph_is_refused(store: Store, tmp_path: Path, part: str) -> None:
    split = split_links(store, tmp_path / "p", disjoint_train_ratio=0.3)
    other = Data(edge_index=distinct(NODES, EDGES), num_nodes=NODES + 1)
    gnndrive.from_data(other, split.train.path / part, overwrite=True)
    with pytest.raises(StoreError, match="is not a split"):
        open_links(split.train.path)


@pytest.mark.parametrize("how", ["link", "pipe", "folder link", "rows", "huge"])
@pytest.mark.parametrize("name", ["edges.npy", "labels.npy"])
def test_labels_of_a_stranger_are_plain_files(
    store: Store, tmp_path: Path, how: str, name: str
) -> None:
    path = split_links(store, tmp_path / "p", num_val=0).train.path
    assert open_links(path).val.edge_label.shape == (0,)
    folder = path / "links/train"
    file, outside = folder / name, tmp_path / "outside"
    if how == "folder link":
        folder.rename(outside)
        folder.symlink_to(outside)
    else:
        file.rename(outside)
        if how == "link":
            file.symlink_to(outside)
        elif how == "pipe":
            os.mkfifo(file)
        elif how == "huge":
            whole = outside.read_bytes()
            file.write_bytes(whole.replace(b"'shape': (", b"'shape': (" + b"9" * 30))
        else:
            np.save(file, np.zeros((3, 3, 3)))
    with pytest.raises(StoreError, match="split the links again"):
        open_links(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_val": 1.5}, "num_val=1.5: give a share from 0.0 to 1.0, or a number"),
        ({"num_test": -1}, "num_test=-1"),
        ({"num_val": float("nan")}, "num_val=nan"),
        ({"num_val": 0.5, "num_test": 0.5}, "give fewer, so that edges are left"),
        ({"num_val": 10**9}, "give fewer"),
        ({"disjoint_train_ratio": 1.0}, "700 to supervise with alone: give fewer"),
        ({"neg_sampling_ratio": -1}, "neg_sampling_ratio=-1"),
        ({"neg_sampling_ratio": "x"}, "neg_sampling_ratio='x'"),
        ({"seed": 0.5}, "seed=0.5: give a whole number"),
        ({"memory": "1MB"}, 'memory=1 MB is too little: splitting these edges needs memory="27MB"'),
        ({"edge_types": "x"}, "is homogeneous: leave out edge_types"),
        ({"path": "s.gnn"}, "is the store that is split: choose another path"),
    ],
)
def test_arguments_that_cannot_work(store: Store, given: dict[str, Any], words: str) -> None:
    if "path" in given:
        given = {"path": store.path.parent / "x" / ".." / given["path"]}
    with pytest.raises(ConfigError, match=words):
        split_links(store, **given)
    assert os.listdir(store.path.parent) == ["s.gnn"]


def test_what_is_no_store_is_refused(data: Data) -> None:
    with pytest.raises(ConfigError, match="for data in memory there is"):
        split_links(data)  # type: ignore[arg-type]


# ---- larger than memory


def test_edges_larger_than_memory(tmp_path: Path) -> None:
    nodes, degree = 15_000, 100
    random = np.random.default_rng(0)
    store = gnndrive.write_store(
        tmp_path / "s", indptr=np.arange(nodes + 1) * degree,
        indices=random.integers(0, nodes, nodes * degree),
        edge_id=random.permutation(nodes * degree), nodes={},
        edges={"weight": np.arange(nodes * degree)},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r'needs memory="\d+MB"') as caught:
        split_links(store, tmp_path / "p", memory="8MB", neg_sampling_ratio=0.2)
    least = str(caught.value).split('"')[1]
    limit = int(least.removesuffix("MB")) * 10**6
    assert 40 * store.num_edges > 1.5 * limit  # what sorting takes in memory
    small = gnndrive.from_data(Data(edge_index=distinct(9, 40), num_nodes=9), tmp_path / "small")
    split_links(small, num_val=2, num_test=2)  # imports what is imported when it is needed
    tracemalloc.start()
    try:
        parts = split_links(store, tmp_path / "p", memory=least, neg_sampling_ratio=0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit
    assert parts.test.num_edges == store.num_edges - halves_count(parts.test)


# ---- parts as data, and what was set on the store


def test_labels_are_attributes_of_a_part(store: Store) -> None:
    part = split_links(store).train
    for each in (part, part.edges()):
        for name in ("edge_label_index", "edge_label"):
            assert name in each
            assert name in each.keys()  # noqa: SIM118
            assert each.get(name) is each[name] is each.to_dict()[name] is getattr(each, name)
            assert not each.is_edge_attr(name)
            assert not each.is_node_attr(name)
        assert each.is_edge_attr("weight")
    assert "edge_label" not in store


def test_attributes_of_nodes_that_were_set_are_on_the_parts(store: Store, tmp_path: Path) -> None:
    store.y, store.mark = torch.zeros(NODES), torch.arange(NODES)
    del store.x
    for if_exists in ("error", "open"):
        parts = split_links(store, tmp_path / "p", if_exists=if_exists)  # type: ignore[arg-type]
        for part in (*parts, pickle.loads(pickle.dumps(parts.val))):
            assert torch.equal(part.y, torch.zeros(NODES))
            assert torch.equal(part.mark, torch.arange(NODES))
            assert "x" not in part
        parts.train.mark = torch.zeros(NODES)
        assert torch.equal(store.mark, parts.val.mark)
    assert "x" in open_links(tmp_path / "p").train


@pytest.mark.parametrize("name", ["late", "weight", "edge_label"])
def test_attributes_of_edges_that_were_set_are_refused(
    store: Store, tmp_path: Path, name: str
) -> None:
    store[name] = torch.arange(store.num_edges)
    with pytest.raises(ConfigError, match=rf"^{name} was set .*gnndrive\.open"):
        split_links(store, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_labels_that_were_deleted_are_refused(store: Store, tmp_path: Path) -> None:
    del store.weight
    with pytest.raises(ConfigError, match=r"^weight was set or deleted"):
        split_links(store, tmp_path / "p", key="weight")


def test_a_path_is_no_store(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"an open store: give gnndrive\.open\('.*s\.gnn'\)"):
        split_links(store.path)  # type: ignore[arg-type]

"""Parts of a store for several hosts: what is in them, and what cannot be done with one."""

import os
import shutil

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError, StoreError
from gnndrive.common.owners import Owners
from gnndrive.store import shards, writer
from gnndrive.store.row_classes import kept_classes, row_classes
from gnndrive.store.shards import write_shards
from tests.loader.hetero.graph import WRITES, make_data
from tests.store.conftest import edit_json, make_store


@pytest.mark.parametrize("hosts", [2, 5])
def test_each_part_has_its_rows_and_all_else(tmp_path, hosts, monkeypatch):
    monkeypatch.setattr(shards, "_CHUNK_BYTES", 500)
    store = gnndrive.from_data(make_data(), tmp_path / "types.gnn")
    classes = row_classes(store, "paper", "degree")
    divided = {"nodes/paper/x", "nodes/author/x", "nodes/venue/x"}
    divided |= {"edges/author__writes__paper/edge_attr"}
    parts = write_shards(store, tmp_path / "out", hosts)
    assert [each.path.name for each in parts] == [f"part-{index}.gnn" for index in range(hosts)]
    for index, part in enumerate(parts):
        part.verify()
        assert part.identity == store.identity
        assert (part.info.shard.index, part.info.shard.parts.keys()) == (index, divided)
        assert np.array_equal(kept_classes(part, "paper", "degree"), classes)
        assert part["paper"].num_features == store["paper"].num_features
    for name, array in store.info.arrays.items():
        if name not in divided:
            inodes = {os.stat(each.path / array.file).st_ino for each in (store, *parts)}
            assert len(inodes) == 1
            continue
        rows = np.load(store.path / array.file)
        owners = Owners.of(len(rows), array.row_bytes, hosts)
        for index, part in enumerate(parts):
            there = np.load(part.path / array.file)
            numbers = owners.rows_of(index, np.arange(owners.count(index)))
            assert np.array_equal(there, rows[numbers])
            assert len(there) == part.part(name).row_count


def test_what_needs_rows_is_refused(tmp_path):
    store = gnndrive.from_data(make_data(), tmp_path / "types.gnn")
    small = make_store(tmp_path / "tiny.gnn")
    (part,), (tiny,) = (
        write_shards(each, tmp_path / f"of {each.path.stem}", 2, 1) for each in (store, small)
    )
    loader = gnndrive.NeighborLoader(part, [3], ("paper", torch.arange(9)), batch_size=3)

    def loader_of(of, **given):
        return gnndrive.NeighborLoader(of, [3], torch.arange(9), batch_size=3, **given)

    refused = {
        "so only a loader with ranks=True has them all": [
            lambda: part["author"].x, lambda: part[WRITES].edge_attr, lambda: tiny.x,
            lambda: tiny.table("x"), lambda: loader(torch.arange(2)),
        ],
        "give ranks=True, and start torchrun with --nnodes 2; or": [lambda: iter(loader)],
        "may have any: use the whole store": [lambda: iter(loader_of(tiny, strategy="diskgnn"))],
        "have all: use the whole store": [lambda: iter(loader_of(tiny, strategy="marius"))],
        "pack the whole store": [lambda: gnndrive.pack(tiny, [3], torch.arange(9), batch_size=3)],
        "partition the whole store": [lambda: gnndrive.partition(tiny)],
        "stripe the whole store": [lambda: gnndrive.stripe(tiny, [tmp_path])],
        "split the whole store": [lambda: gnndrive.split_links(tiny)],
        "run it on the whole store": [lambda: gnndrive.infer(torch.nn.Identity(), tiny, name="h")],
        "parts are made of the whole store": [lambda: write_shards(tiny, tmp_path / "again", 2)],
    }  # fmt: skip
    for text, calls in refused.items():
        for call in calls:
            with pytest.raises(ConfigError, match="is part 1 of 2 of a store and lacks") as caught:
                call()
            assert text in str(caught.value)
    for batch in gnndrive.NeighborLoader(tiny, [3], torch.arange(9), attrs=["y"]):
        assert torch.equal(batch.y, small.y[batch.n_id])  # without x, all that it needs is there


def test_a_call_goes_on_and_leaves_other_folders_alone(store, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_shards(store, out, 2, 1)
    before = os.stat(out / "part-1.gnn").st_ino
    write_shards(store, out, 2)
    assert os.stat(out / "part-1.gnn").st_ino == before
    other = make_store(tmp_path / "other.gnn")
    shutil.copytree(other.path, tmp_path / "third" / "part-0.gnn")
    for given, text in (((out, 3), "is not part 0 of 3"), ((tmp_path / "third", 2), "part 0 of 2")):
        with pytest.raises(ConfigError, match=f"{text}.*choose another folder"):
            write_shards(store, *given)
    for given, text in (((1,), "hosts=1"), ((2, 2), "host=2: give a number from 0 to 1")):
        with pytest.raises(ConfigError, match=text):
            write_shards(store, out, *given)
    with pytest.raises(ConfigError, match=r"the folder .* cannot be made"):
        write_shards(store, tmp_path / "no" / "folder", 2)
    monkeypatch.setattr(writer, "free_bytes", lambda path: 1000)
    with pytest.raises(StoreError, match="the disk is too full"):
        write_shards(store, tmp_path / "full", 2)
    assert not any((tmp_path / "full").iterdir())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda shard: shard.update(index=2), "a whole number from 0 to 1"),
        (lambda shard: shard.update(shards=1 << 40), "a whole number from 1"),
        (lambda shard: shard["parts"].update({"graph/indptr": {}}), "no array with a row"),
        (lambda shard: shard["parts"]["nodes/x"].update(shift=63), "a whole number from 0 to 40"),
        (lambda shard: shard["parts"]["nodes/x"].update(shift=5), "is too long"),
        (lambda shard: shard["parts"].clear(), "is truncated"),
    ],
)
def test_a_damaged_part_is_refused(store, tmp_path, change, text):
    (part,) = write_shards(store, tmp_path / "out", 2, 1)
    edit_json(part.path / "store.json", lambda found: change(found["shard"]))
    with pytest.raises(StoreError, match=text):
        gnndrive.open(part.path)


def test_other_rows_are_another_checksum(store, tmp_path):
    (part,) = write_shards(store, tmp_path / "out", 2, 0)
    with open(part.path / "nodes/x.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    with pytest.raises(StoreError, match=r"nodes/x.npy has another checksum"):
        gnndrive.open(part.path).verify()

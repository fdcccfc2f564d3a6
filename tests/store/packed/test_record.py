"""Recorded batches, a recording that goes on, and samples that are damaged."""

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive import LinkNeighborLoader
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed.samples import SampleReader
from gnndrive.store.packed.sections import PLACING
from gnndrive.strategies.packs.recording import pack_settings, recording_memory
from tests.loader.batches import assert_all_same, assert_same
from tests.store.conftest import poke
from tests.store.packed.packs import NODES, files_of, reader_of, record_loader, source_of


def test_recorded_batches_equal_the_loaders(make, tmp_path, seeds):
    """And how often each row is counted is how many of them use it."""
    for seed in seeds(2):
        draw = random.Random(seed)
        count = draw.randint(1, NODES)
        inputs = torch.tensor([draw.randrange(NODES) for _ in range(count)])
        loader = make(
            num_neighbors=[draw.choice([-1, 0, 1, 3, 6]) for _ in range(draw.randint(1, 3))],
            batch_size=draw.randint(8, 64),
            input_nodes=draw.choice([None, inputs, torch.arange(NODES) % 3 == 0]),
            shuffle=draw.random() < 0.7,
            drop_last=draw.random() < 0.3 and count > 64,
            replace=draw.random() < 0.3,
            seed=draw.randrange(1 << 40),
            topology=draw.choice(["resident", "direct", "mmap"]),
            samplers=draw.randint(1, 5),
            extracting_queue=10,
        )
        recorded = record_loader(loader, tmp_path / str(seed), volume_bytes=1 << 14)
        reader = reader_of(loader, tmp_path / str(seed), recorded)
        assert len(reader) == len(loader)
        used = {name: np.zeros(len(each), int) for name, each in recorded.counts.items()}
        for index, batch in enumerate(loader):
            found = reader.read(index)
            again = loader._collate.from_map(found.seeds, found.sample)
            assert_all_same(again.stores, batch.stores)
            for name, rows in loader._collate.rows_of(found.sample, None).items():
                used[name][np.unique(rows)] += 1
        for name, counts in recorded.counts.items():
            assert counts.dtype == np.uint32
            assert counts.tolist() == used[name].tolist(), name


@pytest.mark.parametrize("little", [True, False])
def test_a_budget_changes_no_byte(make, tmp_path, monkeypatch, little):
    """With little memory, neighbours and edge numbers are read from disk."""
    record_loader(make(), tmp_path / "whole")
    loader = make(topology="direct", buffer="200KB")
    request = loader._assembly().request()
    with pytest.raises(ConfigError, match="too little to record") as error:
        recording_memory(request, 1 << 20)
    named = re.search(r'at least packing_memory="([^"]+)",', str(error.value))
    assert named is not None
    least = parse_size(named[1], "memory")
    plan = recording_memory(request, least if little else 2 * least)
    assert plan.fetched == (["graph/edge_id"] if little else [])
    assert (plan.samplers == 1) == little
    request = dataclasses.replace(request, memory=least if little else 2 * least)
    assert recording_memory(request) == plan
    monkeypatch.setattr("gnndrive.loader.assembly.Assembly.request", lambda _: request)
    record_loader(loader, tmp_path / "pack")
    assert files_of(tmp_path / "pack") == files_of(tmp_path / "whole")


def test_settings_do_not_depend_on_memory_and_threads(make):
    loaders = make(), make(memory="1GB", buffer=None, samplers=1)
    one, other = (pack_settings(loader._assembly(), 5, 1, segment=8) for loader in loaders)
    assert one == other


# ---- killed


def test_a_killed_recording_repeats_one_volume_at_most(make, tmp_path):
    loader, drawn = make(batch_size=20), []

    def stop(_: str, done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_loader(loader, tmp_path / "pack", volume_bytes=1 << 13, progress=stop)
    volumes = len(list((tmp_path / "pack" / "samples").glob("*.npy")))
    assert volumes > 3
    source = source_of(loader)
    draw = source.draw

    def noted(first: int) -> Iterator[Any]:
        drawn.append(first)
        return draw(first)

    source.draw = noted
    index = record_loader(loader, tmp_path / "pack", source, volume_bytes=1 << 13).index
    assert drawn == [int((index[:, 0] < volumes).sum())]


def test_numbers_beyond_int32_take_int64(make, tmp_path, monkeypatch):
    loader = make()
    monkeypatch.setattr("gnndrive.store.packed.encoding.index_dtype", lambda count: "int64")
    recorded = record_loader(loader, tmp_path / "pack")
    dtypes = {each.name: each.dtype for each in recorded.schema.sections}
    assert (dtypes["node"], dtypes["edge"], dtypes["row"]) == ("int64", "int64", "int32")
    batch = reader_of(loader, tmp_path / "pack", recorded).read(0)
    assert_same(loader._collate.from_map(batch.seeds, batch.sample), next(iter(loader)))


# ---- a stranger's samples


@pytest.fixture(params=["plain", "typed", "links"])
def loader(request, make, typed):
    if request.param == "typed":
        return make(data=typed, input_nodes="paper", batch_size=64)
    if request.param == "links":
        return make(LinkNeighborLoader, neg_sampling="binary", batch_size=400)
    return make(batch_size=32)


def test_damaged_samples_are_refused(loader, tmp_path):
    """Each number is replaced by one that is out of range for all kinds of sections."""
    recorded = record_loader(loader, tmp_path)
    index, schema = recorded.index, recorded.schema
    path, bad = tmp_path / "samples" / "000.npy", 0
    whole = path.read_bytes()
    starts, _ = schema.places(schema.counts(index[0]))
    checked = ("node", "row", "col", "edge", "batch", "colptr")
    for section, start in zip(schema.sections, starts, strict=True):
        count = int(index[0, schema.column[f"count {section.name}"]])
        if not section.name.startswith(checked) or count <= 0:
            continue
        for value in (-1, 1 << 30):
            at = 4096 + start + section.itemsize * (count // 2)
            poke(path, at, np.int32(value).tobytes())
            with pytest.raises(StoreError, match="is damaged"):
                reader_of(loader, tmp_path, recorded).read(0)
            path.write_bytes(whole)
            bad += 1
    assert bad >= 8
    reader_of(loader, tmp_path, recorded).read(0)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="does not hold"):
        reader_of(loader, tmp_path, recorded).read(0)


def test_a_schema_of_another_store_is_refused(loader, tmp_path):
    recorded, types = record_loader(loader, tmp_path), loader.data.info.types
    schema, change = recorded.schema, dataclasses.replace
    sections = schema.sections
    place = next(n for n, each in enumerate(sections) if each.name.startswith(PLACING))
    others = [change(schema, edge_types=()), change(schema, node_types=("paper",))]
    for at in (0, place):
        fields = {"dtype": "float64"}, {"delivered": "float32"}, {"shape": (2, -1)}, {"name": "no"}
        for new in ([], *([change(sections[at], **each)] for each in fields)):
            others.append(change(schema, sections=(*sections[:at], *new, *sections[at + 1 :])))
    for other in others:
        with pytest.raises(StoreError, match="another form"):
            SampleReader(tmp_path, other, recorded.index, types, feature_tables(loader.data))

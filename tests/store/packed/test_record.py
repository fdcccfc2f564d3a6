"""Recorded batches are those that the loader yields, and a killed recording goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import Sample
from gnndrive.loader.recording import pack_settings, recording_memory
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed.encoding import RecordedBatch
from gnndrive.store.packed.record import record
from gnndrive.store.packed.settings import differences, parse_settings
from gnndrive.store.parsing import Record
from tests.loader.hetero.graph import make_data
from tests.store.packed.graphs import (
    NODES,
    files_of,
    make_graph,
    reader_of,
    record_loader,
    source_of,
)

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_graph(), tmp_path_factory.mktemp("record") / "graph.gnn")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_data(), tmp_path_factory.mktemp("typed") / "graph.gnn")


@pytest.fixture
def make(store: Store) -> Iterator[Make]:
    """Makes loaders over the store, or another as `data=`, and closes them after the test."""
    with ExitStack() as opened:

        def one(kind: Any = NeighborLoader, **arguments: Any) -> Any:
            given = {"data": store, "num_neighbors": [4, 3], "batch_size": 16, "seed": 5}
            given |= {"buffer": "200KB", "io_depth": 16}
            return opened.enter_context(kind(**(given | arguments)))

        yield one


def assert_equal(one: Any, other: Any, name: str = "") -> None:
    """Raise AssertionError unless two batches hold the same, dtypes included."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key, value in one.items():
            assert_equal(value, other[key], f"{name}.{key}")
    else:
        assert one == other, name


def sets_of(batch: Any) -> tuple[Any, ...]:
    """By hop the sets of n_id and of (source, target, e_id); and the input_id in order."""
    nodes = torch.split(batch.n_id, batch.num_sampled_nodes)
    ends = batch.n_id[batch.edge_index]
    edges = torch.split(torch.stack([*ends, batch.e_id]), batch.num_sampled_edges, dim=1)
    return (
        [set(each.tolist()) for each in nodes],
        [set(map(tuple, each.T.tolist())) for each in edges],
        batch.input_id.tolist(),
    )


def check(loader: Any, root: Path, epochs: int = 2) -> None:
    """Record a loader's epochs and compare each batch with what the loader yields."""
    recorded = record_loader(loader, root, epochs, volume_bytes=1 << 14)
    reader = reader_of(loader, root, recorded)
    assert len(reader) == epochs * len(loader)
    used = {name: np.zeros(len(each), int) for name, each in recorded.counts.items()}
    for epoch in range(epochs):
        for index, batch in enumerate(loader):
            found = reader.read(epoch * len(loader) + index)
            again = loader._collate.from_map(found.seeds, found.sample)
            assert_equal(again.to_dict(), batch.to_dict())
            if isinstance(found.sample, Sample):
                assert sets_of(again) == sets_of(batch)
            for name, rows in loader._collate.rows_of(found.sample, None).items():
                used[name][np.unique(rows)] += 1
    for name, counts in recorded.counts.items():
        assert counts.dtype == np.uint32
        assert counts.tolist() == used[name].tolist(), name


@pytest.mark.parametrize("seed", range(12))
def test_recorded_batches_equal_the_loaders(make: Make, tmp_path: Path, seed: int):
    draw = random.Random(seed)
    count = draw.randint(1, NODES)
    inputs = torch.tensor([draw.randrange(NODES) for _ in range(count)])
    loader = make(
        num_neighbors=[draw.choice([-1, 0, 1, 3, 6]) for _ in range(draw.randint(1, 3))],
        batch_size=draw.randint(1, 64),
        input_nodes=draw.choice([None, inputs, torch.arange(NODES) % 3 == 0]),
        shuffle=draw.random() < 0.7,
        drop_last=draw.random() < 0.3 and count > 64,
        replace=draw.random() < 0.3,
        seed=draw.randrange(1 << 40),
        topology=draw.choice(["resident", "direct", "mmap"]),
        samplers=draw.randint(1, 5),
        extracting_queue=10,
    )
    check(loader, tmp_path / "pack")


@pytest.mark.parametrize(
    "arguments",
    [
        {"disjoint": True},
        {"disjoint": True, "replace": True, "topology": "direct"},
        {"time_attr": "time", "temporal_strategy": "last"},
        {"time_attr": "edge_time", "input_time": torch.arange(NODES) % 60},
        {"weight_attr": "weight"},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
    ],
    ids=lambda each: " ".join(map(str, each))[:30],
)
def test_recorded_subgraphs_equal_the_loaders(
    make: Make, tmp_path: Path, arguments: dict[str, Any]
):
    check(make(shuffle=True, **arguments), tmp_path / "pack")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"neg_sampling": "binary", "edge_label": torch.arange(100) % 3},
        {"neg_sampling": {"mode": "triplet", "amount": 2}, "shuffle": True},
        {"edge_label": torch.rand(100), "disjoint": True},
        {"edge_label_time": torch.arange(100), "time_attr": "time", "neg_sampling": "triplet"},
    ],
)
def test_recorded_links_equal_the_loaders(make: Make, tmp_path: Path, arguments: dict[str, Any]):
    index = make_graph().edge_index[:, :100]
    check(make(LinkNeighborLoader, edge_label_index=index, **arguments), tmp_path / "pack")


@pytest.mark.parametrize(
    "arguments", [{}, {"disjoint": True}, {"subgraph_type": "bidirectional"}, {"replace": True}]
)
def test_recorded_types_equal_the_loaders(
    make: Make, typed: Store, tmp_path: Path, arguments: dict[str, Any]
):
    inputs = ("paper", typed["paper"].split("train"))
    check(make(data=typed, input_nodes=inputs, shuffle=True, **arguments), tmp_path / "pack")


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
def test_recorded_links_of_types_equal_the_loaders(
    make: Make, typed: Store, tmp_path: Path, negatives: str | None
):
    kind = typed.edge_types[0]
    loader = make(
        LinkNeighborLoader, data=typed, edge_label_index=kind, neg_sampling=negatives, batch_size=64
    )
    check(loader, tmp_path / "pack", 1)


@pytest.mark.parametrize("little", [True, False])
def test_a_budget_changes_no_byte(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little: bool
):
    """With little memory, neighbours and edge numbers are read from disk."""
    record_loader(make(), tmp_path / "whole")
    loader = make(topology="direct")
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


def test_a_user_s_sampler_is_refused(make: Make):
    for arguments in (
        {"sampler": range(10)},
        {"transform_sampler_output": lambda out: out},
    ):
        with pytest.raises(ConfigError, match="cannot be recorded"):
            source_of(make(**arguments))


def test_the_settings_name_what_differs(make: Make, typed: Store):
    def settings(**arguments: Any) -> Any:
        return pack_settings(make(**arguments)._assembly(), 5, 1, segment=8)

    one = settings()
    assert one == settings(memory="1GB", samplers=1)
    assert differences(one, settings(num_neighbors=[9])) == ["fanout was [4, 3] and is [9]"]
    named = [each.split(" was ")[0] for each in differences(one, settings(disjoint=True))]
    assert named == ["sampling"]
    other = differences(one, settings(input_nodes=torch.arange(9), batch_size=3))
    assert [each.split(" was ")[0] for each in other] == [
        "the input nodes or edges", "batch_size",
    ]  # fmt: skip
    fanouts = {type: [2, 1] for type in typed.edge_types}
    of_types = settings(data=typed, input_nodes="paper", num_neighbors=fanouts)
    record = Record(json.loads(json.dumps(of_types.as_dict())), "here", "settings")
    assert parse_settings(record) == of_types


# ---- killed


class Killed(BaseException):
    """Stands for SIGKILL: no code of the packer may run on it but `finally`."""


def killed_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the recording at one of its system calls, which writes half or nothing."""
    left = [calls]
    for name in ("write", "pwrite", "fsync", "rename"):
        real = getattr(os, name)

        def call(*arguments: Any, real: Any = real, name: str = name) -> Any:
            left[0] -= 1
            if left[0] == 0 and name == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if left[0] <= 0:
                raise Killed
            return real(*arguments)

        monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_recording_goes_on_with_the_same_bytes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    loader = make(shuffle=True, batch_size=20)
    whole = record_loader(loader, tmp_path / "whole", 2, volume_bytes=1 << 15)
    draw = random.Random(seed)
    for at in range(6):
        root = tmp_path / f"killed-{at}"
        for _ in range(3):
            with monkeypatch.context() as patch:
                killed_after(draw.randint(1, 25), patch)
                with pytest.raises(Killed):
                    record_loader(loader, root, 2, volume_bytes=1 << 15)
        again = record_loader(loader, root, 2, volume_bytes=1 << 15)
        assert files_of(root) == files_of(tmp_path / "whole")
        assert (again.index == whole.index).all()
        assert {name: c.tolist() for name, c in again.counts.items()} == {
            name: c.tolist() for name, c in whole.counts.items()
        }
        assert again.prediction == whole.prediction


def test_a_killed_recording_repeats_one_volume_at_most(make: Make, tmp_path: Path):
    loader, drawn = make(batch_size=20), []

    class Stopped(Exception):
        pass

    def stop(_: str, done: int, total: int) -> None:
        if done == total - 1:
            raise Stopped

    with pytest.raises(Stopped):
        record_loader(loader, tmp_path / "pack", volume_bytes=1 << 13, progress=stop)
    volumes = len(list((tmp_path / "pack" / "samples").glob("*.npy")))
    assert volumes > 3
    source = source_of(loader)
    draw = source.draw

    def noted(first: int) -> Iterator[RecordedBatch]:
        drawn.append(first)
        return draw(first)

    source.draw = noted  # type: ignore[method-assign]
    types, tables = loader.data.info.types, feature_tables(loader.data)
    index = record(tmp_path / "pack", source, types, tables, volume_bytes=1 << 13).index
    assert drawn == [int((index[:, 0] < volumes).sum())]


def test_a_full_disk_is_named(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.write

    def full(fd: int, view: Any) -> int:
        if "samples" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        return real(fd, view)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="free some space"):
            record_loader(make(), tmp_path / "pack")
    record_loader(make(), tmp_path / "pack")


def test_the_caller_may_refuse_the_predicted_bytes(make: Make, tmp_path: Path):
    seen: list[int] = []

    def refuse(prediction: Any) -> None:
        seen.append(prediction.total)
        raise ConfigError("too small")

    said: list[tuple[str, int, int]] = []
    with pytest.raises(ConfigError, match="too small"):
        record_loader(
            make(), tmp_path / "pack", check_room=refuse,
            progress=lambda *each: said.append(each),
        )  # fmt: skip
    assert len(seen) == 1
    assert [done for _, done, _ in said] == [1, 2, 3, 4]
    recorded = record_loader(make(), tmp_path / "pack")
    samples = sum(len(each) for name, each in files_of(tmp_path / "pack").items() if "sam" in name)
    assert samples < recorded.prediction.samples < 3 * samples


def test_numbers_beyond_int32_take_int64(make: Make, tmp_path: Path, monkeypatch: Any):
    loader = make()
    monkeypatch.setattr("gnndrive.store.packed.encoding.narrow", lambda count: "int64")
    recorded = record_loader(loader, tmp_path / "pack")
    dtypes = {each.name: each.dtype for each in recorded.schema.sections}
    assert (dtypes["node"], dtypes["edge"], dtypes["row"]) == ("int64", "int64", "int32")
    reader = reader_of(loader, tmp_path / "pack", recorded)
    batch: RecordedBatch = reader.read(0)
    first = next(iter(loader))
    assert_equal(loader._collate.from_map(batch.seeds, batch.sample).to_dict(), first.to_dict())

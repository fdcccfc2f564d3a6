"""Added arrays: a store shows them beside its own, and stays the store that it was."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError, NeighborLoader, StoreError
from gnndrive.store import ArrayInfo, Store
from gnndrive.store.added import write_added
from gnndrive.store.format import npy_header

RUN, OTHER_RUN = "0123456789abcdef", "fedcba9876543210"


def add(store: Store, values: torch.Tensor, run: str = RUN, name: str = "h") -> None:
    """Add `nodes/NAME` to a store."""
    info = ArrayInfo(f"nodes/{name}", "float32", tuple(values.shape), "", f"derived/{name}/{run}")
    file = store.path / info.file
    file.parent.mkdir(parents=True)
    file.write_bytes(npy_header(info) + values.numpy().tobytes())
    digest = sha256(file.read_bytes()).hexdigest()
    done = ArrayInfo(info.name, info.dtype, info.shape, digest, info.folder)
    write_added(store.path, store.info.own, name, run, [done])


def edit(store: Store, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of h."""
    file = store.path / "derived" / "h.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.fixture
def rows(store: Store) -> torch.Tensor:
    return torch.randn(store.num_nodes, 20)


def test_a_store_shows_what_was_added_and_keeps_its_identity(store: Store, rows: torch.Tensor):
    before, content = store.identity, (store.path / "store.json").read_bytes()
    add(store, rows)
    assert "h" not in store.node_names
    store.find_added()
    opened = gnndrive.open(store.path)
    for each in (store, opened):
        assert torch.equal(each.tensor("h"), rows)
        assert np.array_equal(each.array("h"), rows)
        assert each.node_names[-1] == "h"
        assert each.identity == before
        each.verify()
    assert (store.path / "store.json").read_bytes() == content
    assert opened.info.as_dict()["arrays"]["nodes/h"]["folder"] == f"derived/h/{RUN}"
    shutil.rmtree(store.path / "derived")
    assert "h" not in gnndrive.open(store.path).node_names


def test_a_loader_serves_it_through_the_feature_buffer(store: Store, rows: torch.Tensor):
    add(store, rows)
    store.find_added()
    with NeighborLoader(store, [3], batch_size=7, memory="80MB") as loader:
        assert {"nodes/x", "nodes/h"} == {table.name for table in loader.plan().tables}
        for batch in loader:
            assert torch.equal(batch.h, rows[batch.n_id])
            assert batch.x.dtype == torch.bfloat16
    with NeighborLoader(store, [3], batch_size=7, feature_dtype="float16") as loader:
        batch = next(iter(loader))
        assert (batch.x.dtype, batch.h.dtype) == (torch.float16, torch.float32)


def test_narrow_rows_are_mapped(store: Store):
    values = torch.randn(store.num_nodes, 2)
    add(store, values)
    store.find_added()
    with NeighborLoader(store, [3], batch_size=7, memory="80MB") as loader:
        assert [table.name for table in loader.plan().tables] == ["nodes/x"]
        for batch in loader:
            assert torch.equal(batch.h, values[batch.n_id])


def test_another_run_replaces_it_and_an_older_object_finds_no_other_rows(
    store: Store, rows: torch.Tensor
):
    add(store, rows)
    old = gnndrive.open(store.path)
    add(store, rows + 1, OTHER_RUN)
    assert torch.equal(old.tensor("h"), rows)
    assert torch.equal(old.h, rows)
    assert np.array_equal(old.array("h"), rows)
    older = copy.copy(old)
    shutil.rmtree(store.path / "derived" / "h" / RUN)
    with pytest.raises(StoreError, match=RUN):
        old.tensor("h")
    old.find_added()
    assert torch.equal(old.tensor("h"), rows + 1)
    assert torch.equal(old.h, rows + 1)
    assert np.array_equal(old.array("h"), rows + 1)
    with pytest.raises(StoreError, match=RUN):
        _ = older.h


def test_a_changed_file_is_found(store: Store, rows: torch.Tensor):
    add(store, rows)
    store.find_added()
    file = store.path / store.info.arrays["nodes/h"].file
    damaged = bytearray(file.read_bytes())
    damaged[5000] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(StoreError, match="checksum"):
        store.verify()
    file.write_bytes(bytes(damaged[:5000]))
    with pytest.raises(StoreError, match="truncated"):
        gnndrive.open(store.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(format="else"), "not of the format"),
        (lambda record: record.update(version=2), "not of the format"),
        (lambda record: record.update(store="0" * 64), "another store"),
        (lambda record: record.update(run="../../etc/passwd"), "16 hexadecimal"),
        (lambda record: record.update(arrays=[]), "not dict"),
        (lambda record: record["arrays"]["nodes/h"].update(shape=[3, 20]), "bytes"),
        (lambda record: record["arrays"]["nodes/h"].update(shape=[20, 40]), "one row for each"),
        (
            lambda record: record["arrays"].update(
                {"nodes/x": record["arrays"].pop("nodes/h")}
            ),
            "no new attribute",
        ),
        (
            lambda record: record["arrays"].update(
                {"edges/h": record["arrays"].pop("nodes/h")}
            ),
            "no new attribute",
        ),
        (
            lambda record: record["arrays"].update(
                {"nodes/../h": record["arrays"].pop("nodes/h")}
            ),
            "refused",
        ),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused(
    store: Store, rows: torch.Tensor, change: Callable[[dict[str, Any]], object], message: str
):
    add(store, rows)
    edit(store, change)
    with pytest.raises(StoreError, match=message) as error:
        gnndrive.open(store.path)
    assert "remove" in str(error.value)
    assert "h.json" in str(error.value)


def test_two_records_of_one_array_are_refused(store: Store, rows: torch.Tensor):
    add(store, rows)
    shutil.copy(store.path / "derived" / "h.json", store.path / "derived" / "g.json")
    shutil.copytree(store.path / "derived" / "h", store.path / "derived" / "g")
    with pytest.raises(StoreError, match="already"):
        gnndrive.open(store.path)


def test_a_record_that_is_no_json_is_refused(store: Store, tmp_path: Path):
    (store.path / "derived").mkdir()
    file = store.path / "derived" / "h.json"
    file.write_bytes(b"{" * 100)
    with pytest.raises(StoreError, match="not valid JSON"):
        gnndrive.open(store.path)
    file.unlink()
    file.symlink_to(tmp_path)
    with pytest.raises((StoreError, ConfigError)):
        gnndrive.open(store.path)

"""Added arrays: a store shows them beside its own, and stays the store that it was."""

import copy
import re
import shutil
from hashlib import sha256

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import NeighborLoader, StoreError
from gnndrive.store import ArrayInfo, Store
from gnndrive.store.added import write_added
from gnndrive.store.format import npy_header
from tests.store.conftest import edit_json

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


@pytest.fixture
def rows(store):
    """Rows that were added."""
    values = torch.randn(store.num_nodes, 20)
    add(store, values)
    return values


def test_a_store_shows_what_was_added_and_keeps_its_identity(store):
    before, content = store.identity, (store.path / "store.json").read_bytes()
    rows = torch.randn(store.num_nodes, 20)
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


def test_a_loader_serves_it_through_the_feature_buffer_or_mapped_if_it_is_narrow(store, rows):
    narrow = torch.randn(store.num_nodes, 2)
    add(store, narrow, name="narrow")
    store.find_added()
    with NeighborLoader(store, [3], batch_size=20, feature_dtype="float16") as loader:
        assert {"nodes/x", "nodes/h"} == {table.name for table in loader.plan().tables}
        for batch in loader:
            assert torch.equal(batch.h, rows[batch.n_id])
            assert torch.equal(batch.narrow, narrow[batch.n_id])
            assert (batch.x.dtype, batch.h.dtype) == (torch.float16, torch.float32)


def test_another_run_replaces_it_and_an_older_object_finds_no_other_rows(store, rows):
    def shown(store: Store, expected: torch.Tensor) -> bool:
        seen = store.tensor("h"), store.h, torch.from_numpy(store.array("h").copy())
        return all(torch.equal(each, expected) for each in seen)

    old = gnndrive.open(store.path)
    add(store, rows + 1, OTHER_RUN)
    assert shown(old, rows)
    older = copy.copy(old)
    shutil.rmtree(store.path / "derived" / "h" / RUN)
    with pytest.raises(StoreError, match=RUN):
        old.tensor("h")
    old.find_added()
    assert shown(old, rows + 1)
    with pytest.raises(StoreError, match=RUN):
        _ = older.h


def test_a_changed_file_is_found(store, rows):
    store.find_added()
    file = store.path / store.info.arrays["nodes/h"].file
    damaged = bytearray(file.read_bytes())
    damaged[5000] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(StoreError, match="checksum"):
        store.verify()
    file.write_bytes(damaged[:5000])
    with pytest.raises(StoreError, match="truncated"):
        gnndrive.open(store.path)


def test_a_damaged_record_is_refused(store, rows):
    def renamed(name):
        return lambda top: top["arrays"].update({name: top["arrays"].pop("nodes/h")})

    record = store.path / "derived" / "h.json"
    whole = record.read_text()
    for change, message in (
        (lambda top: top.update(format="else"), "not of the format"),
        (lambda top: top.update(version=2), "not of the format"),
        (lambda top: top.update(store="0" * 64), "another store"),
        (lambda top: top.update(run="../../etc/passwd"), "16 hexadecimal"),
        (lambda top: top.update(arrays=[]), "arrays is .*, and has to be an object"),
        (lambda top: top["arrays"]["nodes/h"].update(shape=[3, 20]), "bytes"),
        (lambda top: top["arrays"]["nodes/h"].update(shape=[20, 40]), "one row for each"),
        (renamed("nodes/x"), "no new attribute"),
        (renamed("edges/h"), "no new attribute"),
        (renamed("nodes/../h"), "refused"),
    ):
        record.write_text(whole)
        edit_json(record, change)
        with pytest.raises(StoreError, match=message) as error:
            gnndrive.open(store.path)
        assert re.search(r"h\.json.*remove|remove.*h\.json", str(error.value), re.DOTALL)


def test_two_records_of_one_array_or_one_that_is_no_json_are_refused(store, rows, tmp_path):
    derived = store.path / "derived"
    shutil.copy(derived / "h.json", derived / "g.json")
    shutil.copytree(derived / "h", derived / "g")
    with pytest.raises(StoreError, match="already"):
        gnndrive.open(store.path)
    (derived / "g.json").write_bytes(b"{" * 100)
    with pytest.raises(StoreError, match="not valid JSON"):
        gnndrive.open(store.path)
    (derived / "g.json").unlink()
    (derived / "g.json").symlink_to(tmp_path)
    with pytest.raises(StoreError, match=r"g\.json"):
        gnndrive.open(store.path)

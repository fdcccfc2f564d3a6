"""Rows have classes where a policy ranks rows by them; they are computed once."""

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import Store
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import StoreError
from gnndrive.host import group_buffer
from gnndrive.host.hello import BufferSettings
from gnndrive.store import row_classes
from gnndrive.store.format import DATA_OFFSET
from tests.loader.hetero.graph import make_data


@pytest.fixture
def fresh(store: Store, data: Any, tmp_path: Path) -> Iterator[Store]:
    """A store without classes, of which nothing is kept in this process."""
    row_classes._in_use.clear()
    yield gnndrive.from_data(data, tmp_path / "fresh.gnn")
    row_classes._in_use.clear()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each pass over a graph."""
    threads: list[threading.Thread] = []
    compute = row_classes.SCORES["degree"]

    def counted(store: Store) -> Any:
        threads.append(threading.current_thread())
        return compute(store)

    monkeypatch.setitem(row_classes.SCORES, "degree", counted)
    return threads


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The classes of each slot table, in the order in which the tables were made."""
    found: list[Any] = []
    usual: Callable[..., None] = SlotTable.__init__

    def recorded(self: SlotTable, *arguments: Any, **more: Any) -> None:
        usual(self, *arguments, **more)
        found.append(arguments[8])

    monkeypatch.setattr(SlotTable, "__init__", recorded)
    return found


def test_one_pass_serves_epochs_iterators_and_loaders(make, fresh, passes, given, monkeypatch):
    def interrupted(store: Store) -> Any:
        raise KeyboardInterrupt

    loader = make(data=fresh)
    assert loader.plan()  # reads no graph
    with monkeypatch.context() as patch:
        patch.setitem(row_classes.SCORES, "degree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert not passes
    for _ in range(2):
        assert len(list(loader)) == len(loader)
    for one, other in zip(loader, loader, strict=True):
        assert torch.equal(one.input_id, other.input_id)
    list(make(data=gnndrive.open(fresh.path)))
    assert passes == [threading.current_thread()]
    runtime = loader._runtime
    with runtime.changing_plan():  # a batch that is larger than planned makes another buffer
        runtime.use(runtime.settings)
    list(loader)
    assert len(given) == 4
    assert all(each is given[0] for each in given)
    np.testing.assert_array_equal(given[0], np.load(fresh.path / "classes" / "degree.npy"))


@pytest.mark.parametrize("options", [{"policy": "lru"}, {"buffer": "10MB"}])
def test_no_pass_where_no_row_is_ranked(make, fresh, passes, given, options):
    assert list(make(data=fresh, **options))
    assert not passes
    assert given == [None]
    assert not (fresh.path / "classes").exists()


def test_tables_of_edges_have_none(make, tmp_path, given):
    store, kinds = gnndrive.from_data(make_data(), tmp_path / "hetero.gnn"), set()
    loader = make(data=store, num_neighbors=[2, 2], input_nodes="paper", batch_size=4, buffer="8KB")
    assert list(loader)
    for table, classes in zip(loader.plan().tables, given, strict=True):
        of_nodes, type, _ = table.name.split("/")
        kinds.add((of_nodes, ranked := of_nodes == "nodes" and table.slots < table.rows))
        expected = row_classes.row_classes(store, type, "degree") if ranked else None
        np.testing.assert_array_equal(classes, expected)
    assert kinds >= {("nodes", True), ("edges", False)}


def test_a_host_service_ranks_the_rows_of_its_buffers(fresh):
    settings = BufferSettings(
        ("nodes/x",), ("nodes/x.npy",), (132,), (40,), (20,), (20,), 4, "host", "table", "belady",
        ("disk",), "threads", 4, 4096, 0, 0, 1, None,
    )  # fmt: skip
    found = group_buffer.table_classes(fresh, settings)
    assert found.keys() == {"nodes/x"}
    assert found["nodes/x"] is row_classes.row_classes(fresh, None, "degree")


@pytest.mark.parametrize("policy", ["belady", "hybrid"])
def test_of_a_damaged_list_only_the_batch_that_needs_it_fails(make, fresh, given, policy):
    """A policy that has only classes names another."""
    with fresh.indices_path.open("r+b") as file:
        file.seek(DATA_OFFSET)
        file.write((2**31 - 1).to_bytes(4, "little"))
    target = int(np.flatnonzero(np.diff(fresh.indptr))[0])  # whose list is damaged
    alone = {"num_neighbors": [2], "input_nodes": torch.arange(target + 1, target + 30)}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loader = make(data=fresh, policy=policy, **alone)
        for _ in range(2):
            assert len(list(loader)) == len(loader)
        list(make(data=fresh, policy=policy, **alone))
    (message,) = [str(each.message) for each in warned if "classes" in str(each.message)]
    assert "leave in the order of their release" in message
    assert "has an id of no node: run gnndrive verify" in message
    assert {each is None for each in given} == {True}
    with pytest.raises(StoreError, match=r"id of no node.*; or give tuning=Tuning.policy='lru'."):
        iter(make(data=fresh, policy="static"))

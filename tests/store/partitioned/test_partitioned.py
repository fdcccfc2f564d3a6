"""A partitioned folder as it is read: what it answers, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.partitioned.partitioned import partitions_of
from gnndrive.store.reader import Store
from tests.store.partitioned.made import make_folder, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A small store."""
    return make_store(tmp_path / "graph.gnn")


def test_a_folder_answers_in_store_ids(store: Store):
    part = np.random.default_rng(1).integers(0, 5, store.num_nodes)
    part[part == 3] = 4  # a partition without nodes
    made = make_folder(store, part, 7)  # the last two, too
    assert (made.num_parts, made.num_static) == (7, 8)
    nodes = np.random.default_rng(2).permutation(store.num_nodes)
    assert np.array_equal(made.part_of(nodes), part[nodes])
    assert made.part_of(nodes[:0]).dtype == np.int32
    for number in range(7):
        found = made.store_ids(*made.bounds[number : number + 2])
        assert np.array_equal(found, np.flatnonzero(part == number))
    with pytest.raises(ConfigError, match="from 0 to 199"):
        made.part_of(np.array([200]))
    with pytest.raises(ConfigError, match="from 0 to 199"):
        made.part_of(np.array([-1]))


def test_the_folders_of_a_store_are_listed(store: Store):
    assert partitions_of(store) == []
    first = make_folder(store, np.zeros(store.num_nodes, int), name="b")
    second = make_folder(store, np.arange(store.num_nodes), static=0.0, name="a")
    (second.path / "x.npy").write_bytes(b"")  # opening it finds that
    (store.path / "partitioned" / ".hidden").mkdir()
    (store.path / "partitioned" / "empty").mkdir()
    found = partitions_of(store)
    assert [each.path.name for each in found] == ["a", "b", "empty"]
    assert found[1].info == first.info
    assert "gnndrive partition" in found[2].problem

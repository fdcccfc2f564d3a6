"""Loaders of a store with two packs: which rows they read, and which states they take."""

from __future__ import annotations

from pathlib import Path

import pytest

import gnndrive
from gnndrive.common.errors import ConfigError
from tests.loader.diskgnn.conftest import ARGUMENTS
from tests.loader.diskgnn.packs import loader_of, make_pack
from tests.store.packed.graphs import make_graph


def test_a_running_loader_does_not_change_its_pack(tmp_path: Path) -> None:
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


def test_a_state_belongs_to_the_batches_and_not_to_their_places(tmp_path: Path) -> None:
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

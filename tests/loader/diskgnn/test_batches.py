"""Replayed batches are those that are drawn: the same nodes and edges in each hop, each with its
own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

import gnndrive
from gnndrive import Store
from gnndrive.store.packed.orders import SETS_MAX
from gnndrive.store.packed.verify import verify_pack
from tests.loader.batches import assert_same
from tests.loader.diskgnn.packs import (
    assert_same_sample,
    check_rows,
    loader_of,
    make_pack,
    pack_folder,
)
from tests.loader.hetero.graph import CITES, WRITES
from tests.loader.hetero.graph import make_data as make_typed
from tests.soak import product
from tests.store.packed.graphs import NODES

NODE = {"num_neighbors": [4, 3], "batch_size": 60}
LINK = {"num_neighbors": [3, 2], "batch_size": 900, "edge_label_index": None}
SOME = torch.arange(0, 200, 3)
PLAIN: dict[str, dict[str, Any]] = {
    "all nodes": NODE,
    "some nodes": NODE | {"input_nodes": SOME, "drop_last": True, "batch_size": 20},
    "three hops": NODE | {"num_neighbors": [3, 2, 2], "input_nodes": SOME, "batch_size": 25},
    "all neighbours": NODE | {"num_neighbors": [-1, 2], "batch_size": 9, "input_nodes": SOME},
    "with replacement": NODE | {"replace": True},
    "no hops": NODE | {"num_neighbors": []},
}
OTHERS: dict[str, dict[str, Any]] = {
    "disjoint": NODE | {"disjoint": True},
    "temporal": NODE | {"time_attr": "time", "input_nodes": SOME, "input_time": SOME % 50},
    "weighted": NODE | {"weight_attr": "weight"},
    "induced": NODE | {"subgraph_type": "induced"},
    "bidirectional": NODE | {"subgraph_type": "bidirectional"},
    "links": LINK,
    "binary links": LINK | {"neg_sampling": "binary"},
    "triplets": LINK | {"neg_sampling": {"mode": "triplet", "amount": 2}},
    "temporal links": LINK | {"time_attr": "edge_time", "edge_label_time": torch.arange(2500) % 50},
}  # fmt: skip
TYPED: dict[str, dict[str, Any]] = {
    "papers": NODE | {"input_nodes": "paper"},
    "other fanouts": NODE | {"input_nodes": ("author", torch.arange(0, 90, 2)),
                             "num_neighbors": {WRITES: [2, 1], CITES: [3, 3],
                                               ("paper", "rev_writes", "author"): [4, 2],
                                               ("venue", "hosts", "paper"): [1, 1]}},
    "disjoint": NODE | {"input_nodes": "paper", "disjoint": True},
    "weighted": NODE | {"input_nodes": "paper", "num_neighbors": [2], "disjoint": True},
    "links": LINK | {"edge_label_index": WRITES, "neg_sampling": "binary"},
    "triplets": LINK | {"edge_label_index": CITES, "neg_sampling": "triplet"},
}  # fmt: skip
EPOCHS = 2


@pytest.fixture(scope="module")
def typed() -> HeteroData:
    return make_typed()


def epochs_of(
    data: Any, folder: Path, arguments: dict[str, Any], **more: Any
) -> list[list[tuple[Any, Any]]]:
    """(replayed batch, drawn batch) of each batch of the recorded epochs."""
    store: Store = gnndrive.from_data(data, folder / "graph.gnn")
    info = make_pack(store, arguments, epochs=EPOCHS, **more)
    assert verify_pack(pack_folder(store), store) == info
    found = []
    with (
        loader_of(store, arguments) as replayed,
        loader_of(store, arguments, strategy="gnndrive") as drawn,
    ):
        assert len(replayed) == len(drawn)
        for _ in range(EPOCHS):
            # All are kept until the end: none may be in memory that is used again.
            found.append(list(zip(list(replayed), list(drawn), strict=True)))
        assert replayed.stats()["topology"] == "none"
    return found


@product("name,shuffle", [*PLAIN], [True, False])
def test_plain_samples(graph, name, shuffle, tmp_path):
    """Nodes within a hop come in another order, and so do edges."""
    epochs = epochs_of(graph, tmp_path, PLAIN[name] | {"shuffle": shuffle})
    for batches in epochs:
        assert len(batches) > 2
        for replayed, drawn in batches:
            assert_same_sample(replayed, drawn)
            check_rows(replayed, graph)
    inputs = [[each.input_id.tolist() for each, _ in batches] for batches in epochs]
    assert (inputs[0] == inputs[1]) is not shuffle


@product("name,shuffle", [*OTHERS], [True, False])
def test_samples_in_the_form_of_pyg(graph, name, shuffle, tmp_path):
    """They are equal in every respect."""
    for batches in epochs_of(graph, tmp_path, OTHERS[name] | {"shuffle": shuffle}):
        for replayed, drawn in batches:
            assert_same(replayed, drawn)
            check_rows(replayed, graph)


@pytest.mark.parametrize("arguments", TYPED.values(), ids=TYPED)
def test_graphs_of_several_types(typed, arguments, tmp_path):
    for batches in epochs_of(typed, tmp_path, arguments | {"shuffle": True}):
        for replayed, drawn in batches:
            check_rows(replayed, typed)
            for got, expected in zip(replayed.stores, drawn.stores, strict=True):
                assert_same(got, expected)


@product("order,segment", ["sets", "minhash", "id"], [1, 3, SETS_MAX])
def test_how_rows_lie_changes_nothing(graph, order, segment, tmp_path):
    arguments = NODE | {"shuffle": True, "input_nodes": torch.arange(NODES - 20)}
    for batches in epochs_of(graph, tmp_path, arguments, order=order, segment=segment):
        for replayed, drawn in batches:
            assert_same_sample(replayed, drawn)
            check_rows(replayed, graph)

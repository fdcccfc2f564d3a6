"""Packs of small graphs, and what a replayed batch has in common with the drawn one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.store.packed.format import PackInfo
from tests.given import moved
from tests.loader.batches import bits

PACK_BUFFER = "60KB"  # of which some rows of the graphs of these tests are hot
SEED = 7


def make_pack(store: Store, arguments: dict[str, Any], **more: Any) -> PackInfo:
    """A pack of the batches that `loader_of` replays."""
    given = {"seed": SEED, "buffer": PACK_BUFFER, **arguments, **more}
    return gnndrive.pack(store, **moved(given))


def least_buffer(store: Store, arguments: dict[str, Any], places: int = 1) -> int:
    """The bytes of a buffer that has so many places, and hardly any hot rows."""
    tables = loader_of(store, arguments, buffer="1GB").plan().tables
    return places * sum(each.batch_rows_max * each.row_bytes for each in tables) + 1000


def loader_of(store: Store, arguments: dict[str, Any], **more: Any) -> NeighborLoader:
    """A loader that replays a pack; with strategy="gnndrive", one that draws the same batches. The
    buffer has one place, unless `more` says otherwise."""
    kind: Any = LinkNeighborLoader if "edge_label_index" in arguments else NeighborLoader
    given = {"strategy": "diskgnn", "seed": SEED, "io_depth": 16, **arguments, **more}
    if given["strategy"] != "diskgnn":
        given.setdefault("buffer", "400KB")
    elif not {"buffer", "memory"} & given.keys():
        given["buffer"] = least_buffer(store, arguments)
    made: NeighborLoader = kind(store, **moved(given))
    return made


@contextmanager
def reads_no_kept_rows(loader: NeighborLoader) -> Iterator[None]:
    """First take epochs until the tiers have the rows that host memory keeps; raise AssertionError
    if these are read from then on."""
    list(loader)
    buffer: Any = loader._runtime._buffers._kept  # type: ignore[union-attr]
    tiers = [each.tier for each in buffer.tables.values() if each.tier._memory is not None]
    assert tiers
    while not all(tier._full for tier in tiers):
        list(loader)
    with ExitStack() as stack:
        spies = [
            stack.enter_context(patch.object(tier._below, "fetch", wraps=tier._below.fetch))
            for tier in tiers
        ]
        yield
    for tier, spy in zip(tiers, spies, strict=True):
        rows = np.concatenate([call.args[0] for call in spy.call_args_list])
        assert len(rows)
        assert not ((rows >= tier.first) & (rows < tier.end)).any()


def pack_folder(store: Store) -> Path:
    """The store's only pack."""
    (path,) = Path(store.path, "packed").iterdir()
    return path


def by_hop(batch: Data) -> list[Any]:
    """The nodes and the edges of a batch, each hop's as a sorted list."""
    source, target = batch.n_id[batch.edge_index]
    edges = torch.stack([source, target, batch.e_id], 1).tolist()
    nodes = batch.n_id.tolist()
    found, at = [], 0
    for count in batch.num_sampled_nodes:
        found.append(sorted(nodes[at : at + count]))
        at += count
    assert at == len(nodes)
    at = 0
    for count in batch.num_sampled_edges:
        found.append(sorted(edges[at : at + count]))
        at += count
    assert at == len(edges)
    return found


def assert_same_sample(replayed: Data, drawn: Data) -> None:
    """Raise AssertionError unless both have the same nodes and edges in each hop, the seeds in the
    same order, and all else is equal."""
    assert by_hop(replayed) == by_hop(drawn)
    size = drawn.batch_size
    for name in ("n_id", "x", "y"):
        if name in drawn:
            assert torch.equal(replayed[name][:size], drawn[name][:size])
    assert torch.equal(replayed.input_id, drawn.input_id)
    assert set(replayed.keys()) == set(drawn.keys())
    for name in ("batch_size", "num_sampled_nodes", "num_sampled_edges"):
        assert replayed[name] == drawn[name]


def check_rows(batch: Data | HeteroData, data: Data | HeteroData) -> None:
    """Raise AssertionError unless each attribute of a node or edge is the graph's."""
    stores = zip(batch.node_stores + batch.edge_stores, data.node_stores + data.edge_stores,
                 strict=True) if isinstance(data, HeteroData) else [(batch, data)]  # fmt: skip
    for got, whole in stores:
        for name, value in whole.items():
            if name in ("edge_index", "num_nodes") or not isinstance(value, torch.Tensor):
                continue
            number = got.get("e_id" if whole.is_edge_attr(name) else "n_id")
            if name in got and number is not None:
                assert got[name].dtype == value.dtype, name
                expected = value[number]
                assert torch.equal(bits(got[name]), bits(expected)), name

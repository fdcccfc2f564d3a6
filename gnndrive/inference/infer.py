"""`infer`: run a model over all nodes of a store, layer by layer.

Each layer is computed for all nodes before the next one, from all in-edges of each node, so no row
is computed twice; the rows between two layers are arrays on disk. When not to use it: for a few
nodes, for which a loader's sampled batches read less.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gnndrive.buffer.devices import choose as choose_device
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import given_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.inference.layers import Layers
from gnndrive.inference.outcome import Outcome
from gnndrive.inference.progress import run_key, sole_use
from gnndrive.inference.run import Run, RunSettings
from gnndrive.inference.targets import BATCH_ENTRIES, BATCH_TARGETS
from gnndrive.loader.arguments import positive
from gnndrive.store.format import AnyDType, dtype_name
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


def infer(
    model: Any, store: Store | str | os.PathLike[str], *, name: str = "h",
    out: str | os.PathLike[str] | None = None, layers: Sequence[Any] | None = None,
    memory: str | int | None = None,
    device: str | torch.device | None = None, features: str = "x", edge_weight: str | None = None,
    edge_attr: str | None = None, dtype: AnyDType | None = None, batch_size: int | None = None,
    overwrite: bool = False, engine: Any = "auto", io_depth: int = 128,
    progress: Progress | None = None,
) -> Store:  # fmt: skip
    """Compute a model's output for all nodes, layer by layer, and add it to the store.

    What was computed survives a kill: the same call goes on where it stopped, and ends with the
    same bytes. (On a GPU torch's sums over edges may round differently in each run.)

    Args:
        model: a module with `num_layers` and `inference_per_layer(layer, x, edge_index,
            batch_size)`, as PyG's GraphSAGE, GCN, GAT, GIN, PNA. It runs in eval mode.
        store: the graph, or the path of its store.
        name: the attribute to add: `store.tensor("h")`, and `batch.h` of loaders made afterwards.
        out: a folder for the result, which is then not added to the store: `h.npy`, or
            `paper/h.npy` for each node type.
        layers: functions `f(x, edge_index)`, one a layer, if the model has no
            `inference_per_layer`, and for heterogeneous stores: then x, edge_index and the result
            are dicts by type. Targets come first in x; a layer returns rows for them or for all
            nodes of x. What it is given is valid during the call only.
        memory: for what inference itself holds, such as "3GB"; None: a quarter of the available
            memory. It does not count what layers allocate, such as a message for each edge of a
            batch. More memory means fewer passes over the rows.
        device: where layers are computed; None: where the model's parameters are.
        features: the attribute of nodes that the first layer gets.
        edge_weight, edge_attr: attributes of edges that layers get as arguments of that name.
        dtype: the rows' dtype on disk, such as "bfloat16"; None: that of what a layer returns.
        batch_size: the most targets that are computed at once; None: 32,768. A batch also has at
            most 131,072 in-edges and targets, unless one node has more.
        overwrite: replace an attribute that another model or other arguments made.
        engine, io_depth: as for `NeighborLoader`.
        progress: called as progress(what, done, total), in targets and in-edges of all layers.

    Returns:
        `store`, which has the attribute now.

    Raises:
        ConfigError: an argument cannot work, another process computes the same attribute, or this
            process has set or deleted an attribute that layers get: they are read from disk.
        StoreError, ReadError: the store is damaged, the disk is full or fails.
    """
    if isinstance(store, str | os.PathLike):
        store = open_store(store)
    store.check_whole("inference reads all: run it on the whole store")
    own = Layers(model, layers)
    values = {"edge_weight": edge_weight, "edge_attr": edge_attr}
    most = BATCH_TARGETS if batch_size is None else positive(batch_size=batch_size)
    settings = RunSettings(
        memory=given_size(memory, "memory"),
        device=None if device is None else choose_device(device)[1] or torch.device("cpu"),
        features=features,
        values={argument: each for argument, each in values.items() if each is not None},
        dtype=None if dtype is None else dtype_name(dtype),
        batch_size=min(most, BATCH_ENTRIES),
        engine=engine,
        io_depth=io_depth,
    )
    if len(own) < 1:
        raise ConfigError("the model has no layers: give one at least")
    _check_not_set(store, settings)
    key = run_key(
        store.identity, _checksums(store, features), own.identity, len(own), name,
        features, settings.values, settings.dtype, settings.batch_size, BATCH_ENTRIES,
    )  # fmt: skip
    store.check_unchanged()
    outcome = Outcome(store, name, None if out is None else Path(os.path.abspath(out)), key)
    with sole_use(outcome.root):
        try:
            if not outcome.is_there(overwrite):
                Run(store, own, settings, outcome, progress).run()
        except ConfigError:
            outcome.give_up()
            raise
    if out is None:
        store.find_added()
    return store


def _check_not_set(store: Store, settings: RunSettings) -> None:
    """Refuse attributes that this process has set or deleted on the store (data_view.py)."""
    used: list[tuple[NodeKey | EdgeKey, str]] = []
    for nodes in store.all_nodes():
        used += [(nodes.type, settings.features), (nodes.type, f"{settings.features}_scale")]
    for edges in store.all_edges():
        used += [(edges.type, name) for name in settings.values.values()]
    for type, name in used:
        if name in store.overlay.hidden(type):
            of_type = "" if type is None else f" of {type!r}"
            raise ConfigError(
                f"{name!r}{of_type} was set or deleted on this store, and infer reads what is on "
                f"disk: give gnndrive.open({str(store.path)!r}) to use that, or write a store with "
                "the new values (gnndrive.from_data) and infer on it"
            )


def _checksums(store: Store, features: str) -> list[str]:
    """The checksums of the features, because an added attribute is not in the store's identity."""
    return [
        store.info.arrays[nodes.name_of(features)].sha256
        for nodes in store.all_nodes()
        if features in nodes
    ]

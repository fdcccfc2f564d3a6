"""`pack`: records the batches of a loader and packs their rows on disk (DiskGNN, SIGMOD 2025)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import given_size, return_free_memory, size_or_none
from gnndrive.common.progress import Progress
from gnndrive.loader.arguments import positive, whole
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
from gnndrive.store.packed.format import PackInfo, pack_path
from gnndrive.store.packed.pack import write_pack
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.strategies.base import strategy as find_strategy
from gnndrive.strategies.diskgnn import DiskGNN
from gnndrive.strategies.packs.plan import hot_slots
from gnndrive.strategies.packs.recording import LoaderRecording, pack_settings


def pack(
    store: Store | str | os.PathLike[str],
    num_neighbors: Any,
    input_nodes: Any = None,
    *,
    batch_size: int,
    epochs: int = 1,
    seed: int = 0,
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    disk: str | int | None = None,
    order: str = "sets",
    segment: int | None = None,
    out: str | os.PathLike[str] | None = None,
    packing_memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **loader_arguments: Any,
) -> PackInfo:
    """Pack the batches that a loader with these arguments and `seed` yields. For epochs that are
    trained once or twice, or features that fit in memory, this costs more than it saves.

    After an error or a kill, the same call goes on where it stopped, and once the segment is chosen
    it ends with the same bytes. Before that, the free space of the disk decides with `disk`.

    Args:
        store: the store, or its path.
        num_neighbors, input_nodes, batch_size: as for `NeighborLoader`.
        epochs: how many epochs are recorded; epoch e of training replays recording e modulo it.
        seed: the seed that these epochs are drawn with.
        memory: the host memory that training will have, as for `NeighborLoader`; the rows that most
            batches use stay in it.
        device_memory: the GPU memory that training will have for such rows; None: none.
        disk: the most bytes of the pack; None: as many as it takes.
        order: how shared rows are ordered: "sets", "minhash" (the paper's) or "id".
        segment: how many consecutive batches share rows. None: the fewest that fit, with "sets" 8
            or more.
        out: the pack's folder. None: a folder in the store.
        packing_memory: the memory that packing may use. None: `memory`.
        overwrite: replace the pack that is there, whatever its batches, once the new one is whole.
        progress: called as progress(what, done, total); `store/packed/pack.py` lists the phases.
        **loader_arguments: further arguments of `NeighborLoader`, or of `LinkNeighborLoader` if
            edge_label_index is one of them.

    Returns:
        The content of its pack.json.

    Raises:
        ConfigError: an argument cannot work, batches of this loader cannot be recorded, `disk` is
            too small, the pack is there and not to be replaced, or another process packs the same.
        StoreError: the disk is too full, the store is damaged or has changed, or what is to be
            replaced at `out` is no pack.
        ReadError: the store cannot be read.
    """
    asked = loader_arguments.get("strategy", "gnndrive")
    if isinstance(find_strategy(asked), DiskGNN):
        raise ConfigError(
            f"strategy={asked!r} is for a loader that replays a pack, and pack draws the batches: "
            "give it to the loader that trains"
        )
    batch_size, epochs = positive(batch_size=batch_size), positive(epochs=epochs)
    seed, segment = whole(seed=seed), None if segment is None else positive(segment=segment)
    opened = store if isinstance(store, Store) else open_store(store)
    opened.check_whole("a pack may have any: pack the whole store")
    given = {"batch_size": batch_size, "seed": seed, **loader_arguments}
    if input_nodes is not None:
        given["input_nodes"] = input_nodes
    training = _assembly(opened, num_neighbors, {**given, "memory": memory})
    settings = pack_settings(
        training, seed, epochs, order=order, segment=segment, memory=given_size(memory, "memory"),
        disk=given_size(disk, "disk"),
        device_memory=size_or_none(device_memory or 0, "device_memory"),
    )  # fmt: skip
    room, request = given_size(packing_memory, "packing_memory"), training.request()
    try:
        return write_pack(
            opened, pack_path(opened, settings) if out is None else Path(out), settings,
            LoaderRecording(training, seed, epochs, room), training.collate.tables,
            lambda recorded: hot_slots(request, recorded, settings.device_memory),
            room or settings.memory, progress=progress, overwrite=overwrite,
        )  # fmt: skip
    finally:
        return_free_memory()


def _assembly(store: Store, num_neighbors: Any, arguments: dict[str, Any]) -> Assembly:
    """What a loader with these arguments would be made from."""
    links = "edge_label_index" in arguments
    if links and "input_nodes" in arguments:
        raise ConfigError("input_nodes= and edge_label_index= exclude each other: give one")
    kind: Any = LinkNeighborLoader if links else NeighborLoader
    made: Assembly = kind(store, num_neighbors, **arguments)._assembly()
    return made

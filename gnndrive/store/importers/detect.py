"""Choose the importer for a dataset's folder or file, for `gnndrive import SOURCE STORE`."""

from __future__ import annotations

import os
from pathlib import Path

from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import Progress
from gnndrive.store.format import AnyDType
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.graphbolt import METADATA, PREPROCESSED, from_graphbolt
from gnndrive.store.importers.ogb import from_ogb
from gnndrive.store.importers.pyg_file import SUFFIXES, from_pt
from gnndrive.store.importers.splits import SplitSpec
from gnndrive.store.reader import Store


@with_if_exists()
def from_dataset(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    splits: SplitSpec = None,
    memory: str | int = "4GB",
    undirected: bool = False,
    dtype: AnyDType | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from an OGB folder with `from_ogb`, from a dataset of GraphBolt with
    `from_graphbolt`, or from a file of PyG with `from_pt`.

    Args:
        source: a folder with raw/ in it; what `from_graphbolt` takes; or a .pt file.
        splits: for a .pt file, as for `from_pt`.
        path, memory, undirected, if_exists, progress: as for these functions.
        dtype: dtype of x in the store; None: float32 for OGB, the dtype in the file otherwise.

    Returns:
        The open store.

    Raises:
        ConfigError: `source` is none of these, or arguments do not fit together.
        StoreError: as for these functions.
    """
    folder = Path(source)
    if folder.suffix in SUFFIXES:
        return from_pt(
            folder, path, splits=splits, memory=memory, undirected=undirected, dtype=dtype,
            if_exists=if_exists, progress=progress,
        )  # fmt: skip
    places = folder / METADATA, folder / PREPROCESSED / METADATA
    of_graphbolt = folder.suffix in (".yaml", ".yml") or any(map(Path.is_file, places))
    of_ogb = (folder / "raw").is_dir()
    if splits is not None and (of_graphbolt or of_ogb):
        raise ConfigError(
            f"splits= is for a .pt file, and the files of the dataset {folder} define its splits: "
            "leave it out"
        )
    if of_graphbolt:
        if undirected:
            raise ConfigError(
                "undirected= is for an OGB folder: add the reverse edges to what "
                f"{METADATA} names, or leave it out"
            )
        return from_graphbolt(
            folder, path, memory=memory, dtype=dtype, if_exists=if_exists,
            progress=progress,
        )  # fmt: skip
    if of_ogb:
        return from_ogb(
            folder, path, memory=memory, undirected=undirected,
            dtype="float32" if dtype is None else dtype, if_exists=if_exists,
            progress=progress,
        )  # fmt: skip
    raise ConfigError(
        f"{folder} is not a dataset: give an OGB folder, which has raw/ in it, or a {METADATA} of "
        "GraphBolt, or its folder, or a .pt file that torch.save wrote of a PyG graph; for edges "
        "in a file use --edges"
    )

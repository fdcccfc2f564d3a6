"""`gnndrive import`: choose the importer for the arguments, and refuse arguments that clash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnndrive.cli.commands.options import parse_splits
from gnndrive.cli.commands.stores import import_graph
from gnndrive.common.errors import ConfigError
from gnndrive.store.importers import from_csv, from_dataset, from_edges
from gnndrive.store.importers.edge_list import is_parquet

_OPTIONS_OF_CSV = {"features", "labels", "undirected", "dtype", "if_exists"}
_OPTIONS_OF_DATASETS = {"memory", "undirected", "dtype", "if_exists"}


def run(
    paths: list[Path], edges: list[Path] | None, split: list[str] | None, seed: int, **asked: Any
) -> None:
    """Make a store from files of edges or from a dataset's folder, and print what it holds.

    Args:
        paths: the path of the store to make; before it the path of a dataset, if one is given.
        edges: files of edges; None: a dataset is given.
        split: values of --split.
        seed: seed of a random split.
        asked: the importers' other arguments by name; None or False: not given.

    Raises:
        ConfigError: the arguments clash.
        StoreError: as the importers.
    """
    given = {
        name: value for name, value in asked.items() if value is not None and value is not False
    }
    if asked.get("header") is False:  # --no-header
        given["header"] = False
    if len(paths) == 2:
        refused = sorted({*given, *(["edges"] if edges else []), *(["split"] if split else [])})
        refused = [
            f"--{name.replace('_', '-')}" for name in refused if name not in _OPTIONS_OF_DATASETS
        ]
        if refused:
            raise ConfigError(
                f"{', '.join(refused)}: the files of the dataset {paths[0]} define that: leave it "
                "out, or give --edges and no dataset"
            )
        import_graph(from_dataset, source=paths[0], path=paths[1], **given)
        return
    if len(paths) != 1 or not edges:
        raise ConfigError(
            "what is to be imported? Give files, gnndrive import STORE --edges FILE, or a "
            "dataset's folder, gnndrive import FOLDER STORE"
        )
    given = {"path": paths[0], "dtype": "float32", "features": None, "labels": None, **given}
    given["splits"] = parse_splits(split or ["0.6,0.2,0.2"], seed)
    given["columns"] = given.pop("edge_column", ())
    sorting = set(given) - _OPTIONS_OF_CSV - {"path", "splits", "columns"}
    if sorting or given["columns"] or len(edges) > 1 or is_parquet(edges[0]):
        import_graph(from_edges, edges=edges, **given)
    else:
        given.pop("columns")
        import_graph(from_csv, edges=edges[0], **given)

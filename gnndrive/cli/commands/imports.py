"""`gnndrive import`: choose the importer for the arguments, and refuse arguments that clash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gnndrive.cli.commands.info import info_text
from gnndrive.cli.commands.options import IfExists
from gnndrive.cli.report import Bars
from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import reporting
from gnndrive.store.importers import from_csv, from_dataset, from_edges, from_tables
from gnndrive.store.importers.splits import RandomSplit, SplitSpec
from gnndrive.store.importers.table_files import is_text
from gnndrive.store.reader import Store

_OPTIONS_OF_CSV = {"features", "labels", "undirected", "first_id", "dtype", "if_exists"}
_OPTIONS_OF_TABLES = {
    "nodes", "x", "labels", "time", "edge_column", "undirected", "header", "memory", "dtype",
    "if_exists",
}  # fmt: skip
_OPTIONS_OF_DATASETS = {"memory", "undirected", "dtype", "if_exists"}  # and --split


def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[DATASET] OUT",
            help="Path of the new store; before it, instead of --edges, an OGB folder, a "
            "metadata.yaml of GraphBolt or its folder, or a .pt file of a PyG graph.",
        ),
    ],
    edges: Annotated[
        list[str] | None,
        typer.Option(
            help="CSV, Parquet or Arrow: source and target of one edge per row; or .mtx. Beside "
            "--nodes: [SOURCE,RELATION,TARGET=]FILE:COLUMN,COLUMN, files or folders."
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            help="[TYPE=]FILE:COLUMN: a table of nodes, or a folder of them, and the column of "
            "the key; repeat for each."
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help=".npy, .npz or SciPy CSR .npz; or a table, FILE in the nodes' order or "
            "FILE:COLUMN with their ids."
        ),
    ] = None,
    x: Annotated[
        list[str] | None,
        typer.Option(help='Columns of features in tables, such as "f*"; repeat for each.'),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="CSV: one node id and its label per line. Beside --nodes: a column of theirs."
        ),
    ] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(help="Column of times in --nodes or --edges; repeat for each."),
    ] = None,
    undirected: Annotated[bool, typer.Option(help="Add the reverse of each edge.")] = False,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Shares of train,val,test, drawn at random (default: 0.6,0.2,0.2); or "
            "NAME=FILE of node ids, once for each split; or none. Of a .pt file, masks are kept, "
            "and 0,0.5,0.5 divides the rest. Beside --nodes: a column of names of splits, or "
            "COLUMN:TIME,TIME, when val and test begin."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the random split; default: 0.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Dtype of the features in the store; default: float32, or the dtype in a "
            "dataset's file."
        ),
    ] = None,
    if_exists: IfExists = "error",
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for DuckDB to sort edges larger than memory, such as 1GB."),
    ] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(min=0, help="Default: as features or labels say, or the largest id + 1."),
    ] = None,
    first_id: Annotated[
        int | None, typer.Option(min=0, help="The least node id: 1 if ids count from 1.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Column of sources; default: first.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of targets; default: second.")] = None,
    header: Annotated[
        bool | None, typer.Option(help="Whether CSV files begin with column names.")
    ] = None,
    edge_column: Annotated[
        list[str] | None, typer.Option(help="Column to keep, of numbers; beside --nodes of any.")
    ] = None,
    map_ids: Annotated[
        bool, typer.Option(help="Ids are text or sparse: number the nodes and keep the ids.")
    ] = False,
) -> None:
    """Make a store from a graph in plain files, from an OGB or GraphBolt dataset, or from a PyG
    graph that torch.save wrote."""
    asked = {
        "features": features, "labels": labels, "undirected": undirected or None, "dtype": dtype,
        "if_exists": if_exists, "memory": memory, "num_nodes": num_nodes, "first_id": first_id,
        "source": source, "target": target, "header": header, "edge_column": edge_column,
        "map_ids": map_ids or None, "x": x, "nodes": nodes, "time": time,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if len(paths) == 2:
        named = {*given, *(["edges"] if edges else [])}
        if refused := sorted(named - _OPTIONS_OF_DATASETS):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
            raise ConfigError(
                f"{options}: the files of the dataset {paths[0]} define that: leave it out, or "
                "give --edges and no dataset"
            )
        if split:
            given["splits"] = _parse_splits(split, seed or 0) or {}
        _check_seed(seed, given.get("splits"))
        _make(from_dataset, source=paths[0], path=paths[1], **given)
        return
    if len(paths) != 1 or not edges:
        raise ConfigError(
            "what is to be imported? Give files, gnndrive import STORE --edges FILE, or a "
            "dataset's folder or .pt file, gnndrive import DATASET STORE"
        )
    if nodes or (_typed(edges[0]) and "," in edges[0].partition("=")[0]):
        found = _of_tables(given, edges, split or [], seed or 0)
        _check_seed(seed, found["splits"])
        _make(from_tables, path=paths[0], **found)
        return
    if time:
        raise ConfigError("--time names a column of tables: give --nodes FILE:COLUMN too")
    given = {"path": paths[0], "dtype": "float32", "features": None, "labels": None, **given}
    given["splits"] = _parse_splits(split or ["0.6,0.2,0.2"], seed or 0)
    _check_seed(seed, given["splits"])
    given["columns"] = given.pop("edge_column", ())
    sorting = set(given) - _OPTIONS_OF_CSV - {"path", "splits", "columns"}
    if sorting or given["columns"] or len(edges) > 1 or not is_text(Path(edges[0])):
        _make(from_edges, edges=edges, **given)
    else:
        given.pop("columns")
        _make(from_csv, edges=edges[0], **given)


def _make(importer: Callable[..., Store], **given: Any) -> None:
    with Bars() as bars, reporting(bars):
        store = importer(**given, progress=bars)
    print(info_text(store))


def _of_tables(
    given: dict[str, Any], edges: Sequence[str], split: Sequence[str], seed: int
) -> dict[str, Any]:
    """The arguments of `from_tables`."""
    found = {**given, "columns": given.get("edge_column", ())}
    if refused := sorted(set(given) - _OPTIONS_OF_TABLES):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise ConfigError(f"{options}: leave it out beside --nodes, whose tables define that")
    found.pop("edge_column", None)
    found["nodes"], found["edges"] = _by_type(given.get("nodes", [])), _by_type(edges)
    column, sign, times = split[0].partition(":") if len(split) == 1 else ("", "", "")
    if split == ["none"] or (not split and "labels" not in given):
        found["splits"] = None
    elif sign:
        found["splits"] = (column, *times.split(","))
    elif column and "," not in column:
        found["splits"] = column
    else:
        found["splits"] = _parse_splits(split or ["0.6,0.2,0.2"], seed)
    return found


def _typed(value: str) -> bool:
    """Whether a table is given as TYPE=FILE, and is no file in a folder such as year=2024."""
    whole = Path(value.rpartition(":")[0] or value)
    return "=" in value and not (whole.exists() or Path(value).exists())


def _by_type(values: Sequence[str]) -> Any:
    """Tables given as TYPE=FILE, by type, or as FILE."""
    found: dict[str, list[str]] = {}
    for value in values:
        type, _, file = value.partition("=") if _typed(value) else ("", "", value)
        found.setdefault(type, []).append(file)
    if len(found) > 1 and "" in found:
        raise ConfigError(f"{found[''][0]} has no type, but other tables have: give TYPE=FILE")
    return found.get("", found or None)


def _check_seed(seed: int | None, splits: object) -> None:
    if seed is not None and not isinstance(splits, RandomSplit):
        raise ConfigError("--seed is for splits that are drawn, --split 0.6,0.2,0.2: leave it out")


def _parse_splits(values: Sequence[str], seed: int) -> SplitSpec:
    """Parse the values of --split to what importers take: "none", or one
    "0.6,0.2,0.2" to be drawn with `seed`, or any number of "NAME=FILE"."""
    if list(values) == ["none"]:
        return None
    if all("=" in value for value in values):
        return dict(value.split("=", 1) for value in values)
    try:
        (value,) = values
        train, val, test = (float(part) for part in value.split(","))
    except ValueError:
        raise ConfigError(
            f"--split {' '.join(values)}: give the shares of train, val and test as 0.6,0.2,0.2, "
            "or NAME=FILE once for each split, or none"
        ) from None
    return RandomSplit(train, val, test, seed)

"""Import tables, as databases have them: nodes by their keys, edges by foreign keys.

Each row of a node table is a node, numbered in the table's order, with or without a key; each row
of an edge table is an edge between the nodes whose keys it has. DuckDB reads the files, looks the
keys up and sorts the edges within a memory budget, and spills beside the store.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.names import did_you_mean
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, EdgeType, Int64Array, ends_of
from gnndrive.store.format import AnyDType
from gnndrive.store.graph_values import encode
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.database import Database, identifier, quoted
from gnndrive.store.importers.dataset import Dataset, write_dataset
from gnndrive.store.importers.edge_list import write_graph
from gnndrive.store.importers.ends import Ends
from gnndrive.store.importers.features import as_labels, twice, two_dimensional
from gnndrive.store.importers.plain_files import checked_target
from gnndrive.store.importers.splits import RandomSplit, as_random, labelled, random_split
from gnndrive.store.importers.table_files import (
    WHOLE,
    TableFiles,
    files_in,
    table_of,
)
from gnndrive.store.importers.table_rows import (
    FEATURES,
    TIMES,
    NodeIds,
    TableRows,
    check_ids,
    kind_of,
    matching,
)
from gnndrive.store.reader import Store
from gnndrive.store.types import Types, array_name
from gnndrive.store.writer import StoreWriter

Files: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""FILE:COLUMN, FILE:COLUMN,COLUMN, or several of them; a file may be a folder of files."""
Names: TypeAlias = "str | Sequence[str]"
"""One reference to columns, or several: COLUMN, or TYPE.COLUMN where TYPE is a node type or the
relation of an edge type."""
_NO_LEAF = re.compile(r"^[^A-Za-z0-9_]|[^A-Za-z0-9_.\-]")
_SPLITS_MAX = 100
_OF_BATCHES = {
    "id", "x", "y", "edge_index", "n_id", "e_id", "batch", "batch_size", "ptr", "input_id",
    "num_nodes", "num_edges", "num_sampled_nodes", "num_sampled_edges", "seed_time",
    "edge_label", "edge_label_index", "edge_label_time", "src_index", "dst_pos_index",
    "dst_neg_index",
}  # fmt: skip
"""Attributes that a store or a batch has of its own."""
_REVERSE = "rev_"  # begins the relation of reverse edges, as in PyG's ToUndirected


@with_if_exists()
def from_tables(
    path: str | os.PathLike[str],
    *,
    edges: Files | Mapping[EdgeType | str, Files],
    nodes: Files | Mapping[str, Files] | None = None,
    x: Names = (),
    labels: Names = (),
    time: Names = (),
    columns: Names = (),
    splits: str | tuple[str, ...] | tuple[float, ...] | RandomSplit | None = None,
    undirected: bool = False,
    header: bool | None = None,
    memory: str | int = "4GB",
    dtype: AnyDType = "float32",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from tables of nodes and edges: Parquet, Arrow, or CSV, each one file, several,
    or a folder of files.

        gnndrive.from_tables(
            "shop.gnn",
            nodes={"user": "users.parquet:id", "item": "items.csv:sku"},
            edges={("user", "buys", "item"): "orders.parquet:user_id,sku"},
            x="f*", labels="user.churned", time="ts",
        )

    Nodes are numbered in the order of their table's rows. Their keys may be of any type, and become
    the attribute `id`, which `store.ids` and `store.index_of` translate. An edge table may be a
    node table too, such as orders that have a user.

    Every other column becomes an attribute of its name, in which characters other than letters,
    digits, "_", "-" and "." become "_", with "_2" where that name is taken: numbers keep their
    dtype; a missing number makes it a float with nan; times become int64, nanoseconds since 1970 in
    UTC; texts become int64, numbers of categories in sorted order, -1 if missing, and the
    categories are the value NAME_categories of the type. In CSV, a column's type follows from all
    of its values. Edges whose table is a node table too have its columns only if `columns` or
    `time` name them.

    Args:
        path: the folder to make.
        edges: by (source type, relation, target type), or "source,relation,target": the files, and
            the columns of the source's and the target's key, FILE:COLUMN,COLUMN; without these, the
            first two. Without types, the files of the only type.
        nodes: by type, the files and the column of the key, FILE:COLUMN. Without a column, edges
            have numbers of rows, from 0. A type without a table has the nodes that edges have,
            in the order of their keys.
        x: columns of features, numbers or lists of numbers, side by side; names may be patterns
            such as "f*". For a type without any: its column `x`, or its only column of lists.
        labels: columns of labels, which become y: whole numbers, other numbers, or names of
            classes. For a type without: its column `y`.
        time: columns of times, which become the attribute `time` of nodes or edges, int64.
        columns: columns of nodes and edges to keep as attributes; empty: all.
        splits: a column of nodes with the names of splits; or (column, TIME, TIME): train before
            the first time, val before the second, test after that; with one time train and test;
            or a RandomSplit of the labelled nodes of each type, also written (0.6, 0.2, 0.2).
        undirected: add the reverse of each edge, with the same attributes: between two types in an
            edge type with the relation rev_RELATION, within a type behind the edge.
        header: whether each CSV file begins with the columns' names; None: it does if its first row
            has a key's name or, above numbers, none.
        memory: bytes, or a text such as "4GB", for the import.
        dtype: dtype of x in the store.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, done, total).

    Returns:
        The open store. Its edge ids are rows of the edge table, from 0; with `undirected` within a
        type, 2 · row, and 2 · row + 1 for the reverse.

    Raises:
        ConfigError: arguments do not fit together or name no column, `path` exists, or DuckDB is
            not installed.
        StoreError: a file cannot be read, a key is missing or occurs twice, or a feature is
            missing (the message names the file and the row); or the disk is full. Nothing is left
            behind.

    Warns:
        UserWarning: columns are left out, because an array cannot have them; or a type of the edges
            has no table, and one with a table has a similar name.
    """
    budget, target = parse_size(memory, "memory"), Path(os.path.realpath(path))
    splits = as_random(splits)
    typed = isinstance(edges, Mapping)
    if typed != isinstance(nodes, Mapping) and nodes is not None:
        raise ConfigError("nodes= and edges= go together: give both by type, or both without types")
    of_nodes = dict(nodes) if isinstance(nodes, Mapping) else {None: nodes} if nodes else {}
    of_edges = (
        {_edge_type(type): files for type, files in edges.items()}
        if isinstance(edges, Mapping)
        else {None: edges}
    )
    checked_target(path, if_exists)
    named = ", ".join(_shown(files) for files in [*of_nodes.values(), *of_edges.values()])
    with closing(Database(budget, target, named)) as database:
        graph = _Graph(database, of_nodes, of_edges, header)
        roles = _roles(graph, x, labels, time, columns, splits)
        dataset = graph.dataset(undirected)
        left_out: list[str] = []
        for source, role in zip(graph.sources, roles, strict=True):
            left_out += _add_arrays(dataset, database, source, role, dtype, undirected)
        if left_out:
            warnings.warn(
                f"columns that no array of a store can have are left out: {'; '.join(left_out)}",
                stacklevel=3,
            )
        _add_splits(dataset, graph, roles, splits)
        return write_dataset(
            dataset, path, memory=budget, overwrite=if_exists == "replace", progress=progress,
            made_by=f"gnndrive.from_tables({named}{', undirected' if undirected else ''})",
        )  # fmt: skip


# ---- files and keys


@dataclass(frozen=True, slots=True)
class _Source:
    """The table of a type of nodes (`keys`: none or one column) or edges (two columns); nodes whose
    table is None are those that edges have. `ids` is a table (id, node) in the database; None: ids
    are numbers of rows."""

    type: Any
    table: TableFiles | None
    keys: tuple[str, ...]
    count: int
    of_edges: bool
    ids: str | None = None

    @property
    def where(self) -> str:
        """The table's files, or the type."""
        return str(self.type) if self.table is None else self.table.name

    @property
    def scopes(self) -> set[str]:
        """What a reference to a column may begin with."""
        if self.type is None:
            return set()
        return {"__".join(self.type), self.type[1]} if self.of_edges else {self.type}


class _Graph:
    """Opened tables, and where they refer to each other."""

    def __init__(
        self,
        database: Database,
        nodes: Mapping[Any, Files],
        edges: Mapping[Any, Files],
        header: bool | None,
    ) -> None:
        self.database = database
        ends = {type: ends_of(type) for type in edges}
        of_nodes = {type: _parse(files, 1) for type, files in nodes.items()}
        of_edges = {type: _parse(files, 2) for type, files in edges.items()}
        tables = self._open(of_nodes.values(), of_edges.values(), header)
        self.nodes: dict[Any, _Source] = {}
        self.edges: dict[Any, _Source] = {}
        for type, (files, keys) in of_edges.items():
            table = tables[files]
            keys = keys or tuple(table.columns)[:2]
            if len(keys) < 2:
                raise ConfigError(f"{table.name} has one column: edges need two")
            self.edges[type] = _Source(type, table, keys, self._count(table), True)
        types = dict.fromkeys([*of_nodes, *(end for pair in ends.values() for end in pair)])
        if None not in types:
            Types.of(dict.fromkeys(map(str, types), 0), dict.fromkeys(self.edges, 0))
        for type in types:
            meant = "" if type in of_nodes else did_you_mean(type, of_nodes)
            if meant:
                warnings.warn(
                    f"edges name the type {type!r}, which has no table{meant}, so that its nodes "
                    "are those of the edges: correct the name, or give a table, nodes=",
                    stacklevel=4,
                )
        self._expressions: dict[tuple[Any, int], str] = {}
        for place, type in enumerate(types):
            files, keys = of_nodes.get(type, ((), ()))
            self.nodes[type] = self._number(f"ids_{place}", type, tables.get(files), keys, ends)

    @property
    def sources(self) -> list[_Source]:
        """All tables."""
        return [*self.nodes.values(), *self.edges.values()]

    def dataset(self, undirected: bool) -> Dataset:
        """The nodes, their keys, and the edges."""
        ends: dict[Any, Ends] = {}
        for type, source in self.edges.items():
            within = _is_within(type)
            ends[type] = _TableEnds(self, source, both_ways=undirected and within)
            if undirected and not within:
                if _reverse(type) in self.edges:
                    raise ConfigError(
                        f"undirected= would add the edge type {_reverse(type)}, which is given: "
                        "leave it out, or undirected="
                    )
                ends[_reverse(type)] = _TableEnds(self, source, reverse=True)
        found = Dataset({type: nodes.count for type, nodes in self.nodes.items()}, ends)
        for type, nodes in self.nodes.items():
            if nodes.ids is not None:
                found.add("nodes", type, "id", NodeIds(self.database, nodes.ids))
        return found

    def numbered(self, edges: _Source) -> str:
        """SQL for a type's edges: their ends (s, t) as numbers of nodes, and their rows (e)."""
        assert edges.table is not None
        source, target = (self.nodes[end] for end in ends_of(edges.type))
        s, t = (self._expressions[edges.type, place] for place in (0, 1))
        rows = f"SELECT {s} AS s, {t} AS t, row_number() OVER () - 1 AS e FROM {edges.table.sql}"
        ends, joins = [], []
        for end, nodes in (("s", source), ("t", target)):
            if nodes.ids is None:
                inside = f"{end} >= 0 AND {end} < {nodes.count}"
                ends.append(f"CASE WHEN {inside} THEN {end}::BIGINT END AS {end}")
            else:
                joins.append(f"LEFT JOIN {nodes.ids} of_{end} ON rows.{end} = of_{end}.id")
                ends.append(f"of_{end}.node AS {end}")
        return f"SELECT {', '.join(ends)}, e FROM ({rows}) rows {' '.join(joins)}"

    def refuse_edge(self, edges: _Source) -> None:
        """Raise the error for the first edge that has a key that no node has."""
        assert edges.table is not None
        row, s = self.database.row(
            f"SELECT e, s FROM ({self.numbered(edges)}) WHERE s IS NULL OR t IS NULL ORDER BY e "
            "LIMIT 1"
        )
        end = 0 if s is None else 1
        key, nodes = edges.keys[end], self.nodes[ends_of(edges.type)[end]]
        id = edges.table.value(key, row)
        whose = f"no row of {nodes.where} has that key"
        if nodes.ids is None:
            whose = f"{nodes.where} has the rows 0 to {nodes.count - 1}; give its key, FILE:COLUMN"
        what = "no value" if id is None else repr(id)
        raise StoreError(
            f"{edges.table.place(row)} has {what} in column {key!r}: {whose}; correct it, or leave "
            "the row out"
        )

    def _open(
        self, nodes: Iterable[_Parsed], edges: Iterable[_Parsed], header: bool | None
    ) -> dict[tuple[Path, ...], TableFiles]:
        """Open each set of files once, though it may be a table of nodes and of edges."""
        keys: dict[tuple[Path, ...], list[str]] = {}
        for files, columns in (*nodes, *edges):
            keys.setdefault(files, []).extend(columns)
        first_two = {files for files, columns in edges if not columns}
        found = {}
        for files, named in keys.items():
            table = found[files] = TableFiles(self.database, files, header, named, free=True)
            table.refuse_comments()
            table.load([*named, *(list(table.columns)[:2] if files in first_two else ())])
        return found

    def _count(self, table: TableFiles) -> int:
        (count,) = self.database.row(f"SELECT count(*) FROM {table.sql}")
        return int(count)

    def _number(
        self,
        ids: str,
        type: Any,
        table: TableFiles | None,
        keys: tuple[str, ...],
        ends: Mapping[Any, tuple[Any, Any]],
    ) -> _Source:
        """Make the table `ids` of a type's nodes, unless rows number them."""
        used = [(edge, place) for edge, pair in ends.items() for place in (0, 1)
                if pair[place] == type]  # fmt: skip
        asked = [(self.edges[edge].table, self.edges[edge].keys[place]) for edge, place in used]
        asked += [(table, key) for key in keys]
        types = [_key_type(table, key) for table, key in asked]  # type: ignore[arg-type]
        cast = "" if set(types) <= WHOLE.keys() else "::VARCHAR"
        sqls = [
            f"{table.column(key, kind)}{cast}"  # type: ignore[union-attr]
            for (table, key), kind in zip(asked, types, strict=True)
        ]
        self._expressions.update(zip(used, sqls, strict=False))
        if table is not None and not keys:
            for (at, key), kind in zip(asked, types, strict=True):
                if kind not in WHOLE:
                    assert at is not None
                    raise ConfigError(
                        f"column {key!r} of {at.name} is {kind}, and {table.name} has no key: "
                        "give its column, FILE:COLUMN"
                    )
            return _Source(type, table, (), self._count(table), False)
        if table is None:
            union = " UNION ALL ".join(
                f"SELECT {sql} AS id FROM {self.edges[edge].table.sql}"  # type: ignore[union-attr]
                for (edge, _), sql in zip(used, sqls, strict=True)
            )
            self.database.run(
                f"CREATE TABLE {ids} AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
                f"FROM (SELECT DISTINCT id FROM ({union}) WHERE id IS NOT NULL)"
            )
        else:
            self.database.run(
                f"CREATE TABLE {ids} AS SELECT {sqls[-1]} AS id, row_number() OVER () - 1 AS node "
                f"FROM {table.sql}"
            )
            self._check_keys(ids, table, keys[0])
        check_ids(self.database, ids, str(type) if table is None else table.name)
        (count,) = self.database.row(f"SELECT count(*) FROM {ids}")
        return _Source(type, table, keys, int(count), False, ids)

    def _check_keys(self, ids: str, table: TableFiles, key: str) -> None:
        (row,) = self.database.row(f"SELECT min(node) FROM {ids} WHERE id IS NULL")
        if row is not None:
            raise StoreError(
                f"{table.place(row)} has no value in the key {key!r}: correct it, or leave it out"
            )
        found = self.database.row(
            f"SELECT max(node), id::VARCHAR, min(node) FROM {ids} GROUP BY id HAVING count(*) > 1 "
            "ORDER BY 1 LIMIT 1"
        )
        if found:
            raise StoreError(
                f"{table.place(found[0])} has the key {found[1]!r} of {table.place(found[2])}, in "
                f"column {key!r}: leave one of them out"
            )


def _key_type(table: TableFiles, key: str) -> str:
    type = table.id_type(key)
    if type.endswith("]") or type.startswith(("STRUCT", "MAP", "UNION")):
        raise ConfigError(f"column {key!r} of {table.name} is {type}: a key is a number or a text")
    return type


class _TableEnds(Ends):
    """The edges of a table.

    Args:
        reverse: from their targets to their sources.
        both_ways: each edge is followed by its reverse.
    """

    def __init__(
        self, graph: _Graph, edges: _Source, *, reverse: bool = False, both_ways: bool = False
    ) -> None:
        self._graph, self._edges, self._reverse, self._both = graph, edges, reverse, both_ways
        self.count, self.where = edges.count * (2 if both_ways else 1), edges.where

    def write(
        self, writer: StoreWriter, type: EdgeKey, memory: int, progress: Progress | None
    ) -> None:
        """See `Ends.write`; DuckDB sorts."""
        write_graph(self, writer, False, progress, type)

    def by_target(
        self, undirected: bool, tell: Callable[[int], None]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """See `EdgeList.by_target`."""
        rows = self._graph.numbered(self._edges)
        if self._reverse:
            rows = f"SELECT t AS s, s AS t, e FROM ({rows})"
        if self._both:
            rows = (
                "SELECT unnest([s, t]) AS s, unnest([t, s]) AS t, unnest([2 * e, 2 * e + 1]) AS e "
                f"FROM ({rows})"
            )
        # Keys that no node has come first among targets, and sources are looked at.
        sql = f"SELECT t, s, e FROM ({rows}) ORDER BY t NULLS FIRST, e"
        with closing(self._graph.database.batches(sql, tell)) as batches:
            for batch in batches:
                if any(column.null_count for column in batch.columns):
                    break
                yield tuple(column.to_numpy() for column in batch.columns)
            else:
                return
        self._graph.refuse_edge(self._edges)


# ---- columns


@dataclass(slots=True)
class _Role:
    """What the columns of a table become."""

    x: list[str]
    labels: list[str]
    time: list[str]
    split: list[str]
    kept: list[str]  # as attributes of their own names


def _roles(
    graph: _Graph, x: Names, labels: Names, time: Names, columns: Names, splits: Any
) -> list[_Role]:
    """What the columns of `graph.sources` become; ConfigError: a name is that of no column, or is
    ambiguous."""
    nodes, tables = [*graph.nodes.values()], graph.sources
    edges = [source.table for source in graph.edges.values()]
    split = "" if splits is None or isinstance(splits, RandomSplit) else splits
    if isinstance(split, tuple):
        split = split[0]
    asked = [
        _columns(nodes, x, "x="), _columns(nodes, labels, "labels="),
        _columns(tables, time, "time="), _columns(nodes, split, "splits=", edges),
        _columns(tables, columns, "columns="),
    ]  # fmt: skip
    found = []
    for place, source in enumerate(tables):
        role = _Role(*(each.get(place, []) for each in asked))
        found.append(role)
        if source.table is None:
            continue
        for what, given in (("labels", role.labels), ("time", role.time), ("splits", role.split)):
            if len(given) > 1:
                raise ConfigError(
                    f"{what}= names several columns of {source.where}, {', '.join(given)}: name one"
                )
        if not source.of_edges and not role.labels and "y" in source.table.columns:
            role.labels = ["y"]
        names_of_splits = role.split if isinstance(splits, str) else ()
        keys = [key for each in tables if each.table is source.table for key in each.keys]
        others = {*keys, *role.labels, *role.time, *names_of_splits}
        role.x = [name for name in role.x if name not in others]
        types = {n: t for n, t in source.table.columns.items() if n not in others}
        if not source.of_edges and not role.x:
            lists = [name for name, type in types.items() if kind_of(type) == "list"]
            role.x = ["x"] if "x" in types else lists[:1] if len(lists) == 1 else []
        of_nodes = source.of_edges and any(each.table is source.table for each in nodes)
        # Without names all, but not of a table of nodes and edges for the edges too.
        kept = role.kept if columns else () if of_nodes else types
        role.kept = [name for name in kept if name in types and name not in role.x]
    return found


def _columns(
    sources: Sequence[_Source], names: Names, what: str, edges: Sequence[TableFiles | None] = ()
) -> dict[int, list[str]]:
    """The columns that references name, by the tables' places in `sources`; an error says if a
    table of `edges` has the column."""
    found: dict[int, list[str]] = {}
    tables = [(place, each, each.table) for place, each in enumerate(sources) if each.table]
    for name in filter(None, [names] if isinstance(names, str) else names):
        scope, _, rest = name.rpartition(".")
        fitting = {
            place: matching(rest if scope in each.scopes else name, table.columns)
            for place, each, table in tables
        }
        if not any(fitting.values()):
            there = "; ".join(
                f"{table.name} has {', '.join(map(repr, table.columns))}" for _, _, table in tables
            )
            of_edges = ""
            if what == "splits=" and any(name in each.columns for each in edges if each):
                of_edges = (
                    "; splits are of nodes, and gnndrive.split_links(store, time=) (gnndrive "
                    f"split-links --time) splits edges by a column of theirs, such as {name!r}"
                )
            known = (column for _, _, table in tables for column in table.columns)
            raise ConfigError(
                f"{what} {name!r} is no column{did_you_mean(rest, known)}: "
                f"{there or 'there is no table'}{of_edges}"
            )
        for place, each in fitting.items():
            found[place] = list(dict.fromkeys([*found.get(place, []), *each]))
    return found


def _add_arrays(
    dataset: Dataset,
    database: Database,
    source: _Source,
    role: _Role,
    dtype: AnyDType,
    undirected: bool,
) -> list[str]:
    """Add the columns of a table; return the names of those that no array can have."""
    if source.table is None:
        return []
    open_rows = functools.partial(TableRows, database, source.table, count=source.count)
    arrays: dict[str, TableRows] = {}
    left_out = []
    if role.time:
        arrays["time"] = open_rows(role.time, kinds=TIMES)
        if arrays["time"].dtype.kind not in "iu":
            raise ConfigError(
                f"column {role.time[0]!r} of {source.where} holds {arrays['time'].dtype}: give "
                "whole numbers, dates or timestamps"
            )
    taken = {*_OF_BATCHES, *arrays}
    for name in role.kept:
        kind = kind_of(source.table.columns[name])
        rows = None if kind is None else open_rows([name])
        if rows is None or rows.unfit:
            why = f"is {source.table.columns[name]}" if rows is None else rows.unfit
            left_out.append(f"{name!r} of {source.where} {why}")
            continue
        leaf = plain = _NO_LEAF.sub("_", name)
        for number in itertools.count(2):
            if leaf not in taken:
                break
            leaf = f"{plain}_{number}"
        taken.add(leaf)
        arrays[leaf] = rows
    group = "edges" if source.of_edges else "nodes"
    types = {source.type: False}
    if source.of_edges and undirected and _is_within(source.type):
        types = {source.type: True}
    elif source.of_edges and undirected:
        types[_reverse(source.type)] = False
    for type, doubled in types.items():
        for leaf, rows in arrays.items():
            shaped = two_dimensional(rows) if leaf == "edge_attr" else rows
            dataset.add(group, type, leaf, twice(shaped) if doubled else shaped)
            if rows.classes is not None:
                values = dataset.values.setdefault(type, {})
                values[f"{leaf}_categories"] = encode(list(rows.classes))
    if role.x:
        features = open_rows(role.x, kinds=FEATURES)
        dataset.add(group, source.type, "x", two_dimensional(features), dtype)
    if role.labels:
        y = open_rows(role.labels)
        if y.unfit:
            raise ConfigError(
                f"column {role.labels[0]!r} of {source.where} {y.unfit}: it holds no labels; "
                "correct it"
            )
        dataset.add(group, source.type, "y", as_labels(y))
        if y.classes is not None:
            dataset.classes[source.type] = y.classes
    return left_out


# ---- splits


def _add_splits(dataset: Dataset, graph: _Graph, roles: Sequence[_Role], splits: Any) -> None:
    if splits is None:
        return
    for source, role in zip(graph.sources, roles, strict=True):
        if isinstance(splits, RandomSplit):
            y = None if source.of_edges else dataset.rows.get(array_name("nodes", source.type, "y"))
            if y is not None:
                found: Mapping[str, Any] = random_split(labelled(y.all_rows()), splits)
                dataset.splits.update({(source.type, name): ids for name, ids in found.items()})
        elif role.split:
            assert source.table is not None
            if isinstance(splits, str):
                found = _splits_by_name(graph.database, source.table, role.split[0])
            else:
                found = _splits_by_time(graph.database, source.table, role.split[0], splits[1:])
            dataset.splits.update({(source.type, name): ids for name, ids in found.items()})
    if not dataset.splits:
        raise ConfigError("splits= draws from labelled nodes, and there are none: give labels=")


def _splits_by_name(database: Database, table: TableFiles, name: str) -> dict[str, Int64Array]:
    """A split for each text of a column; rows without one are in none."""
    type = table.columns[name]
    rows = TableRows(database, table, [name], 0) if kind_of(type) else None
    if rows is None or rows.classes is None or len(rows.classes) > _SPLITS_MAX:
        raise ConfigError(
            f"column {name!r} of {table.name}, which is {type}, has no names of splits, such as "
            "train, val and test: give one that has, or times, as (column, TIME, TIME)"
        )
    return {text: _rows_where(database, table, f"{identifier(name)} = {quoted(text)}")
            for text in rows.classes}  # fmt: skip


def _splits_by_time(
    database: Database, table: TableFiles, name: str, times: Sequence[str]
) -> dict[str, Int64Array]:
    """train, val and test by the times at which val and test begin."""
    column, type = identifier(name), table.columns[name]
    bounds: list[Any] = []
    if kind_of(type) in ("time", "number"):
        casts = ", ".join(f"TRY_CAST({quoted(str(time))} AS {type})" for time in times)
        bounds = list(database.row(f"SELECT {casts}"))
    if None in bounds or not 1 <= len(bounds) <= 2 or sorted(bounds) != bounds:
        raise ConfigError(
            f"splits= by column {name!r} of {table.name}, which is {type}: give one or two times "
            f"of that type, in order; it has {', '.join(map(repr, times))}"
        )
    sqls = [f"{quoted(str(time))}::{type}" for time in times]
    found = {"train": _rows_where(database, table, f"{column} < {sqls[0]}")}
    if len(sqls) == 2:
        inside = f"{column} >= {sqls[0]} AND {column} < {sqls[1]}"
        found["val"] = _rows_where(database, table, inside)
    found["test"] = _rows_where(database, table, f"{column} >= {sqls[-1]}")
    return found


def _rows_where(database: Database, table: TableFiles, condition: str) -> Int64Array:
    return database.array(
        f"SELECT place FROM (SELECT row_number() OVER () - 1 AS place, ({condition}) AS holds FROM "
        f"{table.sql}) WHERE holds ORDER BY place"
    )


# ---- arguments

_Parsed: TypeAlias = "tuple[tuple[Path, ...], tuple[str, ...]]"
"""Files, and the columns of their keys."""


def _parse(files: Files, keys: int) -> _Parsed:
    """Parse "FILE:COLUMN" or several; a file may be a folder, which stands for the files in it."""
    found: list[Path] = []
    columns: tuple[str, ...] = ()
    for each in [files] if isinstance(files, str | os.PathLike) else files:
        path, given = table_of(each)
        path = Path(os.path.realpath(path))
        if given and columns and given != columns:
            raise ConfigError(
                f"{os.fspath(each)}: another file of this table has the key "
                f"{','.join(columns)}: give one key for all"
            )
        columns = given or columns
        found += files_in(path)
    if columns and len(columns) != keys:
        wanted = "one column" if keys == 1 else "the columns of the source and the target"
        raise ConfigError(f"{_shown(files)} names {len(columns)} columns: give {wanted}")
    if not found:
        raise ConfigError("a table has no files: give one at least")
    return tuple(found), columns


def _shown(files: Files) -> str:
    if isinstance(files, str | os.PathLike):
        return os.fspath(files)
    return ", ".join(os.fspath(each) for each in files)


def _edge_type(type: EdgeType | str) -> EdgeType:
    parts = tuple(type.split(",")) if isinstance(type, str) else tuple(type)
    if len(parts) != 3:
        raise ConfigError(f"the edge type {type!r}: give (source, relation, target)")
    return parts


def _reverse(type: EdgeType) -> EdgeType:
    return type[2], f"{_REVERSE}{type[1]}", type[0]


def _is_within(type: EdgeKey) -> bool:
    source, target = ends_of(type)
    return source == target

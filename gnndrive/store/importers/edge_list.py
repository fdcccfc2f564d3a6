"""Edge lists larger than memory, in Parquet, Arrow or CSV, sorted by DuckDB within a budget.

DuckDB reads the files, sorts the edges by target and spills to disk beside the store. The sorted
edges are written to the CSC arrays batch by batch, so that memory holds DuckDB's share of the
budget, the index pointers and one batch. When not to use it: for a list that fits in memory;
`from_csv` needs no DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, Int64Array, ends_of
from gnndrive.store.format import index_dtype
from gnndrive.store.importers.database import Database, identifier
from gnndrive.store.importers.table_files import INEXACT, NUMBERS, TYPES, WHOLE, TableFiles
from gnndrive.store.importers.table_rows import NodeIds, check_ids
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.writer import StoreWriter

_SAMPLE = 1000  # rows that show whether a column may have ids
_SHOWN = 4  # ids in an error
_FROM_1 = "if ids count from 1, give first_id=1; or "


class EdgeList:
    """A list of edges in files, sorted within a memory budget; close it after use.

    Args:
        files: as for `TableFiles`.
        memory: memory budget in bytes.
        beside: path beside which to make a temporary folder for the spilled edges.
        source, target, map_ids, columns, header, first_id: as for `from_edges`.
        name: the files' name in errors; None: their paths.

    Attributes:
        database: what reads and sorts them; with `map_ids` it has a table `ids` (id, node).
        count: number of edges.
        least, last: the least and the largest node number; -1 if there are no edges.
    """

    def __init__(
        self,
        files: Sequence[Path],
        memory: int,
        beside: Path,
        source: str | None = None,
        target: str | None = None,
        map_ids: bool = False,
        columns: Sequence[str] = (),
        header: bool | None = None,
        name: str | None = None,
        first_id: int = 0,
    ) -> None:
        self._mapped, self._first = map_ids, first_id
        self.database = Database(memory, beside, name or ", ".join(map(str, files)))
        try:
            named = [each for each in (source, target, *columns) if each is not None]
            self._table = TableFiles(self.database, files, header, named, map_ids, "edge", name)
            self._source, self._target = self._ends(source, target, columns)
            self._check_columns(columns)
            if map_ids:
                self._table.refuse_comments()
                self._number_ids()
            self.count, self.least, self.last = self._count_and_check()
        except BaseException:
            self.close()
            raise

    def by_target(
        self, undirected: bool, tell: Callable[[int], None]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Yield targets, sources and numbers in the list, int64 [n] each, in batches, sorted by
        target; edges of one target keep the list's order.

        Args:
            undirected: add the other direction of every edge, drop repetitions, and sort by target
                and source; the numbers are None.
            tell: called before the first batch with the share that is sorted, in percent.
        """
        if undirected:
            sql = f"SELECT t, s, NULL::BIGINT AS e FROM {self._both_directions} ORDER BY t, s"
        else:
            sql = f"SELECT t, s, e FROM ({self._numbered_edges}) ORDER BY t, e"
        for target, source, number in self.database.arrays(sql, tell):
            yield target, source, None if undirected else number

    def count_undirected(self) -> int:
        """Number of edges in both directions, without repetitions."""
        (count,) = self.database.row(f"SELECT count(*) FROM {self._both_directions}")
        return int(count)

    def column(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Read a kept column in batches, in the list's order."""
        sql = f"SELECT {self._table.column(name, self._table.columns[name])} FROM {self._table.sql}"
        for (values,) in self.database.arrays(sql):
            yield values

    def dtype(self, name: str) -> str:
        """The dtype of a kept column."""
        return NUMBERS[self._table.columns[name]]

    def ids(self) -> NodeIds:
        """The mapped nodes' ids."""
        return NodeIds(self.database, "ids")

    def numbers(self, ids: Sequence[str] | npt.NDArray[Any]) -> Int64Array:
        """The numbers of mapped nodes, int64 [n]; -1 for an id that no edge has."""
        import pyarrow

        whole = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"
        asked = pyarrow.array(ids if whole else list(map(str, ids)))
        self.database.register("asked", pyarrow.table({"id": asked.cast(pyarrow.string())}))
        return self.database.array(
            "SELECT coalesce(ids.node, -1) FROM (SELECT id, row_number() OVER () AS place FROM "
            "asked) a LEFT JOIN ids ON ids.id::VARCHAR = a.id ORDER BY a.place"
        )

    def refuse_above(self, num_nodes: int) -> None:
        """Check that all node numbers are below `num_nodes`."""
        if self.last >= num_nodes:
            self._refuse_edge(
                f"s >= {num_nodes + self._first} OR t >= {num_nodes + self._first}",
                f"names a node, but there are {num_nodes}, numbered from {self._first}: "
                f"{'' if self._first or self.last > num_nodes else _FROM_1}give num_nodes="
                f"{self.last + 1}, and features for all of them if you give any, or",
            )

    def places_of(self, table: TableFiles, key: str, count: int) -> str | None:
        """Find the nodes that the rows of a table belong to, one row for each of `count` nodes;
        `key` is the column of their ids. Returns a table (row, node), or None if the rows are in
        the nodes' order."""
        database, first = self.database, self._first
        ids, places = self._places(table.sql, table.column(key, table.id_type(key)))
        database.run(f"CREATE TABLE places AS {places}")
        outside = f"node IS NULL OR node < 0 OR node >= {count}"
        if bad := database.row(f"SELECT row FROM places WHERE {outside} ORDER BY row LIMIT 1"):
            id, others = self._named(
                f"FROM ({ids}) JOIN places USING (row) WHERE {outside}", "ORDER BY row"
            )
            why = (
                f"there are {count} nodes, {first} to {first + count - 1}, as many as rows; "
                "correct it, or give each node a row"
            )
            if self._mapped:
                why = (
                    f"no edge has it{others and f', nor those of {others}'}; correct it, or give "
                    "the table as nodes= of gnndrive.from_tables, where each of its rows is a node"
                )
            raise StoreError(f"{table.place(bad[0])} has the id {id} in column {key!r}: {why}")
        if bad := database.row(
            "SELECT max(row) FROM places GROUP BY node HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
        ):
            raise StoreError(
                f"{table.place(bad[0])} has an id in column {key!r} that an earlier row has: leave "
                "one of them out"
            )
        rows = "FROM ids ANTI JOIN places USING (node)"
        id, others = self._named(rows, "ORDER BY node") if self._mapped else ("", "")
        if id:
            raise StoreError(
                f"{table.name} has no row with the id {id} in column {key!r}, which edges have"
                f"{others and f', nor with those of {others}'}: give each node a row, or leave "
                "those edges out"
            )
        (ordered,) = database.row("SELECT bool_and(node = row) FROM places")
        return "places" if ordered is False else None

    def order_of(self, table: TableFiles, name: str, count: int) -> bool | None:
        """Whether the ids in a column of a table with `count` rows are in the nodes' order; None:
        it has no ids, because not more than 3 of 4 rows have those of different nodes."""
        inside = f"node >= 0 AND node < {max(count, self.last + 1)}"
        for limit in (f" LIMIT {_SAMPLE}", ""):  # most columns need no look at all rows
            rows = f"(SELECT {identifier(name)} FROM {table.sql}{limit})"
            _, places = self._places(rows, table.column(name, table.columns[name]))
            rows_read, nodes, ordered = self.database.row(
                f"SELECT count(*), count(DISTINCT node) FILTER ({inside}), "
                f"coalesce(bool_and(node IS NOT DISTINCT FROM row), true) FROM ({places})"
            )
            if 4 * nodes <= 3 * rows_read:
                return None
        return bool(ordered)

    def _places(self, rows: str, column: str) -> tuple[str, str]:
        """SQL for the ids (row, id) in a column of a table in SQL, and for their nodes (row, node),
        NULL if no edge has a mapped id."""
        ids = f"SELECT row_number() OVER () - 1 AS row, {column} AS id FROM {rows}"
        if self._mapped:
            return ids, (
                f"SELECT row, node FROM ({ids}) r LEFT JOIN ids ON ids.id::VARCHAR = r.id::VARCHAR"
            )
        return ids, f"SELECT row, TRY_CAST(id AS BIGINT) - {self._first} AS node FROM ({ids})"

    def _named(self, rows: str, order: str) -> tuple[str, str]:
        """The first id of rows in SQL, and what to say of the others: "" if there are none."""
        (count,) = self.database.row(f"SELECT count(*) {rows}")
        sql = f"SELECT id::VARCHAR {rows} {order} LIMIT {_SHOWN}"
        id, *more = [repr(each) for (each,) in self.database.run(sql).fetchall()] or [""]
        if not more:
            return id, ""
        such_as = ", such as" if count > 1 + len(more) else ":"
        return id, f"{count - 1} more{such_as} {', '.join(more)}"

    def close(self) -> None:
        """Close DuckDB and remove the spilled edges. Idempotent."""
        self.database.close()

    # ---- tables

    @property
    def _edges(self) -> str:
        """SQL for the edges: their ends (s, t) as in the files, and their numbers (e)."""
        ends = f"{self._source} AS s, {self._target} AS t"
        return f"SELECT {ends}, row_number() OVER () - 1 AS e FROM {self._table.sql}"

    @property
    def _numbered_edges(self) -> str:
        """SQL for the edges: their ends (s, t) as node numbers, and their numbers (e)."""
        if not self._mapped:
            less = f"::BIGINT - {self._first}" if self._first else "::BIGINT"
            return f"SELECT s{less} AS s, t{less} AS t, e FROM ({self._edges})"
        return (
            f"SELECT a.node AS s, b.node AS t, n.e FROM ({self._edges}) n "
            "JOIN ids a ON n.s = a.id JOIN ids b ON n.t = b.id"
        )

    @property
    def _both_directions(self) -> str:
        """Make a table of all edges in both directions without repetitions; return its name."""
        self.database.run(
            "CREATE TABLE IF NOT EXISTS both_ways AS SELECT DISTINCT s, t FROM (SELECT "
            f"unnest([s, t]) AS s, unnest([t, s]) AS t FROM ({self._numbered_edges}))"
        )
        return "both_ways"

    def _number_ids(self) -> None:
        ends = f"SELECT unnest([s, t]) AS id FROM ({self._edges})"
        self.database.run(
            "CREATE TABLE ids AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
            f"FROM (SELECT DISTINCT id FROM ({ends}) WHERE id IS NOT NULL)"
        )
        check_ids(self.database, "ids", self._table.name)

    # ---- checks

    def _ends(
        self, source: str | None, target: str | None, columns: Sequence[str]
    ) -> tuple[str, ...]:
        """SQL for the two ends of the edges."""
        table, names = self._table, list(self._table.columns)
        if len(names) < 2:
            raise StoreError(
                f"{table.files[0]} has {len(names)} column: edges need two; check its separator, a "
                "comma, semicolon, tab or space"
            )
        ends = source or names[0], target or names[1]
        numbers = dict.fromkeys(columns, ("BIGINT", "DOUBLE", "BOOLEAN"))
        of_ends = ("PLAIN" if self._mapped else "BIGINT",)
        table.find_types({**numbers, **dict.fromkeys(ends, of_ends)})
        types = [table.id_type(name) for name in ends]
        for name, type in zip(ends, types, strict=True):
            if type in WHOLE or self._mapped:
                continue
            if (found := table.first_without(name, TYPES["BIGINT"])) is not None:
                row, text = found
                raise StoreError(
                    f"{table.place(row)} has {text!r} in column {name!r}, which is {type}: node "
                    "ids are whole numbers from 0; correct it, or give map_ids=True to "
                    "have ids of any kind numbered"
                )
        if len(set(types)) > 1 and not set(types) <= WHOLE.keys():
            return tuple(f"{sql}::VARCHAR" for sql in map(table.column, ends, types))
        return tuple(map(table.column, ends, types))

    def _check_columns(self, names: Sequence[str]) -> None:
        table = self._table
        for name in names:
            type = table.columns[name]
            if type.startswith(INEXACT):
                type = table.columns[name] = "DOUBLE"
            if type not in NUMBERS:
                found = table.first_without(name, TYPES["DOUBLE"])
                where = "" if found is None else f", and {table.place(found[0])} has {found[1]!r}"
                raise ConfigError(
                    f"column {name!r} is {type}{where}: only columns of numbers are kept; leave it "
                    "out of columns=, or correct it"
                )
            row = table.first_row(f"{table.column(name, type)} IS NULL")
            if row is not None:
                raise StoreError(f"{table.place(row)} has no value in column {name!r}: fill it in")

    def _count_and_check(self) -> tuple[int, int, int]:
        first = self._first
        low = "" if self._mapped else f" OR s < {first} OR t < {first}"
        wrong = f"s IS NULL OR t IS NULL{low}"
        span = "NULL, NULL" if self._mapped else "min(least(s, t)), max(greatest(s, t))"
        sql = f"SELECT count(*), {span}, count(*) FILTER ({wrong}) FROM ({self._edges})"
        count, least, last, bad = self.database.row(sql)
        if bad:
            low = f"below {first}, the first id" if first else "negative"
            self._refuse_edge(wrong, f"has an end that is missing or {low};")
        if self._mapped:
            (nodes,) = self.database.row("SELECT count(*) FROM ids")
            return int(count), min(int(nodes) - 1, 0), int(nodes) - 1
        if last is None:
            return int(count), -1, -1
        return int(count), int(least) - first, int(last) - first

    def _refuse_edge(self, wrong: str, how: str) -> None:
        sql = f"SELECT e, s, t FROM ({self._edges}) WHERE {wrong} ORDER BY e LIMIT 1"
        number, source, target = self.database.row(sql)
        where = self._table.place(number)
        raise StoreError(f"{where}, {source} to {target}, {how} correct it")


# ---- writing


class Sorted(Protocol):
    """Edges that DuckDB sorts."""

    def by_target(
        self, undirected: bool, tell: Callable[[int], None]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """See `EdgeList.by_target`."""


def write_graph(
    edges: Sorted,
    writer: StoreWriter,
    undirected: bool,
    progress: Progress | None = None,
    type: EdgeKey = None,
) -> None:
    """Sort the edges of a type and write indptr, indices and, unless `undirected`, edge_id.
    `progress` is called with percent while edges are sorted, with edges while they are written."""
    count = writer.types.edges[type]
    sources, targets = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    names = [array_name("graph", type, leaf) for leaf in GRAPH]
    indices = writer.array(names[1], index_dtype(sources), (count,))
    numbers = None
    if not undirected:
        numbers = writer.array(names[2], index_dtype(count), (count,))
    indptr, done = np.zeros(targets + 1, np.int64), 0
    kind = "edges" if type is None else " ".join(type)

    def tell(percent: int) -> None:
        if progress is not None:
            progress(f"sorting {kind}", percent, 100)

    for target, source, number in edges.by_target(undirected, tell):
        first, last = int(target[0]), int(target[-1])
        indptr[first + 1 : last + 2] += np.bincount(target - first, minlength=last - first + 1)
        indices.write(source)
        if numbers is not None:
            numbers.write(number)
        done += len(source)
        if progress is not None:
            progress(f"writing {kind}", done, count)
    np.cumsum(indptr, out=indptr)
    writer.write(names[0], indptr)


def write_columns(
    edges: EdgeList, writer: StoreWriter, names: Sequence[str], progress: Progress | None = None
) -> None:
    """Write kept columns of an edge list as attributes of edges, in the list's order."""
    for name in names:
        array = writer.array(f"edges/{name}", edges.dtype(name), (writer.num_edges,))
        for values in edges.column(name):
            array.write(values)
            if progress is not None:
                progress(f"edges/{name}", array.rows_written, writer.num_edges)

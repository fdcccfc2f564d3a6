"""Import of tables beside DuckDB's own sort of the same files, each in a memory cgroup, cold.

usage: python bench/tables.py FOLDER [--users 3000000] [--items 1000000] [--orders 20000000]
           [--limit 1GB] [--memory 500MB] [--rounds 1] [--json FILE]

Makes tables in FOLDER if they are not there: users with text keys, items with sparse keys, shops,
64 columns or lists of 64 float32 as features, and orders with times, 1.9 GB in Parquet by default.
`gnndrive.from_tables` makes a store of them with `--memory`; in turn with it DuckDB looks up the
keys of all edges, sorts them by target and writes them to Parquet, without features and attributes.
Needs root, without which there is no limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _limits
import _script
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gnndrive
from gnndrive.common.memory import format_size, parse_size

COLUMNS, SHOPS, ROWS = 64, 50_000, 500_000
NODES = {"user": "users.parquet:id", "item": "items.parquet:sku", "shop": "shops.parquet:shop"}
EDGES = {
    ("user", "buys", "item"): "orders.parquet:user_id,sku",
    ("shop", "sells", "item"): "sells.parquet:shop,sku",
}


def make(folder: Path, users: int, items: int, orders: int) -> None:
    """Write the tables that are not there."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    order = random.permutation(users)

    def lists(count: int, width: int) -> Any:
        values = random.random(count * width, dtype=np.float32)
        return pa.FixedSizeListArray.from_arrays(pa.array(values), width)

    def times(count: int) -> Any:
        return pa.array(random.integers(0, 10**9, count), pa.timestamp("s"))

    def user(numbers: Any) -> list[str]:
        return [f"user-{number:08}" for number in numbers]

    tables: dict[str, tuple[int, Callable[[int, int], dict[str, Any]]]] = {
        "users": (users, lambda first, count: {
            "id": user(order[first : first + count]),
            **{f"f{n}": random.random(count, dtype=np.float32) for n in range(COLUMNS)},
            "country": random.choice(["de", "fr", "in"], count), "signup": times(count),
        }),
        "items": (items, lambda first, count: {
            "sku": np.arange(first, first + count) * 7 + 3, "emb": lists(count, COLUMNS),
            "price": random.random(count),
        }),
        "shops": (SHOPS, lambda first, count: {
            "shop": [f"s{n}" for n in range(first, first + count)], "emb": lists(count, 16),
        }),
        "orders": (orders, lambda first, count: {
            "user_id": user(random.integers(0, users, count)),
            "sku": random.integers(0, items, count) * 7 + 3.0, "ts": times(count),
            "stars": random.integers(1, 6, count).astype(np.int8), "amount": random.random(count),
        }),
        "sells": (3 * items, lambda first, count: {
            "shop": [f"s{n}" for n in random.integers(0, SHOPS, count)],
            "sku": random.integers(0, items, count) * 7 + 3,
        }),
    }  # fmt: skip
    for name, (rows, columns) in tables.items():
        path = folder / f"{name}.parquet"
        if path.exists():
            continue
        writer = None
        for first in range(0, rows, ROWS):
            table = pa.table(columns(first, min(ROWS, rows - first)))
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def work(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: import the tables, or have DuckDB sort their edges."""
    folder, started = Path(options.folder), time.perf_counter()
    if options.worker == "import":
        shutil.rmtree(folder / "tables.gnn", ignore_errors=True)
        gnndrive.from_tables(
            folder / "tables.gnn", x="f*", time="ts", memory=options.memory,
            nodes={type: str(folder / table) for type, table in NODES.items()},
            edges={type: str(folder / table) for type, table in EDGES.items()},
        )  # fmt: skip
    else:
        sort(folder, parse_size(options.memory, "memory"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"s": time.perf_counter() - started, "resident_bytes": peak}


def sort(folder: Path, memory: int) -> None:
    """What DuckDB alone needs for the edges."""
    import duckdb

    db = duckdb.connect()
    db.execute(f"SET memory_limit = '{memory >> 20}MiB'")
    db.execute(f"SET temp_directory = '{folder / 'spill'}'")
    for type, table in NODES.items():
        name, _, key = table.partition(":")
        db.execute(
            f"CREATE TABLE {type} AS SELECT {key} AS id, row_number() OVER () - 1 AS node "
            f"FROM read_parquet('{folder / name}')"
        )
    for (source, relation, target), table in EDGES.items():
        name, _, keys = table.partition(":")
        s, t = keys.split(",")
        db.execute(
            f"COPY (SELECT b.node AS t, a.node AS s, e FROM (SELECT {s} AS s, {t} AS t, "
            f"row_number() OVER () - 1 AS e FROM read_parquet('{folder / name}')) JOIN {source} a "
            f"ON s = a.id JOIN {target} b ON t = b.id ORDER BY t, e) TO "
            f"'{folder / relation}.sorted' (FORMAT parquet, COMPRESSION uncompressed)"
        )


def main() -> None:
    made = _script.parser(__doc__)
    made.add_argument("folder")
    made.add_argument("--users", type=int, default=3_000_000)
    made.add_argument("--items", type=int, default=1_000_000)
    made.add_argument("--orders", type=int, default=20_000_000)
    made.add_argument("--limit", default="1GB")
    made.add_argument("--memory", default="500MB")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--json", metavar="FILE")
    made.add_argument("--worker", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.worker:
        print(json.dumps(work(options)))
        return
    make(Path(options.folder), options.users, options.items, options.orders)
    found: dict[str, list[dict[str, Any]]] = {"import": [], "sort": []}
    with _limits.limited(parse_size(options.limit, "limit")) as (group, words):
        for _ in range(options.rounds):
            for name, results in found.items():
                command = [__file__, options.folder, "--worker", name, "--memory", options.memory]
                results.append(_limits.spawn(name, command, group, [options.folder]))
    lines = [f"{words}, memory={options.memory}"]
    for name, results in found.items():
        seconds = _script.spread([each["s"] for each in results], 1)
        peak = format_size(max(each["resident_bytes"] for each in results))
        lines.append(f"{name:7}: {seconds} s, {peak} resident")
    _script.show("\n".join(lines), found, options.json)


if __name__ == "__main__":
    _script.run(main)

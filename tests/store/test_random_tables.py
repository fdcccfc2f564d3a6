"""Random small tables of every kind: the graph that pandas and numpy make of them, or an error that
names the file and the row of what is wrong with them."""

import gzip
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

import gnndrive
from gnndrive import ConfigError, StoreError
from tests.store.conftest import edges_of

Columns = dict[str, list[Any]]
WORDS = ["a", "b c", 'q"uote', "comma, here", "é", "semi;colon", "#x", "NA"]


def keys(rng: np.random.Generator, count: int) -> list[Any]:
    """Distinct keys of one kind: whole numbers, or texts, of which some look like numbers."""
    kind = rng.integers(4)
    numbers = rng.permutation(5 * count)[:count].tolist()
    if kind == 0:
        return numbers
    if kind == 1:
        return [number - 2 * count for number in numbers]
    if kind == 2:
        return [f"{rng.choice(['k', 'ü', '0'])}{number}" for number in numbers]
    return [f"{WORDS[number % 6]}{number}" for number in numbers]


def attribute(rng: np.random.Generator, count: int) -> list[Any]:
    """Values of one kind, of which some may be missing."""
    kind = rng.integers(5)
    values: list[Any]
    if kind == 0:
        values = rng.integers(-1000, 1000, count).tolist()
    elif kind == 1:
        values = rng.standard_normal(count).round(3).tolist()
    elif kind == 2:
        values = (rng.random(count) < 0.5).tolist()
    elif kind == 3:
        values = [WORDS[place] for place in rng.integers(0, len(WORDS) - 1, count)]
    else:
        values = [pd.Timestamp(int(each), unit="s") for each in rng.integers(0, 10**9, count)]
    missing = rng.random(count) < rng.choice([0, 0, 0.3])
    if missing.all():
        return values
    return [None if lost else value for value, lost in zip(values, missing, strict=True)]


def write(rng: np.random.Generator, path: Path, columns: Columns) -> Path:
    """Write a table in a format, with types, quotes, line ends and compression at random."""
    kind = rng.choice([".parquet", ".arrow", ".csv", ".csv", ".csv.gz"])
    path = path.with_name(path.name + kind)
    if not kind.startswith(".csv"):
        arrays = {name: pa.array(values) for name, values in columns.items()}
        for name, values in arrays.items():
            if pa.types.is_integer(values.type) and rng.random() < 0.5:
                types = [pa.int16(), pa.int32(), pa.float64(), pa.decimal128(38, 0)]
                arrays[name] = values.cast(types[rng.integers(len(types))])
            elif pa.types.is_string(values.type) and rng.random() < 0.3:
                arrays[name] = values.dictionary_encode()
            elif pa.types.is_timestamp(values.type) and rng.random() < 0.5:
                arrays[name] = values.cast(pa.timestamp("s" if rng.random() < 0.5 else "ms"))
        table = pa.table(arrays)
        if kind == ".parquet":
            pq.write_table(table, path, row_group_size=int(rng.integers(1, 20)))
        else:
            feather.write_feather(table, path, chunksize=int(rng.integers(1, 20)))
        return path
    frame = pd.DataFrame(
        {name: pd.Series(values, dtype=object) for name, values in columns.items()}
    )
    text = frame.to_csv(
        index=False, sep=str(rng.choice([",", ";", "\t"])), quoting=int(rng.choice([0, 1])),
        lineterminator=str(rng.choice(["\n", "\r\n"])),
    )  # fmt: skip
    if rng.random() < 0.3:
        text = f"# a comment\n{text}"
    content = text.encode("utf-8-sig" if rng.random() < 0.2 else "utf-8")
    path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    return path


def same_values(found: Any, given: list[Any], store: Any, name: str) -> None:
    """Check an attribute against pandas' reading of its values."""
    values = pd.Series(given)
    if isinstance(next((each for each in given if each is not None), None), str):
        coded = pd.Categorical(values)
        assert store[f"{name}_categories"] == coded.categories.tolist()
        np.testing.assert_array_equal(found, coded.codes)
    elif pd.api.types.is_datetime64_any_dtype(values):
        np.testing.assert_array_equal(found, values.astype("datetime64[ns]").astype("int64"))
    else:
        np.testing.assert_array_equal(np.asarray(found, np.float64), values.astype("float64"))


FAULTS = [
    "key missing",
    "key twice",
    "end missing",
    "end unknown",
    "feature missing",
    "ragged",
    "code",
]


def check(rng: np.random.Generator, folder: Path) -> str:
    """Import tables; return the fault that they had, "" if none."""
    folder.mkdir()
    counts = rng.integers(2, 30, 2)
    nodes = [keys(rng, count) for count in counts]
    count = int(rng.integers(1, 60))
    ends = [rng.integers(0, size, count) for size in counts]
    of_nodes: list[Columns] = [
        {"key": list(each), "f0": rng.random(size).round(4).tolist(),
         "f1": rng.integers(0, 9, size).tolist(), "a": attribute(rng, size)}
        for each, size in zip(nodes, counts, strict=True)
    ]  # fmt: skip
    of_edges: Columns = {
        name: [each[place] for place in end]
        for name, each, end in zip("st", nodes, ends, strict=True)
    }
    of_edges["a"] = attribute(rng, count)
    fault = str(rng.choice(FAULTS)) if rng.random() < 0.4 else ""
    wrong, row = "e" if fault.startswith("end") else "n0", int(rng.integers(1, counts[0]))
    if fault == "key missing":
        of_nodes[0]["key"][row] = None
    elif fault == "key twice":
        of_nodes[0]["key"][row] = of_nodes[0]["key"][0]
    elif fault.startswith("end"):
        row = int(rng.integers(count))
        of_edges["s"][row] = None if fault == "end missing" else type(nodes[0][0])(31_000)
    elif fault == "feature missing":
        of_nodes[0]["f0"][row] = None
    tables = {"n0": of_nodes[0], "n1": of_nodes[1], "e": of_edges}
    paths = [write(rng, folder / name, table) for name, table in tables.items()]
    if fault in ("ragged", "code"):
        if paths[0].suffix != ".csv":
            fault = ""
        else:
            lines = paths[0].read_bytes().splitlines(keepends=True)
            at = len(lines) - 1 - int(rng.integers(0, counts[0] - 1))
            lines[at] = (
                b"\xff" + lines[at] if fault == "code" else b"1,2;3\t4,5;6\t7,8;9\t" + lines[at]
            )
            paths[0].write_bytes(b"".join(lines))
    edge, store, error = ("l", "r", "l2"), None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of texts that are no numbers
            store = gnndrive.from_tables(
                folder / "g.gnn",
                nodes={"l": f"{paths[0]}:key", "l2": f"{paths[1]}:key"},
                edges={edge: f"{paths[2]}:s,t"}, x="f?",
            )  # fmt: skip
    except (StoreError, ConfigError) as raised:
        error = str(raised)
    assert bool(fault) == bool(error), (fault, error)
    if error is not None:
        assert re.search(rf"{wrong}\.[a-z.]+\b.*\b(row|[Ll]ine:?) \d+", error), error
        return fault
    assert store is not None
    assert edges_of(store[edge]).tolist() == [end.tolist() for end in ends]
    for kind, table in zip(("l", "l2"), of_nodes, strict=True):
        assert list(map(str, store.ids(kind).tolist())) == list(map(str, table["key"]))
        features = np.column_stack([table["f0"], table["f1"]]).astype(np.float32)
        np.testing.assert_array_equal(store[kind].x, features)
        same_values(store[kind].a, table["a"], store[kind], "a")
    same_values(store[edge].a, of_edges["a"], store[edge], "a")
    return ""


def test_random_tables(tmp_path, seeds):
    found = [check(np.random.default_rng(seed), tmp_path / str(seed)) for seed in seeds(30)]
    assert len(set(found)) > 2

"""Small stores, their partitions, and their partitioned folders written with plain numpy.

`make_folder` states the format a second time and in the simplest way: the writer's files are
compared with its files, byte for byte, and other tests use it to have partitions of any shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import gnndrive
from gnndrive.common.io.direct_file import hash_file
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.layout.arrays import LayoutArray
from gnndrive.store.layout.table_parts import sum_of_rows
from gnndrive.store.partitioned.assign import GivenParts, assign
from gnndrive.store.partitioned.format import (
    ARRAYS,
    HOT_SHARE,
    PARTITIONS,
    PartitionInfo,
    PartitionSettings,
    array_infos,
)
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store

ANY = np.ndarray[Any, Any]
MEMORY, WRITING_MEMORY = 1 << 30, 128 << 20


def make_store(
    path: Path, nodes: int = 200, edges: int = 1500, x: Any = None, seed: int = 0
) -> Store:
    """A random graph with duplicate edges, self-loops, isolated nodes and a few hubs."""
    draw = np.random.default_rng(seed)
    sources = (nodes * draw.random(edges) ** 3).astype(np.int64)  # low ids have many out-edges
    targets = np.sort(draw.integers(0, max(nodes - nodes // 10, 1), edges))
    order = draw.permutation(nodes)
    targets = np.sort(order[targets])
    indptr = np.searchsorted(targets, np.arange(nodes + 1))
    rows = draw.standard_normal((nodes, 6), np.float32) if x is None else x
    nodes_of = {"x": rows, "y": draw.integers(0, 4, nodes)}
    splits = {"train": np.sort(draw.permutation(nodes)[: nodes // 2])}
    graph = {"indptr": indptr, "indices": order[sources]}
    return gnndrive.write_store(path, **graph, nodes=nodes_of, splits=splits)


def renumber(store: Store, part: ANY, parts: int, static: float) -> Any:
    """The arrays that a folder of this assignment holds, and its shares of in-edges, by name."""
    part, nodes = np.asarray(part), store.num_nodes
    order = np.argsort(part, kind="stable")
    new = np.empty(nodes, np.int64)
    new[order] = np.arange(nodes)
    bounds = np.searchsorted(part[order], np.arange(parts + 1))
    indptr, indices = np.asarray(store.indptr), np.asarray(store.indices)
    degrees = np.bincount(indices, minlength=nodes)
    hot = np.lexsort((np.arange(nodes), -degrees))[: round(static * nodes)]
    place = len(hot) + new
    place[hot] = np.arange(len(hot))

    def lists(ids: ANY) -> tuple[ANY, ANY]:
        each = [place[indices[indptr[v] : indptr[v + 1]]] for v in ids]
        ends = np.cumsum([0, *map(len, each)])
        return ends, np.concatenate([np.empty(0, np.int64), *each])

    ends, codes = lists(order)
    static_ends, static_codes = lists(hot)
    sources = indices.astype(np.int64)
    targets = np.repeat(np.arange(nodes), np.diff(indptr))
    same = part[sources] == part[targets]
    is_hot = np.zeros(nodes, np.bool_)
    is_hot[hot[: round(HOT_SHARE * nodes)]] = True
    count = max(len(sources), 1)
    rows = np.concatenate([order, hot])
    return SimpleNamespace(
        order=rows, bounds=bounds, edge_bounds=ends[bounds], place=place, home=new[hot],
        static_bounds=static_ends, static_indices=static_codes, indices=codes,
        x=np.asarray(store.array("x"))[rows], share_inside=float(same.sum() / count),
        share_hot=float((~same & is_hot[sources]).sum() / count),
    )  # fmt: skip


def make_folder(
    store: Store, part: ANY, parts: int | None = None, static: float = 0.04, name: str = "default"
) -> Partitioned:
    """Write the partitioned folder of an assignment [N], in memory and without the writer; `parts`
    is None for the largest of `part` + 1."""
    count = int(np.max(part)) + 1 if parts is None else parts
    made = renumber(store, part, count, static)
    root = store.path / "partitioned" / name
    root.mkdir(parents=True)
    stored = store.info.arrays["nodes/x"]
    infos = array_infos(
        store.num_nodes, store.num_edges, count, len(made.home), len(made.static_indices), stored
    )
    arrays = {each: write_array(root, infos[each], getattr(made, each)) for each in ARRAYS}
    settings = PartitionSettings("random", count, static)
    counts = store.num_nodes, store.num_edges, len(made.home)
    shares = made.share_inside, made.share_hot
    info = PartitionInfo(store.identity, settings, *counts, *shares, arrays)
    (root / "partition.json").write_bytes(PARTITIONS.dump(info))
    return open_partitioned(root, store)


def write_array(root: Path, info: ArrayInfo, values: ANY) -> LayoutArray:
    """Write an array's file, and return what partition.json says of it."""
    rows = np.ascontiguousarray(values.astype(info.storage))
    (root / info.file).write_bytes(npy_header(info) + rows.tobytes())
    checksum = hash_file(root / info.file, info.nbytes)
    if info.name == "x":
        total = sum_of_rows(rows.reshape(-1).view(np.uint8), info.row_bytes, 0)
        checksum = f"sum64:{total:016x}"
    return LayoutArray(info.name, info.dtype, info.shape, checksum)


# ---- with the writer


def write_folder(store: Store, part: Any, parts: int, static: float = 0.04) -> Partitioned:
    """Write the folder of an assignment with `gnndrive.partition`."""
    path = store.path.parent / "part.npy"
    np.save(path, np.asarray(part))
    gnndrive.partition(store, parts, path, WRITING_MEMORY, name="written", static=static)
    return open_partitioned(store.path / "partitioned" / "written", store)


def content(folder: Path) -> dict[str, bytes]:
    """The arrays of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.npy")}


# ---- assignments


@dataclass(frozen=True)
class Chosen:
    """The settings of an assignment."""

    method: str
    parts: int
    train_first: bool = False
    seed: int = 0


def edge_store(
    path: Path, nodes: int, edges: Sequence[tuple[int, int]], train: Sequence[int] | None = None
) -> Store:
    """A store with edges (source, target); those of a target are in their order."""
    ends = np.array(edges, np.int64).reshape(-1, 2)
    order = np.argsort(ends[:, 1], kind="stable")
    counts = np.bincount(ends[:, 1], minlength=nodes)
    return gnndrive.write_store(
        path,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        indices=ends[order, 0],
        nodes={"x": np.zeros((nodes, 4), np.float32)},
        splits={} if train is None else {"train": np.array(train, np.int64)},
    )


def draw_edges(nodes: int, edges: int, seed: int = 0) -> list[tuple[int, int]]:
    """Random edges with hubs, duplicates, self loops and nodes without any."""
    ends = (nodes * np.random.default_rng(seed).random((edges, 2)) ** 2).astype(int)
    return [(source, target) for source, target in ends.tolist()]


def neighbours(nodes: int, edges: Sequence[tuple[int, int]]) -> list[set[int]]:
    """The symmetric lists: of each node its distinct neighbours in both directions."""
    found: list[set[int]] = [set() for _ in range(nodes)]
    for source, target in edges:
        if source != target:
            found[source].add(target)
            found[target].add(source)
    return found


def run(
    store: Store, folder: Path, chosen: Any, memory: int = MEMORY, given: GivenParts | None = None
) -> list[int]:
    """Assign in a new folder, which then holds the result alone."""
    folder.mkdir()
    if given is not None:
        given.write(folder)
    part = assign(store, chosen, folder, memory, lambda *_: None)
    assert [path.name for path in folder.iterdir()] == ["part.npy"]
    assert part.dtype == np.int32
    assert np.array_equal(np.load(folder / "part.npy"), part)
    return part.tolist()

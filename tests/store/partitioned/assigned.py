"""Small stores to partition, and what their partitions should be, found the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.store import Store, write_store
from gnndrive.store.partitioned.assign import assign
from gnndrive.store.partitioned.given import GivenParts

MEMORY = 1 << 30


@dataclass(frozen=True)
class Chosen:
    """The settings of an assignment."""

    method: str
    parts: int
    train_first: bool = False
    seed: int = 0


def ignore(what: str, done: int, total: int) -> None:
    """Progress that is not told."""
    assert 0 <= done <= total


def make_store(
    path: Path, nodes: int, edges: Sequence[tuple[int, int]], train: Sequence[int] | None = None
) -> Store:
    """A store with edges (source, target); those of a target are in their order."""
    ends = np.array(edges, np.int64).reshape(-1, 2)
    order = np.argsort(ends[:, 1], kind="stable")
    counts = np.bincount(ends[:, 1], minlength=nodes)
    return write_store(
        path,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        indices=ends[order, 0],
        nodes={"x": np.zeros((nodes, 4), np.float32)},
        splits={} if train is None else {"train": np.array(train, np.int64)},
        made_by="a test",
    )


def draw_edges(nodes: int, edges: int, seed: int = 0) -> list[tuple[int, int]]:
    """Random edges with hubs, duplicates, self loops and nodes without any."""
    rng = np.random.default_rng(seed)
    ends = (nodes * rng.random((edges, 2)) ** 2).astype(int)
    return [(int(source), int(target)) for source, target in ends]


def neighbours(nodes: int, edges: Sequence[tuple[int, int]]) -> list[set[int]]:
    """The symmetric lists: of each node its distinct neighbours in both directions."""
    found: list[set[int]] = [set() for _ in range(nodes)]
    for source, target in edges:
        if source != target:
            found[source].add(target)
            found[target].add(source)
    return found


def brute_ldg(lists: Sequence[set[int]], parts: int) -> tuple[list[int], int]:
    """The partition of each node as the design says, and the number of passes."""
    nodes = len(lists)
    cap = max(105 * nodes // (100 * parts), -(-nodes // parts))
    part, size = [-1] * nodes, [0] * parts
    number = moved = 0
    while number < 1 or (number < 10 and 100 * moved >= nodes):
        number, moved = number + 1, 0
        for node, near in enumerate(lists):
            before = part[node]
            if before >= 0:
                size[before] -= 1
            placed = [part[other] for other in near if part[other] >= 0]
            room = [p for p in range(parts) if size[p] < cap]
            best = min(room, key=lambda p: (-placed.count(p) * (cap - size[p]), size[p], p))
            part[node] = best
            size[best] += 1
            moved += best != before
    return part, number


def run(
    store: Store, folder: Path, chosen: Any, memory: int = MEMORY, given: GivenParts | None = None
) -> list[int]:
    """Assign in a new folder, which then holds the result alone."""
    folder.mkdir()
    if given is not None:
        given.write(folder)
    part = assign(store, chosen, folder, memory, ignore)
    assert [path.name for path in folder.iterdir()] == ["part.npy"]
    assert part.dtype == np.int32
    assert np.array_equal(np.load(folder / "part.npy"), part)
    return part.tolist()

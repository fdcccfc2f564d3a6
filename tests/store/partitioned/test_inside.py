"""The share of in-edges that sampling inside of partitions keeps, against counting them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.partitioned import edge_stream, inside
from gnndrive.store.partitioned.inside import STATIC_SHARES, share_inside
from tests.store.partitioned.assigned import MEMORY, draw_edges, ignore, make_store

NODES, EDGES, PARTS = 1000, 4000, 6


@pytest.mark.parametrize("chunk", [1 << 20, 64])
def test_shares_are_those_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
):
    monkeypatch.setattr(edge_stream, "PART_BYTES", 3 * 4096)
    monkeypatch.setattr(inside, "_CHUNK", chunk)
    edges = draw_edges(NODES, EDGES, 3)
    store = make_store(tmp_path / "g.gnn", NODES, edges)
    part = np.random.default_rng(5).integers(0, PARTS, NODES).astype(np.int32)
    found = share_inside(store, part, PARTS, MEMORY, ignore)
    ends = np.array(edges)
    same = part[ends[:, 0]] == part[ends[:, 1]]
    assert found.inside == same.mean()
    by_out_edges = np.argsort(-np.bincount(ends[:, 0], minlength=NODES), kind="stable")
    for share in STATIC_SHARES:
        static = np.isin(ends[:, 0], by_out_edges[: int(NODES * share)])
        assert found.static[share] == (static & ~same).mean()
        for window in (1, 2, PARTS):
            kept = []
            for parts in combinations(range(PARTS), window):
                there = np.isin(part[ends], parts)
                kept += [(there[:, 1] & (there[:, 0] | static)).sum()]
            each = np.mean(kept) / (EDGES * window / PARTS)  # of the edges into a window
            assert found.kept(window, share) == pytest.approx(each)


def test_without_edges_nothing_is_inside(tmp_path: Path):
    store = make_store(tmp_path / "g.gnn", 5, [])
    found = share_inside(store, np.zeros(5, np.int32), 1, MEMORY, ignore)
    assert (found.inside, set(found.static.values()), found.kept(1)) == (0, {0.0}, 0)


def test_what_is_refused(tmp_path: Path):
    store = make_store(tmp_path / "g.gnn", 5, [(0, 1)])
    with pytest.raises(ConfigError, match=r"is int64 of shape \[5\]: give int32 \[5\], the"):
        share_inside(store, np.zeros(5, np.int64), 1, MEMORY, ignore)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is too little to count the edges inside"):
        share_inside(store, np.zeros(5, np.int32), 1, 1 << 20, ignore)

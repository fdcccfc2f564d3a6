"""The timeline of an epoch that changes its plan at a batch that is larger than planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loader.test_larger_batches import SEEDS, Make, least, make, store
from tests.pipeline.traces import check_batches, read

__all__ = ["make", "store"]  # fixtures


@pytest.mark.parametrize("strategy", ["gnndrive", "ginex"])
def test_indices_go_on_in_the_next_part(make: Make, tmp_path: Path, strategy: str) -> None:
    path, room = tmp_path / "epoch.json.gz", 2_500_000
    loader = make(memory=least(make) + room, trace=path, strategy=strategy)
    before = loader.plan()
    count = len(list(loader))
    assert loader.plan().total_bytes != before.total_bytes, "the plan has changed"
    stats = loader.stats()
    loader.close()
    assert count == len(SEEDS) // 10
    assert sorted(check_batches(read(path))) == [(0, batch, "") for batch in range(count)]
    assert stats["batches"] == count

"""Loaders over damaged stores raise gnndrive's own errors, or give batches."""

import warnings
from pathlib import Path

from tests.loader.damaged_stores import run


def test_random_damage(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(tmp_path, range(90))
    assert found[None] > 20
    assert found["StoreError"] > 30

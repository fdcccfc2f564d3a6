"""A small power-law store, and options of few batches of it."""

from pathlib import Path

import _powerlaw
import pytest
import scale

NODES = 3000
SMALL = ["--batches", "3", "--batch-size", "20", "--fanout", "3,2", "--buffer", "1MB"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = scale.store_path(tmp_path_factory.mktemp("bench"), NODES)
    _powerlaw.write_powerlaw(path, NODES)
    return path

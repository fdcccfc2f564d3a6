"""Ranks on GPUs: two that have one each, or the only one together."""

import pytest

from gnndrive.store.row_classes import row_classes
from tests.host.processes.conftest import run, starter, store, whole  # noqa: F401
from tests.host.processes.programs import SMALL, dealt

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("processes")]


@pytest.fixture
def fake():
    """See `programs.on_gpus`."""
    return []


def test_ranks_exchange_rows(run, store, whole, fake):  # noqa: F811
    asked = [
        {"buffer": None, "device_memory": "100MB"},
        {"memory": "600MB", "buffer": "3KB"},  # rows leave the GPU and come back
        {"device_memory": 0},
        {"strategy": "lsm-gnn:superbatch=8", "exchange": "auto"},
    ]
    for score in ("degree", "pagerank"):
        row_classes(store, None, score)  # ranks that make them at once warn of it
    given = {"store": str(store.path), "exchange": True, "host_service": "auto", **SMALL}
    ended = run("on_gpus", 2, fake=fake, asked=[given | each for each in asked])
    assert ended.results == [[dealt(whole, 2)[rank]] * len(asked) for rank in range(2)]

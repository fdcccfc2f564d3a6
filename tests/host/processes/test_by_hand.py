"""Ranks whose store is that of a service by hand: they share a buffer there, and start none."""

from __future__ import annotations

from contextlib import closing

import pytest

from gnndrive.host.inquiry import ask
from tests.host.processes.test_batches import alone, dealt
from tests.host.served.conftest import MEMORY, Serving

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks


def test_ranks_of_a_service(starter, store, tmp_path):
    with closing(Serving(store, MEMORY)) as serving:
        ended = starter.run("by_hand.ranks_of_a_service", 2, tmp_path, name=serving.name)
        left = ask(serving.address)
    assert ended.statuses == [0, 0], ended.outputs
    assert ended.outputs == ["", ""]
    assert ended.orphans == []
    (whole,) = alone(store)
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    first, second = (found["clients"] for found in ended.results)
    group = first[0][2]
    assert sorted(first) == sorted(second) == [[0, 2, group], [1, 2, group]]
    assert [(found["engine"], found["started"]) for found in ended.results] == 2 * [
        ("host service", [])
    ]
    assert (left.total, left.used) == (0, sum(left.graphs.values()))

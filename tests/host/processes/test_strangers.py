"""Clients that do not keep to the protocol: the service lives, and honest ranks notice nothing."""

from __future__ import annotations

import os
import re

import pytest

from tests.host.processes import deaths
from tests.host.processes.test_batches import alone, dealt

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks


def test_honest_ranks_beside_one_that_is_not(starter, store, tmp_path):
    given = {"store": str(store.path), "sessions": 60}
    ended = starter.run("strangers.among_honest_ranks", 3, tmp_path, **given)
    assert ended.statuses == [0, 0, 0], ended.outputs
    whole = alone(store, 3, **deaths.SMALL)
    for rank in range(2):
        assert ended.results[rank]["batches"] == [dealt(epoch, 2)[rank] for epoch in whole]
    counted = ended.results[2]
    assert counted["sent"] > 300
    assert counted["welcome"] > 10
    assert counted["let in"] == (os.geteuid() != 0), "only root can be another user"
    assert counted["refused"] == [True] * (len(counted["refused"]) - 1) + [False], "but the arena"
    reports = ended.outputs[0].splitlines()
    assert len(reports) > 20
    expected = r"process \d+ was (disconnected|refused): |user \d+ was refused: "
    assert all(re.match(expected, text) for text in reports)
    assert ended.outputs[1:] == ["", ""]

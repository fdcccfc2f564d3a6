"""Ranks without processes: a fixture that says which rank a loader is when it is used."""

from collections.abc import Callable
from typing import Any

import pytest

from gnndrive.loader.ranks import Ranks

AsRank = Callable[..., Ranks]


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> AsRank:
    """Makes loaders that begin an epoch, are counted or planned afterwards, rank `rank` of `world`
    that the loader deals to. Nothing is exchanged without `group=`."""

    def one(rank: int, world: int, dealt_by: Any = "loader", group: Any = None) -> Ranks:
        ranks = Ranks(rank, world, dealt_by, group)
        monkeypatch.setattr("gnndrive.loader.assembly.resolve_ranks", lambda *_: ranks)
        return ranks

    return one

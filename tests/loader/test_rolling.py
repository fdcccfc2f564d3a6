"""strategy="rolling": the batches of "gnndrive", whatever happens to their copies."""

import os
import re
import resource
import signal
from itertools import islice
from typing import Any

import pytest

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.disk.tiers.rolled import Rolled
from gnndrive.strategies.rolling import _LoaderRolling
from tests.loader.batches import assert_all_same, assert_same

COMMON: dict[str, Any] = {"seed": 5, "shuffle": True, "buffer": "30KB"}
ROLLING: dict[str, Any] = COMMON | {"strategy": "rolling", "superbatch": 6}


@pytest.fixture(autouse=True)
def always_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a table as small as this one does not pay."""
    monkeypatch.setattr(_LoaderRolling, "pays", lambda *given: True)


def found_rows(loader: NeighborLoader) -> int:
    (table,) = loader._runtime._buffers._kept.tables.values()
    assert isinstance(table.tier, Rolled)
    return table.tier.found_rows


def test_the_batches_are_those_of_gnndrive(make):
    """Of whole epochs, of one that is left and begun again, and of two at once."""
    rolling, plain = make(**ROLLING), make(**COMMON)
    assert_all_same(rolling, plain)
    whole = found_rows(rolling)
    for count in (11, 1, 25):
        assert_all_same(islice(rolling, count), islice(plain, count))
    assert found_rows(rolling) > 1.5 * whole > 0
    for one, other, *expected in zip(rolling, rolling, plain, plain, strict=True):
        assert_same(one, expected[0])
        assert_same(other, expected[1])


@pytest.mark.parametrize("taken", [3, 11])
def test_a_state_resumes_among_batches_with_copies(make, taken):
    loader, expected = make(**ROLLING), list(make(**COMMON))
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    resumed = make(**ROLLING)
    resumed.load_state_dict(loader.state_dict())
    assert_all_same(resumed, expected[taken:])
    assert found_rows(resumed) > 0


def test_a_disk_without_room_for_copies_is_a_warning(make, tmp_path):
    loader, limits = make(**ROLLING, folder=tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, limits[1]))
    try:
        with pytest.warns(RuntimeWarning, match=rf"too full for {tmp_path}.* folder=") as warned:
            assert_all_same(loader, make(**COMMON))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(warned) == 1
    assert found_rows(loader) == 0


def test_a_killed_process_leaves_no_file(make, tmp_path):
    loader = make(**ROLLING, folder=tmp_path)
    if not (child := os.fork()):
        try:
            for number, _ in enumerate(loader):
                if number == 15 and found_rows(loader):
                    os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert os.listdir(tmp_path) == []


def test_the_least_memory_that_is_named_works(make):
    """Although with more of it, blocks and parts of the table are larger."""
    given = ROLLING | {"buffer": None}
    with pytest.raises(ConfigError, match="too little") as refused:
        make(**given, memory="1KB").plan()
    (least,) = re.findall(r'at least memory="(\S+)"', str(refused.value))
    assert make(**given, memory=least).plan().host_bytes <= parse_size(least, "memory")


@pytest.mark.parametrize("policy", ["lru", "belady"])
def test_a_policy_that_does_not_keep_rows_for_good_is_refused(make, policy):
    with pytest.raises(ConfigError, match="leave policy= out"):
        make(**ROLLING, policy=policy).plan()

"""What is left of the host's memory for a loader without a budget."""

import mmap
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices import host
from gnndrive.common import host_memory, memory
from gnndrive.common.ffi import lib
from gnndrive.common.host_memory import claim, gather_threads, left_memory, local_ranks, release
from gnndrive.common.records import INFLIGHT_BYTES
from tests.loader.conftest import data, make, store

__all__ = ["data", "make", "store"]


@pytest.fixture(autouse=True)
def _one_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 10**9)
    monkeypatch.setattr(host_memory, "_own_bytes", lambda: 5_000_000)
    monkeypatch.setattr(host_memory, "_claims", {})
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def test_what_live_loaders_have_not_used_yet_is_not_left(monkeypatch):
    assert left_memory(1) == 10**9
    first, second = claim(100_000_000), claim(200_000_000)
    assert left_memory(1) == 700_000_000
    monkeypatch.setattr(host_memory, "_own_bytes", lambda: 255_000_000)
    assert left_memory(1) == 950_000_000, "they have grown by 250 MB"
    release(first)
    release(first)
    assert left_memory(1) == 10**9
    release(second)


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_ranks_divide_what_reads_and_copies(monkeypatch, make, ranks):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert make()._assembly().engine_settings.inflight_bytes == INFLIGHT_BYTES // ranks
    assert gather_threads() == max(4 // ranks, 1)
    asked = Mock(wraps=lib.gd_gather)
    monkeypatch.setattr(host, "lib", SimpleNamespace(gd_gather=asked))
    memory = host.Host().allocate(2, 8)
    memory.gather(np.zeros(3, np.int32), torch.int64, ())
    memory.close()
    assert asked.call_args.args[-1] == gather_threads()


def test_garbage_may_be_collected_while_memory_is_measured(monkeypatch):
    """A finalizer then gives a claim back, in a thread that this one waits for."""

    def own_bytes() -> int:
        assert not host_memory._lock.locked()
        return 0

    monkeypatch.setattr(host_memory, "_own_bytes", own_bytes)
    number = claim(1)
    assert left_memory(1) >= 0
    with host_memory._lock:
        release(number)


def test_each_rank_of_the_host_has_an_equal_part(monkeypatch):
    for said, ranks in (("4", 4), ("", 1), ("0", 1), ("x", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        assert local_ranks() == ranks
        assert gather_threads() == 4 // ranks
        assert left_memory(1) == 10**9 // ranks
        assert left_memory(ranks) == left_memory(max(ranks, 3)) == 10**9
        number = claim(100_000_000)  # every rank is taken to claim as much
        assert left_memory(1) == 10**9 // ranks - 100_000_000
        assert left_memory(ranks) == 10**9 - ranks * 100_000_000
        release(number)


def test_shared_memory_counts_as_a_part_for_each_rank(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    alone = host_memory._own_bytes()
    with mmap.mmap(-1, 64 << 20) as shared:
        shared.write(bytes(64 << 20))
        assert host_memory._own_bytes() > alone + (48 << 20)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        assert host_memory._own_bytes() < alone + (32 << 20)


def test_a_loader_claims_its_plan_until_it_is_closed(make):
    loader = make()
    planned = loader.plan().total_bytes
    assert left_memory(1) == 10**9, "it is not started"
    next(iter(loader))
    assert left_memory(1) == 10**9 - planned
    loader.close()
    assert left_memory(1) == 10**9


def test_a_group_has_left_what_it_does_not_use_without_the_page_cache(tmp_path):
    for name, text in (
        ("limit", "1000"), ("usage", "700"),
        ("memory.stat", "cache 9\ntotal_active_file 100\ntotal_inactive_file 50\nactive_file 1\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text + "\n")
    assert memory._left_in_group(str(tmp_path), "limit", "usage", "total_") == 450
    assert memory._left_in_group(str(tmp_path), "limit", "usage", "") == 301
    (tmp_path / "limit").write_text("max\n")
    with pytest.raises(ValueError, match="max"):
        memory._left_in_group(str(tmp_path), "limit", "usage", "")

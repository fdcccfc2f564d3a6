"""What benchmarks limit and drop, on fake groups, and what they say of it."""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import _limits
import epoch
import pytest

from gnndrive.cli.measure import page_cache
from gnndrive.cli.measure.control_groups import V2
from gnndrive.cli.measure.memory_limit import Cgroup
from tests.cli.measure.fake_groups import FakeKernel, tables

LIMIT = 2_000_000_000


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    (tmp_path / "groups").mkdir()
    return FakeKernel(tmp_path / "groups", V2, is_root=True)


@pytest.fixture
def group(fake: FakeKernel, tmp_path: Path) -> Iterator[Cgroup]:
    made = Cgroup(LIMIT, tables(tmp_path / "proc", fake, "/"), fake)
    yield made
    made.close()


def test_each_run_has_its_own_group_and_peak(fake, group):
    fake.made.clear()
    command = [sys.executable, "-S", "-c", "print('ran')"]
    for _ in range(2):
        ended, peak = _limits.run_limited(command, group)
        assert (ended.returncode, ended.stdout, peak) == (0, "ran\n", 4096)
    assert len(set(fake.made)) == 2
    ended, peak = _limits.run_limited(command, None)
    assert (ended.stdout, peak) == ("ran\n", None)
    with pytest.raises(subprocess.TimeoutExpired):
        _limits.run_limited(["cat", "/dev/zero"], group, timeout_s=1e-3)
    assert not [path for path in fake.top.iterdir() if path.is_dir()]


@pytest.mark.parametrize("allowed", [True, False])
def test_what_is_dropped_is_said(tmp_path, group, monkeypatch, allowed):
    """In a container root may make groups, but /proc/sys is often read-only."""
    (tmp_path / "x.npy").write_bytes(b"x")
    switch, dropped = tmp_path / "drop_caches", []
    switch.write_text("")
    monkeypatch.setattr(page_cache, "DROP_CACHES", switch if allowed else tmp_path / "none")
    monkeypatch.setattr(page_cache.os, "sync", lambda: None)
    monkeypatch.setattr(_limits, "drop_file", dropped.append)
    monkeypatch.setattr(_limits, "memory_limit", lambda _: contextlib.nullcontext((group, "some")))
    with _limits.limited(LIMIT) as (limited, words):
        assert words == f"some, {'all caches' if allowed else _limits.STORE} dropped"
        _limits.drop_caches(tmp_path, limited is not None)
    assert switch.read_text() == ("3" if allowed else "")
    assert dropped == ([] if allowed else [tmp_path / "x.npy"])
    with _limits.limited(LIMIT, False) as (_, words):  # libraries are kept
        assert words == f"some, {_limits.STORE} dropped"


@pytest.mark.parametrize(("peak", "reported", "every"), [(4096, 4096, True), (None, 77, False)])
def test_a_worker_has_a_limit_and_dropped_files(
    tmp_path, group, monkeypatch, peak, reported, every
):
    """Without a known peak that of the process is reported: samples of memory would miss it."""

    def run(command, given, timeout_s):
        assert given is group
        return subprocess.CompletedProcess(command, 0, json.dumps({"peak_bytes": 77})), peak

    dropped = []
    monkeypatch.setattr(epoch, "run_limited", run)
    monkeypatch.setattr(epoch, "drop_caches", lambda folder, every: dropped.append(every))
    options = argparse.Namespace(store=str(tmp_path), given=[])
    found = epoch.spawn("gnndrive", options, group, everything=every)
    assert (found, dropped) == ({"peak_bytes": reported}, [every])


@pytest.mark.parametrize(
    ("status", "said"), [(-9, "so much"), (0, "accepted, but not enforced"), (None, "20 s")]
)
def test_a_limit_that_is_not_enforced_counts_as_none(group, monkeypatch, status, said):
    """gVisor accepts limits of groups and does not enforce them."""

    def run(command, given, seconds):
        assert given is group
        if status is None:
            raise subprocess.TimeoutExpired(command, seconds)
        return subprocess.CompletedProcess(command, status), None

    monkeypatch.setattr(_limits, "Cgroup", lambda _: group)
    monkeypatch.setattr(_limits, "run_limited", run)
    words = contextlib.nullcontext((group, "so much"))
    monkeypatch.setattr(_limits, "memory_limit", lambda _: words)
    with _limits.tried_limit(LIMIT) as (limit, text):
        assert (limit is group) is (status == -9)
        assert said in text

"""Memory limits on fake groups of both versions: where runs get theirs, and what is said."""

import errno
import os
import subprocess

import pytest

from gnndrive.cli.measure.memory_limit import (
    CONTROLLERS,
    FOR_CHILDREN,
    PROCESSES,
    V1,
    V2,
    CannotLimit,
    Cgroup,
    Kernel,
    memory_groups,
    memory_limit,
)
from tests.cli.measure.fake_groups import GONE, FakeKernel, tables
from tests.store.kills import tree

LIMIT = 3_000_000_000


@pytest.fixture
def top(tmp_path):
    """The folder of the uppermost group; its name has a space, which mountinfo escapes."""
    folder = tmp_path / "c groups"
    folder.mkdir()
    return folder


@pytest.fixture
def proc(tmp_path):
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        (V1, {"memory.limit_in_bytes": LIMIT, "memory.memsw.limit_in_bytes": LIMIT}),
        (V2, {"memory.max": LIMIT, "memory.swap.max": 0}),
    ],
)
def test_each_run_has_a_fresh_group_without_swap(top, proc, version, limits):
    fake = FakeKernel(top, version)
    fake.add("slice", "own", pids=(os.getpid(),))
    before = tree(top)
    group = Cgroup(LIMIT, tables(proc, fake, "/slice/own"), fake)
    fake.made.clear()
    for peak in (5_000, 7_000):
        with group.run() as run:
            assert {name: int((run.group / name).read_text()) for name in limits} == limits
            (run.group / version.peak).write_text(str(peak))
            assert run.peak() == peak
            command = run.command(["/bin/sh", "-c", 'echo "$@" $$', "sh", "a b", "c"])
            *given, pid = subprocess.check_output(command, text=True).split()
            assert given == ["a", "b", "c"]
            assert (run.group / PROCESSES).read_text() == f"{pid}\n"
    assert len(set(fake.made)) == 2
    group.close()
    assert tree(top) == before


def test_a_command_does_not_run_outside_its_group(top, proc):
    fake = FakeKernel(top, V1)
    group = Cgroup(LIMIT, tables(proc, fake, "/"), fake)
    with group.run() as run:
        (run.group / PROCESSES).unlink()
        (run.group / PROCESSES).mkdir()
        command = run.command(["echo", "ran"])
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (bool(ended.returncode), "ran" in ended.stdout) == (True, False)
        (run.group / PROCESSES).rmdir()
    fake.refused[top] = errno.ENOSPC
    with pytest.raises(CannotLimit, match="No space left"), group.run():
        pass
    assert not [path for path in top.iterdir() if path.is_dir()]


def test_version_1_takes_the_own_group_or_the_nearest_above_it(top, proc):
    fake = FakeKernel(top, V1)
    own = fake.add("docker", "own")
    tables(proc, fake, "/docker/own")

    def taken():
        with Cgroup(LIMIT, proc, fake).run() as run:
            return run.group.parent

    assert taken() == own
    fake.refused[own] = errno.EROFS
    assert taken() == own.parent
    fake.closed.add(own.parent)
    assert taken() == top


@pytest.mark.parametrize(("names", "on"), [(("user", "session"), True), (("own",), False)])
def test_version_2_takes_the_nearest_group_that_gives_its_groups_memory(top, proc, names, on):
    """If none does, it turns the controller on for as long as it is used."""
    fake = FakeKernel(top, V2, is_root=True)
    fake.add(*names, pids=(os.getpid(), 12), on=on)
    before = tree(top)
    group = Cgroup(LIMIT, tables(proc, fake, f"/{'/'.join(names)}"), fake)
    assert (top / FOR_CHILDREN).read_text() == "memory"
    with group.run() as run:
        assert run.group.parent == (top / "user" if on else top)
    group.close()
    group.close()
    assert tree(top) == before


def test_the_processes_of_a_container_move_and_come_back(top, proc):
    """A container that sees its own group only has processes, and groups with a memory limit can be
    made only below a group without."""
    fake = FakeKernel(top, V2)
    fake.put(top, 1, GONE, os.getpid(), 77)
    left = ["1", str(os.getpid()), "77"]
    group = Cgroup(LIMIT, tables(proc, fake, "/"), fake)
    assert [pids for pids in fake.pids.values() if pids] == [left] != fake.pids[top]
    with group.run() as run:
        assert run.group.parent == top
        assert (run.group / "memory.max").read_text() == str(LIMIT)
    group.close()
    assert (fake.pids, (top / FOR_CHILDREN).read_text()) == ({top: left}, "")


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [("/", "/job", "job"), ("/docker/7", "/docker/7/job", "job"), ("/docker/7", "/elsewhere", ".")],
)
def test_the_own_group_is_found_below_the_mounts_root(top, proc, root, path, found):
    fake = FakeKernel(top, V1)
    fake.add("job")
    assert memory_groups(tables(proc, fake, path, root=root)).own == top / found


def test_what_is_limited_and_known_is_said(top, proc):
    fake = FakeKernel(top, V2, is_root=True, lacking=("memory.peak", "memory.swap.max"))
    fake.add("own", "inner")
    (top / "own" / V2.limit).write_text("2000000000")
    group = Cgroup(LIMIT, tables(proc, fake, "/own/inner", swap=True), fake)
    assert group.words.startswith(
        f"3 GB of memory, page cache counted (cgroup v2; {top / 'own'} allows 2 GB in all; "
    )
    assert "this kernel has no memory.peak; swap is not limited" in group.words
    with group.run() as run:
        assert run.peak() is None
    group.close()
    (proc / "swaps").write_text("Filename\n")
    assert "swap" not in Cgroup(LIMIT, proc, fake).words


@pytest.mark.parametrize(
    ("pid", "prepare", "said"),
    [
        (0, lambda fake: None, "it has processes of its own"),  # of another namespace
        (1, lambda fake: fake.refused.update({fake.top: errno.EROFS}), "Read-only file system"),
        (1, lambda fake: fake.refused.update({fake.top: errno.EACCES}), "start this as root"),
        (1, lambda fake: fake.closed.add(fake.top), "no process can enter.*Permission denied"),
        (1, lambda fake: (fake.top / CONTROLLERS).write_text("cpu"), "belongs to cgroup v1"),
    ],
)
def test_why_there_is_no_limit_is_said(top, proc, monkeypatch, pid, prepare, said):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    fake = FakeKernel(top, V2)
    fake.put(top, pid, os.getpid())
    prepare(fake)
    with pytest.raises(CannotLimit, match=said):
        Cgroup(LIMIT, tables(proc, fake, "/"), fake)
    assert not [path for path in top.iterdir() if path.is_dir()]
    assert fake.pids == {top: [str(pid), str(os.getpid())]}


def test_without_groups_there_is_no_limit(proc):
    for said in ("does not list control groups", "no control groups with a memory controller"):
        with memory_limit(LIMIT, proc) as (group, words):
            assert (group, words.startswith("no memory limit: ")) == (None, True)
            assert said in words
        (proc / "self").mkdir(parents=True, exist_ok=True)
        (proc / "self" / "mountinfo").write_text("23 1 0:1 / / rw - ext4 /dev/sda rw\n")
        (proc / "self" / "cgroup").write_text("")


def test_a_group_that_is_still_busy_is_removed_a_moment_later(tmp_path, monkeypatch):
    group, waits = tmp_path / "group", []
    group.mkdir()
    (group / "process").write_text("")

    def pass_time(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            (group / "process").unlink()

    monkeypatch.setattr("gnndrive.cli.measure.memory_limit.time.sleep", pass_time)
    Kernel().remove(group)
    assert (group.exists(), len(waits)) == (False, 2)
    Kernel().remove(group)  # nothing is left to do

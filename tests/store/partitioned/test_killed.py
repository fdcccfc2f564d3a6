"""A writer that is killed, or whose disk is full, at any moment leaves what the next one ends."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.store.packed import outputs, reserving
from gnndrive.store.partitioned import write
from gnndrive.store.partitioned.folder import PARTITIONS
from gnndrive.store.partitioned.verify import verify_partition
from tests.store.kills import counting, fails_at, killed_at
from tests.store.packed.packs import files_of
from tests.store.partitioned.made import make_store

NODES = 400
PHASES = (
    "random", "out-edges", "order", "static nodes", "lists", "static lists", "rows x", "order x",
    "check",
)  # fmt: skip


class Work:
    """Partitioning one store, always the same.

    Attributes:
        target: the partitioned folder.
        calls: how many calls that change the disk a whole run makes.
        phases: how many it has made when a phase first tells its progress; and in the end.
        files: what it makes.
    """

    def __init__(self, folder: Path) -> None:
        self.store = make_store(folder / "graph.gnn", NODES, 3_000)
        self.target = self.store.path / "partitioned" / "p"
        self.calls, self.phases, self.files = 0, dict[str, int](), dict[str, bytes]()
        self.overwrite = False
        self.tell: Callable[[str], object] = lambda _: None

    def run(self) -> None:
        """Partition, or go on."""

        def progress(what: str, _: int, __: int) -> None:
            self.phases.setdefault(what, self.calls)
            self.tell(what)

        gnndrive.partition(
            self.store, 20, "random", 128 << 20, static=0.1, name="p", overwrite=self.overwrite,
            progress=progress,
        )  # fmt: skip

    def moment(self, draw: random.Random) -> int:
        """The number of a call, in each phase with the same chance."""
        starts = [1, *self.phases.values()]
        phase = draw.randrange(len(starts) - 1)
        return draw.randint(starts[phase], max(starts[phase + 1], starts[phase]))

    def clear(self) -> None:
        """Remove all that was made."""
        shutil.rmtree(self.target.parent, ignore_errors=True)

    def whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Partition without interruption, check it, and remember it."""

        def count() -> None:
            self.calls += 1

        with monkeypatch.context() as patch:
            counting(patch.setattr, count)
            self.run()
        self.phases["end"] = self.calls
        verify_partition(self.target, self.store)
        self.files = files_of(self.target)
        self.clear()

    def resume(self) -> None:
        """Go on, and compare with what was made without interruption."""
        self.run()
        assert files_of(self.target) == self.files
        assert os.listdir(self.target.parent) == [self.target.name]


@pytest.fixture
def work(tmp_path: Path, small: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Work:
    small(2 * 4096 + 1000, step=100)
    monkeypatch.setattr(outputs, "RUNS_MAX", 3)  # so that rows are spooled
    made = Work(tmp_path)
    made.whole(monkeypatch)
    assert set(made.phases) >= {*PHASES, "end"}
    return made


def test_killed_at_seeded_moments(work: Work) -> None:
    draw, kills = random.Random(3), 0
    for _ in range(16):
        work.clear()
        at = work.moment(draw)
        while killed_at(work.run, at):
            kills += 1
            assert not work.target.exists() or files_of(work.target).keys() >= work.files.keys()
            if draw.random() < 0.5:
                break
            at = work.moment(draw)
        if not work.target.exists():
            work.resume()
        elif PARTITIONS.lock in files_of(work.target):  # killed between the rename and its removal
            (work.target / PARTITIONS.lock).unlink()
        assert files_of(work.target) == work.files
    assert kills >= 20


def test_killed_while_it_replaces_another(work: Work) -> None:
    """There is the old folder or the new one, or the next call ends the new one."""
    seen = Counter[str]()
    for at in range(work.calls - 3, work.calls + 30, 2):
        work.overwrite = False
        gnndrive.partition(work.store, 3, "random", name="p")
        before, work.overwrite = files_of(work.target), True
        if not killed_at(work.run, at):
            break
        found = files_of(work.target) if work.target.exists() else {}
        found.pop(PARTITIONS.lock, None)
        assert found in (before, work.files, {})
        seen["old" if found == before else "new" if found == work.files else "none"] += 1
        work.resume()
        work.clear()
    assert seen["old"]
    assert seen["new"] + seen["none"] >= 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_at_each_phase(
    work: Work, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A StoreError, no folder of that name, and a hidden one that the next call goes on with."""
    failed, draw = 0, random.Random(number)
    for _ in range(20):
        at = work.moment(draw)
        work.clear()
        raised = fails_at(work.run, monkeypatch, at, OSError(number, "simulated"))
        if raised is not None:
            assert re.search("the disk|free some space", str(raised))
            assert not work.target.exists()
            failed += 1
        if not work.target.exists():
            work.resume()
        assert files_of(work.target) == work.files
    assert failed >= 16


def test_a_disk_that_is_too_small(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the partitions are searched for, with what is missing."""
    told: list[str] = []
    for module in (write, reserving):
        monkeypatch.setattr(module, "free_bytes", lambda _: 10_000)
    with pytest.raises(StoreError, match=r"it needs [\d,]+ more bytes .*--static"):
        gnndrive.partition(work.store, 20, "random", progress=lambda what, *_: told.append(what))
    assert told == []


def test_another_store_or_other_settings_begin_anew(work: Work) -> None:
    assert killed_at(work.run, work.phases["rows x"])
    (left,) = work.target.parent.iterdir()
    record = left / PARTITIONS.record
    said = json.loads(record.read_text())
    record.write_text(json.dumps(said | {"store": 64 * "0"}))
    phases: list[str] = []
    gnndrive.partition(
        work.store,
        20,
        "random",
        static=0.1,
        name="p",
        progress=lambda what, *_: phases.append(what),
    )
    assert phases[0] == "random"
    assert files_of(work.target) == work.files

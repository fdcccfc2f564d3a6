"""A packer that is killed, or whose disk is full, at any moment leaves what the next one ends."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.store.packed import outputs, row_writer
from tests.store.kills import counting, fails_at, killed_at
from tests.store.packed.graphs import files_of, make_graph
from tests.store.packed.packs import OpenedPack, drawn, pack_loader

Small = Callable[..., None]


class Work:
    """Packing one store, always the same.

    Attributes:
        target: the pack's folder.
        calls: how many of `CALLS` a whole run makes.
        phases: how many it has made when a phase first tells its progress; and in the end.
        files: what it makes.
    """

    def __init__(self, folder: Path) -> None:
        self._store = gnndrive.from_data(make_graph(), folder / "graph.gnn")
        self._loader = NeighborLoader(
            self._store, [4, 3], batch_size=16, seed=5, buffer="4MB", io_depth=16, shuffle=True
        )
        self._source = drawn(self._loader, 2)
        self.target = folder / "packs" / "p"
        self.target.parent.mkdir()
        self.calls, self.phases, self.files = 0, dict[str, int](), dict[str, bytes]()

    def run(self) -> None:
        """Pack, or go on."""

        def progress(what: str, _: int, __: int) -> None:
            self.phases.setdefault(what, self.calls)

        pack_loader(
            self._loader, self.target, 2, source=self._source, order="minhash", segment=16,
            hot=0.1, volume_bytes=1 << 16, progress=progress,
        )  # fmt: skip

    def moment(self, draw: random.Random) -> int:
        """The number of a call, in each phase with the same chance."""
        starts = [1, *self.phases.values()]
        phase = draw.randrange(len(starts) - 1)
        return draw.randint(starts[phase], max(starts[phase + 1], starts[phase]))

    def clear(self) -> None:
        """Remove all that was packed."""
        shutil.rmtree(self.target.parent)
        self.target.parent.mkdir()

    def whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pack without interruption, check it, and remember it."""

        def count() -> None:
            self.calls += 1

        with monkeypatch.context() as patch:
            counting(patch.setattr, count)
            self.run()
        self.phases["end"] = self.calls
        OpenedPack(self.target, self._store).check(self._source.batches)
        self.files = files_of(self.target)
        self.clear()

    def resume(self) -> None:
        """Go on, and compare with what was made without interruption."""
        self.run()
        assert files_of(self.target) == self.files
        assert os.listdir(self.target.parent) == [self.target.name]


@pytest.fixture
def work(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> Work:
    small(20_000, slice_rows=100)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(outputs, "RUNS_MAX", 3)  # so that shared rows are spooled
    made = Work(tmp_path)
    made.whole(monkeypatch)
    assert len(made.phases) == 10
    return made


def check_kills(work: Work, seed: int, runs: int) -> int:
    """Kill packers at seeded moments, then end the pack; returns the number of kills."""
    draw, kills = random.Random(seed), 0
    for _ in range(runs):
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
        elif "packing.lock" in files_of(work.target):  # killed between the rename and its removal
            (work.target / "packing.lock").unlink()
        assert files_of(work.target) == work.files
    return kills


def test_killed_at_seeded_moments(work: Work) -> None:
    assert check_kills(work, 3, 16) >= 20


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_at_each_phase(
    work: Work, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A StoreError, no pack, and a folder that the next packer goes on with."""
    failed = 0
    draw = random.Random(number)
    for _ in range(24):
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
    assert failed >= 20

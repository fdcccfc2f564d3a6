"""Work that is killed, or whose disk fails, at any moment, and that the next call ends."""

import errno
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.kills import counting, fails_at, killed_at
from tests.store.packed.packs import files_of

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Work:
    """What makes the folder `target`, the only one in its parent, always the same. `make` makes it,
    or goes on, and is called with a function that is told progress; `lock` names the lock's file.

    Attributes:
        calls: how many calls that change the disk a whole run makes.
        phases: how many it has made when a phase first tells its progress; and in the end.
        files: what it makes.
    """

    def __init__(self, target: Path, make: Callable[[Any], object], lock: str) -> None:
        self.target, self._make, self._lock = target, make, lock
        self.calls, self.phases = 0, dict[str, int]()
        with pytest.MonkeyPatch.context() as patch:
            counting(patch.setattr, self._count)
            self.run()
        self.phases["end"] = self.calls
        self.files = files_of(target)

    def _count(self) -> None:
        self.calls += 1

    def run(self) -> None:
        self._make(lambda what, *_: self.phases.setdefault(what, self.calls))

    def resume(self) -> None:
        """Go on, and compare with what was made without interruption."""
        self.run()
        assert files_of(self.target) == self.files
        assert os.listdir(self.target.parent) == [self.target.name]

    def clear(self) -> None:
        shutil.rmtree(self.target.parent)
        self.target.parent.mkdir()

    def moment(self, draw: random.Random) -> int:
        """The number of a call, in each phase with the same chance."""
        starts = [1, *self.phases.values()]
        phase = draw.randrange(len(starts) - 1)
        return draw.randint(starts[phase], max(starts[phase + 1], starts[phase]))

    def check_kills(self, draw: random.Random) -> None:
        """Kill a process that does it, perhaps others that go on, and end it."""
        self.clear()
        at, kills = self.moment(draw), 0
        while killed_at(self.run, at):
            kills += 1
            if self.target.exists() or draw.random() < 0.5:
                break
            at = self.moment(draw)
        assert kills
        self._end()

    def check_failure(self, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a call fail: a StoreError, and what the next one goes on with."""
        self.clear()
        error = OSError(draw.choice(ERRORS), "simulated")
        raised = fails_at(self.run, monkeypatch, self.moment(draw), error)
        if raised is not None:
            assert re.search("the disk|free some space", str(raised))
        self._end()

    def _end(self) -> None:
        """It is whole if it is there; else end it."""
        if not self.target.exists():
            self.resume()
        else:  # perhaps it was interrupted between the rename and the removal of its lock
            (self.target / self._lock).unlink(missing_ok=True)
        assert files_of(self.target) == self.files

"""`EngineOfEachDisk`: engines for files on several disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.striped.striped import disk_of


def make_engine(
    kind: type[Engine], settings: EngineSettings, store: Path, folders: Sequence[Path] = ()
) -> Engine:
    """An engine for the tables of a store, whose rows have copies in `folders`; (): they have
    none."""
    if not folders:
        return kind.make(settings)
    return EngineOfEachDisk(kind, settings, store, folders)


class EngineOfEachDisk(Engine):
    """An engine of one kind for each of the disks that `folders` are on. Each has the depth and the
    bytes in flight that `settings` say, because what one disk needs to be busy, all of them need.

    A job goes to the engine of the disk that its file is on, or else to the first. Only the engine
    of the disk that the store is on gives way to others.
    """

    def __init__(
        self, kind: type[Engine], settings: EngineSettings, store: Path, folders: Sequence[Path]
    ) -> None:
        self.name = kind.name
        own, alone = disk_of(store), replace(settings, traffic=None, gives_way=False)
        self.engines: dict[int, Engine] = {}
        for disk in map(disk_of, folders):
            if disk not in self.engines:
                self.engines[disk] = kind.make(settings if disk == own else alone)

    def read(self, job: ReadJob) -> ReadJob:
        """See `Engine.read`."""
        engine = self.engines.get(disk_of(job.fd))
        return (engine or next(iter(self.engines.values()))).read(job)

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        for engine in self.engines.values():
            await engine.aclose()

    def stats(self) -> dict[str, int]:
        """See `Engine.stats`: the sums."""
        total = Counter[str]()
        for engine in self.engines.values():
            total.update(engine.stats())
        return dict(total)

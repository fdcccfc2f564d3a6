"""The disk tier over stripes: several disks, each with an engine and failures of its own."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.common.records import FAILURE, EngineSettings, TableFile
from gnndrive.disk.engines._each_disk import EngineOfEachDisk
from gnndrive.disk.engines.simulated import Simulated
from gnndrive.disk.layouts.base import LayoutContext
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers.base import TierContext
from gnndrive.disk.tiers.disk import Disk
from gnndrive.store.striped.format import StripedRows
from gnndrive.testing.faults import NOISE, Faults, simulated
from gnndrive.testing.loop import run
from tests.disk.engines.conftest import DATA_OFFSET, UNTOUCHED, make_rows

ROWS, ROW_BYTES, SLOTS, STRETCH = 300, 1024, 200, 8


class Stripes:
    """Rows on `disks` files, whose engines have the faults of their disk; the tier of all. The
    disk of a file is its number."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, disks: int,
        faults: dict[int, Faults] | None = None,
    ) -> None:  # fmt: skip
        self.rows = make_rows(folder, ROW_BYTES, ROWS, SLOTS)
        of, own = StripedRows((None,) * disks, STRETCH).split(np.arange(ROWS))
        files, self.folders = [], [folder / f"disk{number}" for number in range(disks)]
        for number, disk in enumerate(self.folders):
            disk.mkdir()
            content = self.rows.content[of == number]
            assert np.array_equal(own[of == number], np.arange(len(content)))
            (disk / "x").write_bytes(bytes(DATA_OFFSET) + content.tobytes())
            file = TableFile(
                str(disk / "x"), DATA_OFFSET, len(content), ROW_BYTES, "uint8", (ROW_BYTES,)
            )
            files.append(file)
        self.files = files

        def disk_of(file: Path | int) -> int:
            text = str(Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else file)
            found = [n for n, each in enumerate(self.folders) if text.startswith(str(each))]
            return found[0] if found else -1

        monkeypatch.setattr("gnndrive.disk.engines._each_disk.disk_of", disk_of)
        made = iter(range(disks))

        class OfADisk(Simulated):
            def __init__(self, settings: EngineSettings) -> None:
                number = next(made)
                chosen = (faults or {}).get(number, NOISE)
                super().__init__(replace(settings, seed=number, faults=chosen))

        self.engine = EngineOfEachDisk(OfADisk, simulated(depth=8), folder, self.folders)
        striped = StripedRows(tuple(files), STRETCH)
        self.layout = TableLayout.make(
            LayoutContext(self.rows.file, extent_bytes_max=4096, stripes=striped)
        )
        self.tier = Disk.make(TierContext(self.layout, self.engine, None, ROWS, ROW_BYTES))

    @property
    def engines(self) -> list[Any]:
        return list(self.engine.engines.values())

    async def close(self) -> None:
        await self.tier.aclose()
        await self.engine.aclose()
        self.layout.close()


def some(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in any order, and slots for them."""
    draw = np.random.default_rng(seed)
    return draw.permutation(ROWS)[:SLOTS], draw.permutation(SLOTS).astype(np.int32)


@pytest.mark.parametrize("disks", [2, 3, 5])
def test_all_rows_come_to_their_places_from_all_disks(monkeypatch, tmp_path, seeds, disks):
    async def main(folder: Path, seed: int) -> None:
        stripes = Stripes(monkeypatch, folder, disks)
        for given in (some(seed), (np.empty(0, np.int64), np.empty(0, np.int32)), some(seed + 1)):
            stripes.rows.memory[:] = UNTOUCHED
            ended = await stripes.rows.ended(
                stripes.tier.fetch(*given, stripes.rows.landing), *given
            )
            assert not ended[1]
        each = [engine.stats() for engine in stripes.engines]
        assert all(stats["requests"] for stats in each)
        total = stripes.engine.stats()
        assert total["bytes"] == sum(stats["bytes"] for stats in each)
        await stripes.close()

    for seed in seeds(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run(main(folder, seed))


def test_disks_do_not_wait_for_each_other(monkeypatch, tmp_path):
    """All requests of one have ended while those of another have not."""

    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 2)
        stripes.engines[0].paused = True
        rows, slots = some(1)
        fetch = stripes.tier.fetch(rows, slots, stripes.rows.landing)
        of, _ = stripes.layout.striped._rows.split(rows)
        landed = 0
        while landed < np.count_nonzero(of == 1):
            landed += len((await anext(fetch)).slots)
        assert stripes.engines[0].inflight
        assert landed == np.count_nonzero(of == 1)
        stripes.engines[0].paused = False
        async for stretch in fetch:
            landed += len(stretch.slots)
        assert landed == len(rows)
        await stripes.close()

    run(main())


def test_a_bad_sector_fails_rows_of_its_disk_alone_and_the_error_names_the_file(
    monkeypatch, tmp_path
):
    bad = DATA_OFFSET + 20 * ROW_BYTES

    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 3, {1: Faults(eio_offsets=((bad, bad + 512),))})
        rows, slots = np.arange(SLOTS), np.arange(SLOTS, dtype=np.int32)
        fetch = stripes.tier.fetch(rows, slots, stripes.rows.landing)
        _, failures = await stripes.rows.ended(fetch, rows, slots)
        of, own = stripes.layout.striped._rows.split(rows)
        assert failures
        assert {int(of[slot]) for slot, _, _ in failures} == {1}
        assert 20 in {int(own[slot]) for slot, _, _ in failures}
        failure = np.array(failures[:1], FAILURE)[0]
        error = stripes.tier.row_error(int(failure["offset"]), int(failure["error"]))
        assert (error.path, error.errno) == (stripes.files[1].path, errno.EIO)
        assert abs(error.offset - bad) <= 4096
        await stripes.close()

    run(main())


def test_a_cancelled_fetch_ends_when_all_disks_have(monkeypatch, tmp_path):
    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 3)
        for engine in stripes.engines:
            engine.paused = True
        rows, slots = some(2)
        fetch = stripes.tier.fetch(rows, slots, stripes.rows.landing)
        under_way = sum(len(engine.inflight) for engine in stripes.engines)
        fetch.cancel()
        for engine in stripes.engines:
            engine.paused = False
        landed, failures = await stripes.rows.ended(fetch, rows, slots)
        assert {error for _, error, _ in failures} == {errno.ECANCELED}
        assert landed
        assert under_way == 24
        await stripes.engine.aclose()
        with pytest.raises(ClosedError):
            stripes.tier.fetch(rows, slots, stripes.rows.landing)
        await stripes.close()

    run(main())


def test_a_dropped_fetch_writes_on_until_the_engines_are_closed(monkeypatch, tmp_path):
    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 2)
        rows, slots = some(3)
        fetch = stripes.tier.fetch(rows, slots, stripes.rows.landing)
        await anext(fetch)
        del fetch
        await stripes.close()
        assert all(not engine.inflight for engine in stripes.engines)

    run(main())


def test_a_disk_that_takes_no_reads_fails_its_rows_if_others_have_begun(monkeypatch, tmp_path):
    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 3)

        def refuse(job: ReadJob) -> ReadJob:
            raise MemoryError

        monkeypatch.setattr(stripes.engines[1], "read", refuse)
        rows, slots = some(4)
        fetch = stripes.tier.fetch(rows, slots, stripes.rows.landing)
        _, failures = await stripes.rows.ended(fetch, rows, slots)
        of, _ = stripes.layout.striped._rows.split(rows)
        assert sorted(slot for slot, _, _ in failures) == sorted(slots[of == 1].tolist())
        error = stripes.tier.row_error(failures[0][2], failures[0][1])
        assert (error.path, error.errno) == (stripes.files[1].path, errno.ENOMEM)
        monkeypatch.setattr(stripes.engines[0], "read", refuse)
        with pytest.raises(MemoryError):
            stripes.tier.fetch(rows, slots, stripes.rows.landing)
        await stripes.close()

    run(main())


def test_files_elsewhere_go_to_the_first_and_only_the_stores_disk_gives_way(monkeypatch, tmp_path):
    async def main() -> None:
        stripes = Stripes(monkeypatch, tmp_path, 2)
        await stripes.rows.bring(stripes.engine, np.arange(20))
        assert [bool(engine.stats()["requests"]) for engine in stripes.engines] == [True, False]
        given = replace(simulated(), gives_way=True, traffic=object())
        two = EngineOfEachDisk(Simulated, given, stripes.folders[1], stripes.folders * 2)
        settings = [engine._settings for engine in two.engines.values()]  # type: ignore[attr-defined]
        assert [(each.gives_way, each.traffic is None) for each in settings] == [
            (False, True), (True, False),
        ]  # fmt: skip
        await two.aclose()
        await stripes.close()

    run(main())

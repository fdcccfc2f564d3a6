"""What every layout must do, whichever engine carries its plans out."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EngineSettings, Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.disk.layouts.packed import Packed
from gnndrive.disk.read_job import ReadJob
from gnndrive.testing.faults import NOISE
from tests.disk.engines.conftest import UNTOUCHED, Rows, make_rows
from tests.second import OneThread, Reversed

# Layouts that the standard context does not make: a function of it gives theirs.
CONTEXTS: dict[str, Callable[[LayoutContext], LayoutContext]] = {
    "packed": lambda given: replace(given, derived=given.file),
    "partitioned": lambda given: replace(given, derived=given.file),
}
# Layouts whose plans may contain a row several times, whatever the context says.
REPEAT = ("packed",)
ALL = [*plugins.names("layouts"), Reversed]
ENGINES = [*plugins.names("engines"), OneThread]
ROW_BYTES = (1, 12, 132, 512, 4096, 5000)
EXTENT_BYTES = 4096
BLOCK_BYTES = 12288  # holds an extent, and a row of 5,000 bytes wherever it lies


def context_of(kind: type[Layout], file: TableFile, **more: Any) -> LayoutContext:
    """The context that makes a layout of that kind."""
    return CONTEXTS.get(kind.name, lambda given: given)(LayoutContext(file, **more))


def layout_of(kind: type[Layout], rows: Rows, **more: Any) -> Layout:
    """A layout of that kind over a table, which is the table's from now on."""
    try:
        rows.table = kind.make(context_of(kind, rows.file, extent_bytes_max=EXTENT_BYTES, **more))
    except Exception as error:
        pytest.fail(
            f"the layout {kind.name!r} cannot be made from the standard context ({error!r}): "
            "give it one in CONTEXTS of this test"
        )
    return rows.table


def run(carry_out: Callable[[Engine], Coroutine[Any, Any, None]], engine: Any = "threads") -> None:
    """Carry something out with an engine, in a loop of its own."""

    async def main() -> None:
        faults = NOISE if engine == "simulated" else None
        kind: type[Engine] = plugins.find("engines", engine)
        made = kind.make(EngineSettings(8, BLOCK_BYTES, 1, faults))
        try:
            await carry_out(made)
        finally:
            await made.aclose()

    asyncio.run(main())


def wanted(rows: int, count: int, seed: int = 0) -> tuple[Int64Array, Int32Array]:
    """Different rows in any order, and as many different slots below `rows`."""
    draw = np.random.default_rng(seed)
    return draw.permutation(rows)[:count], draw.permutation(rows)[:count].astype(np.int32)


# ---- the contract


def every_byte_lands(kind: type[Layout], folder: Path, engine: Any = "threads") -> None:
    for row_bytes in ROW_BYTES:
        pages = -(-row_bytes // 4096) * 4096
        for direct, stride in ((True, row_bytes), (False, row_bytes), (True, pages)):
            table = make_rows(folder, row_bytes, 60, stride=stride, direct=direct)
            run(partial(_every_byte_of, layout_of(kind, table), table), engine)


async def _every_byte_of(layout: Layout, table: Rows, engine: Engine) -> None:
    for count in (60, 1, 17):
        table.memory[:] = UNTOUCHED
        rows, where = wanted(60, count, seed=count)
        await table.bring(engine, rows, where)
        rest = np.delete(table.memory, where, axis=0)
        assert (rest == UNTOUCHED).all(), "written beside the slots"
    layout.close()


def rows_land_in_places(kind: type[Layout], folder: Path) -> None:
    """Of staging, where a device has rows land before it copies them."""
    staging = make_rows(folder, 200, 300, slots=20, direct=False)
    places = np.arange(20, dtype=np.int32)
    staging.landing = replace(staging.landing, places=places)
    layout = layout_of(kind, staging)

    async def main(engine: Engine) -> None:
        for seed in range(4):
            await staging.bring(engine, wanted(300, 20, seed)[0], places)

    run(main)
    layout.close()


def a_row_may_be_repeated_if_said_so(kind: type[Layout], folder: Path) -> None:
    for row_bytes in (8, 4096):
        table = make_rows(folder, row_bytes, 40, slots=60)
        layout = layout_of(kind, table, repeats=True)
        rows = np.concatenate([np.arange(40), np.arange(20)])[::-1].copy()
        where = np.random.default_rng(0).permutation(60).astype(np.int32)
        run(partial(table.bring, rows=rows, slots=where))
        layout.close()


def what_cannot_be_planned_is_refused(kind: type[Layout], folder: Path) -> None:
    table = make_rows(folder, 100, 30)
    layout, two = layout_of(kind, table), np.arange(2, dtype=np.int32)
    for bad in (-1, 30, 2**40, -(2**63)):
        with pytest.raises(ValueError, match=rf"row {bad} .*30 rows"):
            table.locate(np.array([0, bad]), two)
    if kind.name not in REPEAT:
        with pytest.raises(ValueError, match="twice"):
            table.locate(np.array([7, 7]), two)
    table.locate(np.array([7, 8]), two)  # refusing spoils nothing
    layout.close()


def plans_are_as_long_as_they_may_be(kind: type[Layout], folder: Path) -> None:
    """Extents are cut at the limit, rows beside each other share one, and gaps may be bridged."""
    table, every = make_rows(folder, 128, 4096), np.arange(4096)
    layout = layout_of(kind, table)
    job = table.locate(every)
    assert job.nbytes <= job.requests * EXTENT_BYTES, "an extent is longer than it may be"
    assert job.requests <= 2 * 4096 * 128 // EXTENT_BYTES, "rows side by side are read apart"
    layout.close()
    bridging = layout_of(kind, table, gap_bytes_max=EXTENT_BYTES)
    some = every[::16].copy()  # 2,048 bytes apart
    assert table.locate(some).requests <= len(some), "a gap costs requests"
    bridging.close()


def a_short_file_fails_the_rows_that_it_lacks(kind: type[Layout], folder: Path) -> None:
    table = make_rows(folder, 200, 300)
    layout = layout_of(kind, table)
    whole = os.path.getsize(layout.path)
    cut = whole - 20_100
    os.truncate(layout.path, cut)

    async def main(engine: Engine) -> None:
        rows, where = wanted(300, 300)
        _, failures = await table.ended(engine.read(table.locate(rows, where)), rows, where)
        assert 90 <= len(failures) <= 110, "other rows fail than those that are not there"
        for _, error, offset in failures:
            assert error == errno.ENODATA
            assert cut - 200 - 4096 <= offset < whole, "the offset is not the row's"

    run(main)
    layout.close()


def errors_name_the_file(kind: type[Layout], folder: Path) -> None:
    table = make_rows(folder, 64, 10)
    layout = layout_of(kind, table)
    job = table.locate(np.arange(10))
    assert isinstance(job, ReadJob)
    assert job.path == layout.path
    assert Path(layout.path).is_file()
    layout.close()
    with pytest.raises(StoreError, match="none"):
        kind.make(context_of(kind, replace(table.file, path=str(folder / "none"))))
    for wrong in ({"extent_bytes_max": 0}, {"gap_bytes_max": -1}):
        with pytest.raises(ConfigError):
            kind.make(context_of(kind, table.file, **wrong))


def closing_is_for_good(kind: type[Layout], folder: Path) -> None:
    table = make_rows(folder, 64, 10)
    table.table.close()
    before = set(os.listdir("/proc/self/fd"))
    layout = layout_of(kind, table)
    layout.close()
    layout.close()
    assert set(os.listdir("/proc/self/fd")) <= before, "a file is still open"
    with pytest.raises(ValueError, match="closed"):
        table.locate(np.arange(1))
    layout_of(kind, table).close()  # closing took nothing from the table


CONTRACT: tuple[Callable[[Any, Path], None], ...] = (
    rows_land_in_places,
    a_row_may_be_repeated_if_said_so,
    what_cannot_be_planned_is_refused,
    plans_are_as_long_as_they_may_be,
    a_short_file_fails_the_rows_that_it_lacks,
    errors_name_the_file,
    closing_is_for_good,
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("layout", ALL, ids=plugins.name_of)
def test_a_layout_keeps_its_contract(layout, check, tmp_path):
    check(plugins.find("layouts", layout), tmp_path)


@pytest.mark.parametrize("engine", ENGINES, ids=plugins.name_of)
@pytest.mark.parametrize("layout", ALL, ids=plugins.name_of)
def test_every_byte_lands(layout: Any, engine: Any, tmp_path: Path) -> None:
    every_byte_lands(plugins.find("layouts", layout), tmp_path, engine)


# ---- a broken one is found


class Forward(Reversed):
    """Looks where rows would lie if they were not reversed."""

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        return super().locate(self._context.file.row_count - 1 - rows, places, landing)


class Lenient(Reversed):
    """Lets rows be repeated although repeats=False."""

    def __init__(self, context: LayoutContext) -> None:
        super().__init__(replace(context, repeats=True))


class Long(Reversed):
    """Reads as much at once as it likes."""

    def __init__(self, context: LayoutContext) -> None:
        super().__init__(replace(context, extent_bytes_max=1 << 20))


class Open(Reversed):
    """Forgets to close its file."""

    def close(self) -> None:
        self._fd = -1


@pytest.mark.parametrize(
    ("layout", "check", "message"),
    [
        (Forward, every_byte_lands, "a wrong row"),
        (Lenient, what_cannot_be_planned_is_refused, "DID NOT RAISE"),
        (Long, plans_are_as_long_as_they_may_be, "longer than it may be"),
        (Open, closing_is_for_good, "still open"),
    ],
)
def test_a_broken_layout_is_found(layout, check, message, tmp_path):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        check(layout, tmp_path)


def test_the_packed_layout_needs_a_pack(tmp_path: Path) -> None:
    """And reads its file, not the store's."""
    table, packed = (make_rows(tmp_path, 64, rows).file for rows in (10, 7))
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Packed.make(LayoutContext(table))
    layout = Packed.make(LayoutContext(table, derived=packed))
    assert layout.path == packed.path
    layout.close()

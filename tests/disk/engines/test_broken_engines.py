"""Engines that each break the contract in one place: the conformance test finds it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import EngineSettings
from gnndrive.disk.read_job import ReadJob
from tests.disk.engines import test_conformance as conformance
from tests.disk.engines.conftest import Rows
from tests.second import OneThread


class Hasty(OneThread):
    """Does not wait for the thread when it is closed, however long that takes."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.go_on = threading.Event()

    def _carry_out(self, job: ReadJob) -> None:
        self.go_on.wait()
        super()._carry_out(job)

    async def aclose(self) -> None:
        self._closing = True


class Forgetful(OneThread):
    """Reads for a job only as long as its caller keeps it."""

    def read(self, job: ReadJob) -> ReadJob:
        later = super().read

        def begin(dropped: weakref.ref[ReadJob]) -> None:
            if (kept := dropped()) is not None:
                later(kept)

        self._loop.call_soon(begin, weakref.ref(job))
        return job


class Welcoming(OneThread):
    """Takes jobs after it was closed, and fails them."""

    def read(self, job: ReadJob) -> ReadJob:
        if not self._closing:
            return super().read(job)
        job.cancel()
        lib.gd_reads_let_go(job.handle)
        return job


class Roomy(OneThread):
    """Takes extents of any length."""

    def read(self, job: ReadJob) -> ReadJob:
        job.cancel()
        return super().read(job) if lib.gd_reads_block_bytes(job.handle) <= 8192 else job


class Spoiling(OneThread):
    """Writes over the first slot, which another row may be in."""

    def _carry_out(self, job: ReadJob) -> None:
        _, landing = job._keeps
        ffi.memmove(ffi.cast("uint8_t *", landing.address), b"\x11", 1)
        super()._carry_out(job)


class Uncounted(OneThread):
    """Counts no requests."""

    def stats(self) -> dict[str, int]:
        return dict.fromkeys(super().stats(), 0)


@pytest.fixture
async def kept(rows_of: Callable[..., Rows]) -> AsyncIterator[SimpleNamespace]:
    """The fixtures of the conformance test; engines are ended before their rows are gone."""
    engines: list[OneThread] = []
    rows: list[Rows] = []

    def maker(kind: type[OneThread], **settings: Any) -> OneThread:
        engines.append(kind(EngineSettings(**({"depth": 16, "block_bytes": 65536} | settings))))
        return engines[-1]

    def rows_kept(*given: Any, **options: Any) -> Rows:
        rows.append(rows_of(*given, **options))
        return rows[-1]

    yield SimpleNamespace(maker=maker, rows_of=rows_kept)
    for engine in engines:
        if isinstance(engine, Hasty):
            engine.go_on.set()
        await OneThread.aclose(engine)


@pytest.mark.parametrize(
    ("engine", "check", "message"),
    [
        (Hasty, conformance.test_closing_waits_for_what_may_still_be_written, "not let go"),
        (Forgetful, conformance.test_dropping_the_iterator_stops_nothing, "any"),
        (Welcoming, conformance.test_closing_while_reads_are_under_way, "DID NOT RAISE"),
        (Roomy, conformance.test_an_extent_longer_than_a_block_is_refused, "DID NOT RAISE"),
        (Spoiling, partial(conformance.test_every_byte_of_any_row_size, row_bytes=512), r"== 238"),
        (Uncounted, conformance.test_several_reads_at_once, ">="),
    ],
)
async def test_a_broken_engine_is_found(
    engine: type[OneThread], check: Callable[..., Any], message: str, kept: SimpleNamespace
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        await check(partial(kept.maker, engine), kept.rows_of)

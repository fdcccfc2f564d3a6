"""Blocks that are written, read and written again; disks that are full; file systems that lack
something."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import page_buffer
from gnndrive.common.records import Landing
from gnndrive.disk.block_file import BlockFile
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.disk.read_job import ReadJob
from gnndrive.testing.faults import NOISE, simulated

ROW_BYTES, BLOCK_ROWS = 600, 512


@pytest.fixture
async def engine() -> Any:
    made = plugins.find("engines", "simulated")(
        simulated(faults=NOISE, block_bytes=SWEEP_BLOCK_BYTES)
    )
    yield made
    await made.aclose()


@pytest.fixture
def make(tmp_path: Path) -> Any:
    made = []

    def build(blocks: int = 0) -> BlockFile:
        made.append(BlockFile(tmp_path, ROW_BYTES, BLOCK_ROWS))
        made[-1].grow(blocks)
        return made[-1]

    yield build
    for each in made:
        each.close()


async def whole(engine: Engine, job: ReadJob) -> list[int]:
    """Carry a job out; return the slots, none of which failed, in order."""
    slots = list[int]()
    async for stretch in engine.read(job):
        assert not len(stretch.failures)
        slots += stretch.slots.tolist()
    return sorted(slots)


def drawn(seed: int, buffers: int, block_bytes: int) -> np.ndarray:
    memory = page_buffer(buffers * block_bytes).reshape(buffers, block_bytes)
    memory[:] = np.random.default_rng(seed).integers(0, 256, memory.shape, np.uint8)
    return memory


async def assert_holds(file: BlockFile, engine: Engine, content: np.ndarray) -> None:
    """Read half of the rows of all blocks, in any order: they are those of `content`."""
    content = content.reshape(-1, ROW_BYTES)
    rows = np.random.default_rng(9).permutation(len(content))[::2]
    landed = page_buffer(len(rows) * 1024).reshape(-1, 1024)
    places = np.arange(len(rows), dtype=np.int32)
    job = file.locate(rows, places, Landing(landed.ctypes.data, 1024, True, landed))
    await whole(engine, job)
    assert np.array_equal(landed[: len(rows), :ROW_BYTES], content[rows])


async def assert_works(file: BlockFile, engine: Engine) -> None:
    content, numbers = drawn(3, 2, file.block_bytes), np.arange(2, dtype=np.int32)
    assert await whole(engine, file.writes(np.arange(2), numbers, content)) == [0, 1]
    await assert_holds(file, engine, content)


async def test_rows_come_back_and_blocks_are_used_again(make, engine):
    file = make(4)
    content = drawn(1, 6, file.block_bytes)
    order = np.array([2, 0, 3, 1], np.int32)
    assert await whole(engine, file.writes(order.astype(int), order, content)) == [0, 1, 2, 3]
    await assert_holds(file, engine, content[:4])
    file.grow(6)
    buffers = drawn(2, 3, file.block_bytes)
    content[[5, 1, 4]] = buffers
    numbers = np.arange(3, dtype=np.int32)
    assert await whole(engine, file.writes(np.array([5, 1, 4]), numbers, buffers)) == [0, 1, 2]
    await assert_holds(file, engine, content)


def test_the_file_is_counted_in_blocks_and_has_no_name(make, tmp_path):
    file = make(3)
    file.grow(2)
    assert (file.blocks, file.block_bytes) == (3, 307200)
    assert os.listdir(tmp_path) == []
    for write in (np.array([3]), np.array([0, 0])):
        with pytest.raises(ValueError, match=r"row 3 of .* 3 rows|a row twice"):
            file.writes(write, np.arange(len(write), dtype=np.int32), drawn(1, 2, 307200))
    with pytest.raises(ValueError, match="buffer 2 of 2"):
        file.writes(np.array([1]), np.array([2], np.int32), drawn(1, 2, 307200))
    with pytest.raises(ValueError, match=r"must be \[n, 307200\]"):
        file.writes(np.array([1]), np.array([0], np.int32), drawn(1, 2, 4096))
    with pytest.raises(ValueError, match="whole pages"):
        BlockFile(tmp_path, 600, 100)


def test_what_fits_no_more_is_refused_and_changes_nothing(make, tmp_path):
    file, limits = make(2), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * file.block_bytes, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"too full for .* needs 921,600 more .* folder="):
            file.grow(5)
        assert file.blocks == 2
        file.grow(4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(tmp_path) in str(file.write_error(errno.ENOSPC))
    assert "307,200 more bytes" in str(file.write_error(errno.ENOSPC))
    assert "check the disk, or give another folder" in str(file.write_error(errno.EIO))


def test_space_that_was_found_before_the_disk_was_full_is_given_back(make, monkeypatch):
    file, fallocate = make(2), os.posix_fallocate
    taken = os.fstat(file._written.fd).st_blocks

    def half(fd: int, offset: int, length: int) -> None:
        fallocate(fd, offset, length // 2)
        assert os.fstat(fd).st_blocks > taken
        raise OSError(errno.ENOSPC, "simulated")

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(StoreError, match="too full"):
        file.grow(100)
    assert os.fstat(file._written.fd).st_blocks == taken


async def test_without_direct_io_it_warns_and_works(make, engine, monkeypatch):
    open_: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "simulated")
        return open_(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.warns(RuntimeWarning, match="no direct I/O") as warned:
        file = make(2)
    assert len(warned) == 1
    await assert_works(file, engine)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
async def test_where_space_cannot_be_reserved_it_works(make, engine, monkeypatch, code):
    def refuse(*given: int) -> None:
        raise OSError(code, "simulated")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    await assert_works(make(2), engine)


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=rf"{tmp_path}/none .* give another folder with folder="):
        BlockFile(tmp_path / "none", 4096, 1)

"""Long reads and writes past the page cache: what is in the file, whatever the file system does."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive import StoreError
from gnndrive.common.io import direct_writer
from gnndrive.common.io.direct_file import DirectReader, hash_file, page_buffer
from gnndrive.common.io.direct_writer import DirectWriter
from tests.interrupted import interrupted
from tests.soak import product

PIECE = 8192


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_writer, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(direct_writer, "_SYNCED_BYTES", PIECE)


def drawn(nbytes: int) -> Any:
    return np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)


@pytest.fixture(params=["direct", "no flag", "no requests"])
def file_system(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has O_DIRECT; refuses the flag; accepts it and refuses each read and write, and
    to reserve space."""

    def refusing(call: str, has_flag: Callable[..., bool]) -> None:
        function = getattr(os, call)

        def refuse(first: Any, *given: Any) -> Any:
            if has_flag(first, *given):
                raise OSError(errno.EINVAL, "simulated")
            return function(first, *given)

        monkeypatch.setattr(os, call, refuse)

    def is_direct(fd: int, *_: Any) -> bool:
        flags = Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
        return bool(int(flags, 8) & os.O_DIRECT)

    if request.param == "no flag":
        refusing("open", lambda path, flags, *_: bool(flags & os.O_DIRECT))
    elif request.param == "no requests":
        refusing("pwrite", is_direct)
        refusing("preadv", is_direct)
        refusing("posix_fallocate", is_direct)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 8191, 3 * PIECE, 3 * PIECE + 5])
def test_a_file_exists_whole_or_not_at_all(tmp_path, file_system, nbytes):
    content, path = drawn(nbytes), tmp_path / "file"
    with DirectWriter(path, nbytes=nbytes, whole=True) as writer:
        for first in range(0, nbytes, 5000):
            writer.append(content[first : first + 5000])
        assert not path.exists()
        writer.finish()
    assert path.read_bytes() == content.tobytes()
    assert os.listdir(tmp_path) == ["file"]
    assert hash_file(path, nbytes) == f"sha256:{sha256(content).hexdigest()}"


@product("stop,checksum", [1, 4096, 11_000, 2 * PIECE, 39_999], [False, True])
def test_it_goes_on_behind_any_byte(tmp_path, file_system, stop, checksum):
    content, path = drawn(40_000), tmp_path / "file"
    with DirectWriter(path, nbytes=40_000, checksum=checksum) as writer:
        writer.append(content[:stop])
        writer.sync()
        writer.append(content[stop : stop + 20] + 1)  # not durable, so it is written again
    with DirectWriter(path, stop, nbytes=40_000, checksum=checksum) as writer:
        for first in range(stop, 40_000, 777):
            writer.append(content[first : first + 777])
        found = writer.finish()
    assert path.read_bytes() == content.tobytes()
    assert found == (sha256(content).hexdigest() if checksum else "")


def test_a_file_that_became_shorter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(3000))
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
    with pytest.raises(StoreError, match="became shorter"):
        DirectWriter(path, 5000, nbytes=10_000)
    with DirectReader(path) as reader, pytest.raises(StoreError, match="became shorter"):
        reader.read(10, 3000, page_buffer(3 * 4096))


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
def test_after_a_failure_nothing_counts_as_durable(tmp_path, monkeypatch, failing):
    writer = DirectWriter(tmp_path / "file")
    whole, left = getattr(os, failing), [1]

    def once(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, "Input/output error")
        return whole(*given)

    monkeypatch.setattr(os, failing, once)

    def write_on() -> None:
        writer.append(bytes(3 * PIECE))
        writer.sync()

    for again in (write_on, writer.sync, write_on, writer.sync):
        with pytest.raises(StoreError, match=r"Input/output error.*goes on where it stopped"):
            again()
    writer.close()


@pytest.mark.parametrize("failing", ["open", "posix_fallocate"])
@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, r"file, which needs 12.3 KB \(simulated\): free some.*goes on.*another disk"),
     (errno.EROFS, "make the folder writable"), (errno.EIO, "check the disk")],
)  # fmt: skip
def test_a_file_that_cannot_be_made(tmp_path, monkeypatch, failing, number, said):
    def fail(*_: Any) -> Any:
        raise OSError(number, "simulated")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(StoreError, match=said):
        DirectWriter(tmp_path / "file", nbytes=12_345)


def test_interrupted_anywhere_what_was_put_is_durable(tmp_path):
    """Ctrl-C in any line of a write: `sync` still makes the bytes before it durable."""
    content, path = drawn(4 * PIECE), tmp_path / "file"
    stops, before, ended = 0, sys.gettrace(), False
    while not ended:
        left = [stops]
        with DirectWriter(path) as writer:
            writer.append(content[:11_000])

            def trace(frame: Any, event: str, arg: Any, left: list[int] = left) -> Any:
                if frame.f_code.co_filename != direct_writer.__file__:
                    return None
                if event == "line":
                    left[0] -= 1
                    if left[0] < 0:
                        raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                with contextlib.suppress(KeyboardInterrupt):
                    writer.append(content[11_000:])
            finally:
                sys.settrace(before)
            writer.sync()
        assert path.read_bytes()[:11_000] == content[:11_000].tobytes()
        ended = left[0] >= 0
        stops += 1
    assert stops > 30


def test_an_interrupt_at_any_point_of_sync_leaves_a_writer_that_can_be_closed(tmp_path):
    for number in count():
        writer = DirectWriter(tmp_path / "file")
        writer.append(b"abc")
        places = "/direct_writer.py", "/_base.py", "/thread.py", "/threading.py"
        there_is_one = interrupted(writer.sync, number, *places)
        writer.close()
        if not there_is_one:
            break
    assert number > 30

"""A file that is replaced is the old one or the new one, and a kill leaves nothing for ever."""

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

from gnndrive.cli.commands import clean
from gnndrive.common.io.small_files import replace_file
from tests.store.kills import killed_at


def put(path: Path, content: bytes) -> None:
    replace_file(path, lambda file: file.write(content))


def test_killed_at_any_call(tmp_path):
    path, at = tmp_path / "f", 0
    put(path, b"old")
    while killed_at(partial(put, path, b"the new one"), at := at + 1):
        assert path.read_bytes() in (b"old", b"the new one")
        if at % 2:
            put(path, b"old")
        else:
            clean.run(tmp_path)
        assert os.listdir(tmp_path) == ["f"]
    assert at > 4
    assert path.read_bytes() == b"the new one"


def test_several_at_once(tmp_path):
    path, contents = tmp_path / "f", [bytes([number]) * 100_000 * number for number in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(put, path), contents))
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["f"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    refused = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=refused))
    put(tmp_path / "f", b"new")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.stat().st_size} == {
        "f": b"new"
    }

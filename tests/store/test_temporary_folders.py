"""Imports that were killed: what they left is found, and removed or put back; nothing else is."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import StoreWriter, open, write_store
from gnndrive.store import temporary_folders as module
from gnndrive.store.temporary_folders import TemporaryFolder, clear, leftovers
from tests.cli.conftest import Command, gnndrive  # noqa: F401 - a fixture

GRAPH = {"indptr": [0, 1, 1, 3], "indices": [2, 0, 1]}


def write(path: Path, label: int) -> None:
    write_store(path, **GRAPH, nodes={"y": [label] * 3}, overwrite=True)


def label(path: Path) -> int:
    store = open(path)
    store.verify()
    return int(store.tensor("y")[0])


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; returns the signal that ended it, or 0."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_rename_of(path: Path, rename: Callable[..., None]) -> Callable[..., None]:
    """`os.rename` on an overlay file system whose lower layer has `path`."""

    def wrapped(source: Path, target: Path) -> None:
        if Path(source) == path:
            raise OSError(errno.EXDEV, "simulated")
        rename(source, target)

    return wrapped


def hidden(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name.startswith("."))


def test_a_killed_import_is_cleaned_by_the_next(tmp_path: Path) -> None:
    """While it lives, nothing of it is removed."""
    reader, writer = os.pipe()

    def work() -> None:
        with StoreWriter(tmp_path / "s", 3, 3) as store:
            store.write("graph/indptr", GRAPH["indptr"])
            os.write(writer, b"x")
            signal.pause()

    child = os.fork()
    if not child:
        work()
    os.read(reader, 1)
    write(tmp_path / "s", 1)
    (left,) = hidden(tmp_path)
    assert leftovers(tmp_path) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (found,) = leftovers(tmp_path)
    assert (found.path.name, found.target, found.kind) == (left, tmp_path / "s", "tmp")
    assert found.nbytes == 4096 + 4 * 8
    write(tmp_path / "other", 1)
    assert hidden(tmp_path) == [left], "of another store"
    write(tmp_path / "s", 2)
    assert hidden(tmp_path) == []
    assert label(tmp_path / "s") == 2


@pytest.mark.parametrize("overlay", [False, True])
def test_an_overwrite_killed_at_any_step_loses_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlay: bool
) -> None:
    """Killed before each change of the folder's names and each removal of a file."""
    path = tmp_path / "s"
    if overlay:
        monkeypatch.setattr(os, "rename", no_rename_of(path, os.rename))
    seen = []
    for steps in range(100):
        write(path, 1)
        (path / "disk.json").write_text("{}")
        left = steps

        def killing(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **given: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    kill_myself()
                return function(*arguments, **given)

            return wrapped

        def work() -> None:
            for name in ("rename", "unlink", "rmdir"):
                setattr(os, name, killing(getattr(os, name)))
            write(path, 2)

        ended = in_child(work)
        clear(path)
        seen.append(label(path))
        assert hidden(tmp_path) == []
        assert os.listdir(tmp_path) == ["s"]
        assert set(os.listdir(path)) - {"disk.json"} == {"graph", "nodes", "store.json"}
        if not ended:
            break
    assert seen == sorted(seen), "first the old one, then the new one"
    assert seen[0] == 1
    assert len(seen) > 8


def test_an_overlay_s_lower_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    write(path, 1)
    monkeypatch.setattr(os, "rename", no_rename_of(path, os.rename))
    write(path, 2)
    assert label(path) == 2
    assert os.listdir(tmp_path) == ["s"]
    assert sorted(os.listdir(path)) == ["graph", "nodes", "store.json"]


def test_an_old_store_that_cannot_be_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gnndrive: Command,  # noqa: F811
) -> None:
    """The new store stays, whole, and the message names it; later it is put into place."""
    path = tmp_path / "s"
    write(path, 1)
    monkeypatch.setattr(os, "rename", no_rename_of(path, os.rename))

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", failing)
    with pytest.raises(StoreError, match="clean") as caught:
        write(path, 2)
    monkeypatch.undo()
    (name,) = hidden(tmp_path)
    assert name in str(caught.value)
    assert "restore" in gnndrive("clean", tmp_path).out
    assert label(path) == 2
    assert hidden(tmp_path) == []


def test_an_interrupted_rename_puts_the_old_store_back(tmp_path: Path) -> None:
    write(tmp_path / "s", 1)
    os.rename(tmp_path / "s", tmp_path / ".s.01234567.old")
    (tmp_path / ".s.01234567.tmp").mkdir()
    write(tmp_path / "t", 3)
    assert len(hidden(tmp_path)) == 2
    with pytest.raises(ConfigError, match="exists"):
        write_store(tmp_path / "s", **GRAPH, nodes={})
    assert label(tmp_path / "s") == 1
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (".s.01234567.tmp", ["thesis.tex"]),
        (".s.01234567.sort", ["edges.parquet"]),
        (".s.0123456.tmp", ["graph"]),
        (".s.01234567.bak", ["graph"]),
        ("s.01234567.tmp", ["graph"]),
        (".s.01234567.old", ["store.json"]),  # something else is at its place
        (".s.01234567.new", ["store.json"]),
    ],
)
def test_what_is_not_a_leftover_stays(tmp_path: Path, name: str, files: list[str]) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("years")
    (tmp_path / name).mkdir()
    for file in files:
        (tmp_path / name / file).write_text("x")
    assert leftovers(tmp_path) == []
    with pytest.raises(ConfigError, match="not a store"):
        write(tmp_path / "s", 1)
    assert sorted(os.listdir(tmp_path / name)) == files
    assert os.listdir(tmp_path / "s") == ["thesis.tex"]


def test_a_new_folder_that_is_cleaned_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then another is made."""
    real, cleaned = module._lock, []

    def late(folder: Path) -> int:
        if not cleaned:
            cleaned.append(folder)
            monkeypatch.setattr(module, "_lock", real)
            clear(tmp_path / "s")
            monkeypatch.setattr(module, "_lock", late)
        return real(folder)

    monkeypatch.setattr(module, "_lock", late)
    with TemporaryFolder(tmp_path / "s") as folder:
        assert not cleaned[0].exists()
        assert folder.exists()
        monkeypatch.undo()
        assert leftovers(tmp_path) == []
    assert hidden(tmp_path) == []


def test_sorting_folders_are_leftovers_too(tmp_path: Path) -> None:
    def work() -> None:
        with TemporaryFolder(tmp_path / "s", "sort") as folder:
            (folder / "spill").write_bytes(b"x" * 1000)
            kill_myself()

    assert in_child(work) == signal.SIGKILL
    assert [(each.kind, each.nbytes) for each in leftovers(tmp_path)] == [("sort", 1000)]
    write(tmp_path / "s", 1)
    assert hidden(tmp_path) == []


def test_the_command(tmp_path: Path, gnndrive: Command) -> None:  # noqa: F811
    def work() -> None:
        with StoreWriter(tmp_path / "s", 3, 3) as store:
            store.write("graph/indptr", GRAPH["indptr"])
            kill_myself()

    assert gnndrive("clean", tmp_path).out == f"nothing to clean in {tmp_path}\n"
    assert in_child(work) == signal.SIGKILL
    (name,) = hidden(tmp_path)
    for option, freed in (["--dry-run"], " would be freed"), ([], " freed"):
        assert hidden(tmp_path) == [name]
        ended = gnndrive("clean", tmp_path, *option)
        assert ended.code == 0
        assert f"4.13 KB  remove {tmp_path / name}\n4.13 KB{freed}" in ended.out
    assert hidden(tmp_path) == []
    assert gnndrive("clean", tmp_path / "nowhere").code == 2


def test_a_mount_point_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s", 1)
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(ConfigError, match="mount point"):
        write(tmp_path / "s", 2)
    assert label(tmp_path / "s") == 1


def test_an_old_store_of_a_living_writer_stays(tmp_path: Path) -> None:
    with TemporaryFolder(tmp_path / "s") as folder:
        write(tmp_path / "s", 1)
        os.rename(tmp_path / "s", folder.with_suffix(".old"))
        assert leftovers(tmp_path) == []
    assert [(each.kind, each.remedy) for each in leftovers(tmp_path)] == [("old", "restore")]


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EMFILE, ConfigError), (errno.EACCES, StoreError), (errno.ENOLCK, None)],
)
def test_a_folder_without_a_lock_is_written_only_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: Any
) -> None:
    """Elsewhere another process would take it for a killed one's and remove it."""

    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)
    if error is None:
        write_store(tmp_path / "s", **GRAPH, nodes={})
        assert os.listdir(tmp_path) == ["s"]
    else:
        with pytest.raises(error):
            write_store(tmp_path / "s", **GRAPH, nodes={})
        assert os.listdir(tmp_path) == []

"""Imports that were killed: what they left is found, and removed or put back; nothing else is."""

import contextlib
import errno
import fcntl
import os
import re
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from gnndrive.cli.main import main
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import StoreWriter, open, write_store
from gnndrive.store import temporary_folders as module
from gnndrive.store.temporary_folders import TemporaryFolder, clear, leftovers
from tests.store.conftest import left, refused
from tests.store.kills import killed_at

GRAPH = {"indptr": [0, 1, 1, 3], "indices": [2, 0, 1]}


def write(path: Path, number: int) -> None:
    write_store(path, **GRAPH, nodes={"x": [number] * 3}, if_exists="replace")


def number(path: Path) -> int:
    store = open(path)
    store.verify()
    return int(store.tensor("x")[0])


def as_in_a_lower_layer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `os.rename` refuse `path`, as an overlay file system whose lower layer has it."""
    rename = os.rename

    def wrapped(source: Path, target: Path) -> None:
        if Path(source) == path:
            raise OSError(errno.EXDEV, "simulated")
        rename(source, target)

    monkeypatch.setattr(os, "rename", wrapped)


def hidden(folder: Path) -> list[str]:
    return [name for name in left(folder) if name.startswith(".")]


def test_a_killed_import_is_cleaned_by_the_next(tmp_path):
    """While it lives, nothing of it is removed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with StoreWriter(tmp_path / "s", 3, 3) as store:
            store.write("graph/indptr", GRAPH["indptr"])
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    write(tmp_path / "s", 1)
    (name,) = hidden(tmp_path)
    assert leftovers(tmp_path) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (found,) = leftovers(tmp_path)
    assert (found.path.name, found.target, found.kind) == (name, tmp_path / "s", "tmp")
    assert found.nbytes == 4096 + 4 * 8
    write(tmp_path / "other", 1)
    assert hidden(tmp_path) == [name], "of another store"
    write(tmp_path / "s", 2)
    assert hidden(tmp_path) == []
    assert number(tmp_path / "s") == 2


@pytest.mark.parametrize("overlay", [False, True])
def test_an_overwrite_killed_at_any_step_loses_no_store(tmp_path, monkeypatch, overlay):
    """Killed before each change of the folder's names and each removal of a file."""
    path = tmp_path / "s"
    if overlay:
        as_in_a_lower_layer(path, monkeypatch)
    seen, killed = [], True
    while killed:
        write(path, 1)
        (path / "disk.json").write_text("{}")
        changes = ("rename", "unlink", "rmdir")
        killed = killed_at(lambda: write(path, 2), len(seen) + 1, changes)
        clear(path)
        seen.append(number(path))
        assert left(tmp_path) == ["s"]
        assert set(left(path)) - {"disk.json"} == {"graph", "nodes", "store.json"}
    assert seen == sorted(seen), "first the old one, then the new one"
    assert (seen[0], seen[-1]) == (1, 2)
    assert "disk.json" not in left(path)
    assert len(seen) > 8


def test_an_old_store_that_cannot_be_removed(tmp_path, monkeypatch, capsys):
    """The new store stays, whole, and the message names it; later it is put into place."""
    path = tmp_path / "s"
    write(path, 1)
    as_in_a_lower_layer(path, monkeypatch)
    monkeypatch.setattr(os, "rmdir", Mock(side_effect=OSError(errno.EBUSY, "busy")))
    with pytest.raises(StoreError, match="clean") as caught:
        write(path, 2)
    monkeypatch.undo()
    (name,) = hidden(tmp_path)
    assert name in str(caught.value)
    assert main(["clean", str(tmp_path)]) == 0
    assert "restore" in capsys.readouterr().out
    assert number(path) == 2
    assert hidden(tmp_path) == []


def test_what_is_not_a_leftover_stays(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("years")
    for name, file in (
        (".s.01234567.tmp", "thesis.tex"),
        (".s.01234567.sort", "edges.parquet"),
        (".s.0123456.tmp", "graph"),
        (".s.01234567.bak", "graph"),
        ("s.01234567.tmp", "graph"),
        (".s.01234567.old", "store.json"),  # something else is at its place
        (".s.01234567.new", "store.json"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text("x")
        assert leftovers(tmp_path) == []
        with refused(tmp_path, "not a store"):
            write(tmp_path / "s", 1)
        assert (left(tmp_path / name), left(tmp_path / "s")) == ([file], ["thesis.tex"])


def test_a_new_folder_that_is_cleaned_before_it_is_locked(tmp_path, monkeypatch):
    """Then another is made."""
    real, cleaned = module._lock, []

    def late(folder: Path) -> int:
        monkeypatch.setattr(module, "_lock", real)
        clear(tmp_path / "s")
        cleaned.append(folder)
        return real(folder)

    monkeypatch.setattr(module, "_lock", late)
    with TemporaryFolder(tmp_path / "s") as folder:
        assert not cleaned[0].exists()
        assert folder.exists()
        assert leftovers(tmp_path) == []
    assert hidden(tmp_path) == []


def test_sorting_folders_are_leftovers_too_and_the_command_removes_them(tmp_path, capsys):
    def work() -> None:
        with TemporaryFolder(tmp_path / "s", "sort") as folder:
            (folder / "spill").write_bytes(b"x" * 1000)
            os.kill(os.getpid(), signal.SIGKILL)

    assert killed_at(work, 1 << 30)
    (found,) = leftovers(tmp_path)
    assert (found.kind, found.nbytes) == ("sort", 1000)
    for option, freed in (["--dry-run"], " would be freed"), ([], " freed"):
        assert hidden(tmp_path) == [found.path.name]
        assert main(["clean", str(tmp_path), *option]) == 0
        assert re.search(rf"KB  remove {found.path}\n.* KB{freed}\n", capsys.readouterr().out)
    assert hidden(tmp_path) == []
    assert main(["clean", str(tmp_path)]) == 0
    assert "nothing to clean" in capsys.readouterr().out
    assert main(["clean", str(tmp_path / "nowhere")]) == 2


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    write(tmp_path / "s", 1)
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(ConfigError, match="mount point"):
        write(tmp_path / "s", 2)
    assert number(tmp_path / "s") == 1


def test_an_old_store_of_a_living_writer_stays(tmp_path):
    with TemporaryFolder(tmp_path / "s") as folder:
        write(tmp_path / "s", 1)
        os.rename(tmp_path / "s", folder.with_suffix(".old"))
        assert leftovers(tmp_path) == []
    assert [(each.kind, each.remedy) for each in leftovers(tmp_path)] == [("old", "restore")]


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EMFILE, ConfigError), (errno.EACCES, StoreError), (errno.ENOLCK, None)],
)
def test_a_folder_is_written_without_a_lock_only_where_there_are_none(
    tmp_path, monkeypatch, code, error
):
    """Elsewhere another process would take it for a killed one's and remove it."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(code, os.strerror(code))))
    with contextlib.nullcontext() if error is None else refused(tmp_path, None, error):
        write_store(tmp_path / "s", **GRAPH, nodes={})

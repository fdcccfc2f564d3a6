"""Unfinished packs are found and removed; other programs' folders, and those in use, are not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gnndrive.common.file_lock import try_lock
from gnndrive.store.packed.folder import LOCK, PACKING_JSON, PackingFolder
from gnndrive.store.packed.format import PACK_JSON
from gnndrive.store.packed.settings import PackSettings
from gnndrive.store.packed.unfinished import settings_of, unfinished_packs
from gnndrive.store.reader import Store

SETTINGS = PackSettings("10 positions", 5, False, True, [2, 2], False, epochs=3)
NAME = ".p.0123456789ab.packing"


def leave(store: Store, folder: Path) -> Path:
    """Leave an unfinished pack of `folder`/p."""
    with PackingFolder(store, folder / "p", SETTINGS) as packing:
        (packing.path / "samples").mkdir()
        (packing.path / "samples" / "000.npy").write_bytes(bytes(100))
    return packing.path


def test_one_is_found_with_its_settings_and_removed(store: Store, tmp_path: Path):
    path = leave(store, tmp_path)
    (found,) = unfinished_packs(tmp_path)
    assert (found.path, found.target, found.in_use) == (path, tmp_path / "p", False)
    assert settings_of(found) == SETTINGS
    assert found.nbytes == 100 + (path / PACKING_JSON).stat().st_size
    assert found.clean()
    assert not path.exists()
    assert unfinished_packs(tmp_path) == []


def test_one_that_a_process_holds_stays(store: Store, tmp_path: Path):
    path = leave(store, tmp_path)
    (free,) = unfinished_packs(tmp_path)
    lock = try_lock(path / LOCK)
    (held,) = unfinished_packs(tmp_path)
    assert (held.in_use, held.clean(), free.clean()) == (True, False, False)
    assert (path / PACKING_JSON).exists()
    os.close(lock)
    assert free.clean()
    assert held.clean()  # it is gone


@pytest.mark.parametrize("content", ["", "{}", '{"settings": {"epochs": 3}}', "[1]"])
def test_one_of_unknown_settings_is_removed_too(store: Store, tmp_path: Path, content: str):
    path = leave(store, tmp_path)
    (path / PACKING_JSON).write_text(content)
    (found,) = unfinished_packs(tmp_path)
    assert settings_of(found) is None
    assert found.clean()


def test_no_packer_goes_on_with_what_an_interrupted_removal_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = leave(store, tmp_path)
    (found,) = unfinished_packs(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.clean()
    assert (path / "samples" / "000.npy").exists()
    with PackingFolder(store, tmp_path / "p", SETTINGS) as packing:
        assert not packing.resumed
        assert not (path / "samples").exists()


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        ((), True),  # its packer was killed before it had locked it
        ((PACK_JSON, "mine.txt"), True),
        (("samples", "rows"), True),  # the rest of a pack that was being removed
        (("mine.txt",), False),
        (("samples", "mine.txt"), False),
    ],
)
def test_other_programs_folders_are_left_alone(tmp_path: Path, names: tuple[str, ...], ours: bool):
    path = tmp_path / NAME
    path.mkdir()
    for name in names:
        (path / name).touch()
    assert [each.path for each in unfinished_packs(tmp_path)] == [path] * ours


def test_files_links_and_other_names_are_none(tmp_path: Path):
    (tmp_path / NAME).touch()
    (tmp_path / ".q.0123456789ab.packing").symlink_to(tmp_path)
    (tmp_path / ".p.0123.packing").mkdir()
    (tmp_path / "p.0123456789ab.packing").mkdir()
    assert unfinished_packs(tmp_path) == []

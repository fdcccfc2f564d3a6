"""Remove packs, and what killed packers left.

When not to use it: while a loader replays the pack; its open files stay readable, but it cannot
open others.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import is_free
from gnndrive.store.packed.folder import LOCK, PACKING
from gnndrive.store.packed.format import PACK_JSON, PACKED, Pack, open_pack, packs_of
from gnndrive.store.packed.volumes import failure
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

_UNFINISHED = re.compile(rf"\..+\.[0-9a-f]{{12}}{re.escape(PACKING)}")


def unpack(
    store: Store | str | os.PathLike[str], pack: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Remove a pack of a store, and the folders of unfinished packs beside it that no process
    packs any more.

    Args:
        store: the store, or its path.
        pack: the pack: its path, or the digest of its settings, which is the name of its folder in
            the store. None: the store's only one.

    Returns:
        The folders that were removed.

    Raises:
        ConfigError: there is no such pack, or the store has several and none was named; the message
            lists them.
        StoreError: the folder is no pack, or cannot be removed.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    folder, found = opened.path / PACKED, packs_of(opened)
    target = _target(opened, pack, found)
    unfinished = folder if target is None else target.parent
    removed = [] if target is None else [target]
    removed += [path for path in _unfinished(unfinished) if _belongs(path, target, folder)]
    if not removed:
        raise ConfigError(f"{opened.path} has no pack, so there is nothing to remove")
    for path in removed:
        _remove(path)
    return removed


def _target(store: Store, pack: str | os.PathLike[str] | None, found: list[Pack]) -> Path | None:
    """The pack that is meant; None: the store has none, but perhaps unfinished ones."""
    if pack is None:
        if len(found) > 1:
            raise ConfigError(f"{store.path} has several packs: name one of {_listed(found)}")
        return found[0].path if found else None
    by_name = {each.path.name: each.path for each in found}
    path = by_name.get(os.fspath(pack), Path(os.path.abspath(pack)))
    if not path.is_dir():
        raise ConfigError(f"there is no pack {os.fspath(pack)!r}: the store has {_listed(found)}")
    if path.is_symlink() or path not in by_name.values():
        _check_pack(path)
    return path


def _check_pack(path: Path) -> None:
    """Refuse what is no pack; one of another store, or of an older one, may be removed.

    Raises:
        StoreError: it is none.
    """
    if path.is_symlink():
        raise StoreError(f"{path} is a link: name the folder itself")
    try:
        open_pack(path)
    except StoreError as error:
        raise StoreError(f"{path} is not removed, because it is no pack: {error}") from None


def _listed(found: list[Pack]) -> str:
    return ", ".join(each.path.name for each in found) or "none"


def _unfinished(folder: Path) -> Iterator[Path]:
    """The folders of unfinished packs that no process has locked."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        unfinished = _UNFINISHED.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        if unfinished and (is_free(path / LOCK) or not (path / LOCK).exists()):
            yield path


def _belongs(path: Path, target: Path | None, folder: Path) -> bool:
    """Whether an unfinished pack is the store's, or was to become `target`."""
    return path.parent == folder or (
        target is not None and path.name.startswith(f".{target.name}.")
    )


def _remove(path: Path) -> None:
    """Remove a pack; an interrupted removal leaves what is no pack any more, but an unfinished one.

    Raises:
        StoreError: it cannot be removed.
    """
    hidden = path
    try:
        if (path / PACK_JSON).exists() and not path.name.startswith("."):
            hidden = path.with_name(f".{path.name}.{12 * '0'}{PACKING}")
            if hidden.exists():  # of an earlier removal that was interrupted
                shutil.rmtree(hidden)
            os.rename(path, hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise failure(error, path) from error

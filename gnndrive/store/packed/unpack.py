"""Remove packs, and what killed packers left.

When not to use it: while a loader replays the pack, whose next batches are then errors.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.layout.folder import (
    UnfinishedLayout,
    aside_of,
    put_aside,
    remove_layout,
    unfinished_layouts,
)
from gnndrive.store.layout.kind import FoundLayout
from gnndrive.store.packed.format import PACKED, PACKS, PackInfo
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


def unpack(
    store: Store | str | os.PathLike[str], pack: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Remove a pack of a store, and the folders of unfinished packs beside it that no process
    packs any more. If the store has only a link to the pack, the link is removed.

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
    try:
        return _unpack(opened, pack)
    finally:
        with contextlib.suppress(OSError):  # other packs lie in it
            (opened.path / PACKED).rmdir()


def _unpack(opened: Store, pack: str | os.PathLike[str] | None) -> list[Path]:
    folder, found = opened.path / PACKED, PACKS.of(opened)
    target = _target(opened, pack, found)
    beside = folder if target is None else target.parent
    unfinished = [each for each in _unfinished(beside) if beside == folder or each.target == target]
    if target is None and not unfinished:
        raise ConfigError(f"{opened.path} has no pack, so there is nothing to remove")
    removed = []
    if target is not None and target.is_dir():
        _remove(target)
        removed.append(target)
    for each in unfinished:
        if not each.remove():
            raise StoreError(
                f"{each.path} cannot be removed, or a process packs again: check whose it is, and "
                "call unpack again"
            )
        removed.append(each.path)
    return removed


def _target(
    store: Store, pack: str | os.PathLike[str] | None, found: list[FoundLayout[PackInfo]]
) -> Path | None:
    """The pack that is meant; None: the store has none, but perhaps unfinished ones."""
    if pack is None:
        if len(found) > 1:
            raise ConfigError(f"{store.path} has several packs: name one of {_listed(found)}")
        return found[0].path if found else None
    by_name = {each.target.name: each.target for each in _unfinished(store.path / PACKED)}
    by_name |= {each.path.name: each.path for each in found}
    path = by_name.get(os.fspath(pack), Path(os.path.abspath(pack)))
    if path.is_dir():
        if path not in by_name.values():
            _check_pack(path)
    elif path not in {each.target for each in _unfinished(path.parent)}:
        raise ConfigError(f"there is no pack {os.fspath(pack)!r}: the store has {_listed(found)}")
    return path


def _unfinished(folder: Path) -> list[UnfinishedLayout]:
    """The unfinished packs in a folder that no process makes, and the rests of removed ones."""
    found = unfinished_layouts(folder, PACKS) if folder.is_dir() else []
    return [each for each in found if not each.in_use]


def _check_pack(path: Path) -> None:
    """Refuse what is no pack; one of another store, or of an older one, may be removed."""
    if path.is_symlink():
        raise StoreError(f"{path} is a link: name the folder itself")
    try:
        PACKS.read(path)
    except StoreError as error:
        raise StoreError(f"{path} is not removed, because it is no pack: {error}") from None


def _listed(found: list[FoundLayout[PackInfo]]) -> str:
    return ", ".join(each.path.name for each in found) or "none"


def _remove(path: Path) -> None:
    """Remove a pack; an interrupted removal leaves what is no pack any more, but an unfinished one.
    Of a link to a pack that lies elsewhere, only the link is removed."""
    try:
        put_aside(path, PACKS)
        remove_layout(aside_of(path, PACKS), PACKS)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be removed ({error.strerror or error}): check whose it is, and call "
            "unpack again"
        ) from error

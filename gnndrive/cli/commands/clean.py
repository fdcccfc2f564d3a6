"""`gnndrive clean`: what killed imports, inferences, packers and partitioners left."""

from __future__ import annotations

from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import is_free, remove_if_free
from gnndrive.common.memory import format_size
from gnndrive.inference.unfinished import Unfinished, unfinished
from gnndrive.store.format import STORE_JSON
from gnndrive.store.packed.format import PACKED
from gnndrive.store.packed.unfinished import unfinished_packs
from gnndrive.store.partitioned.folder import unfinished_partitions
from gnndrive.store.partitioned.format import PARTITIONED
from gnndrive.store.temporary_folders import Leftover, leftovers
from gnndrive.store.unfinished_layout import UnfinishedLayout


def run(folder: Path, dry_run: bool = False) -> None:
    """Remove what killed processes have left in `folder`, and print each with its size.

    That are temporary folders and lock files that no process holds, and unfinished inferences,
    packs and partitions in stores. A store that was being replaced, of which nothing else is
    left, is put back.

    Raises:
        ConfigError: there is no such folder.
        StoreError: a temporary folder cannot be removed.
    """
    try:
        folders = leftovers(folder)
        locks = _free_locks(folder, {each.target for each in folders})
        runs = unfinished(folder)
        layouts = _unfinished_layouts(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read ({error.strerror}): give the folder in which the stores lie"
        ) from None
    removed = 0
    every: list[Leftover | Unfinished | UnfinishedLayout] = [*folders, *runs, *layouts]
    for each in every:
        restored = isinstance(each, Leftover) and each.remedy == "restore"
        text = f"remove {each.path}"
        if isinstance(each, Leftover) and restored:
            text = f"restore {each.target} from {each.path}"
        print(f"{format_size(each.nbytes):>8}  {text}")
        if not (dry_run or each.clean()):
            raise StoreError(
                f"{each.path} cannot be removed, or a process uses it: check whose it is, and run "
                "gnndrive clean again"
            )
        removed += 0 if restored else each.nbytes
    for lock in locks:
        print(f"{format_size(0):>8}  remove {lock}")
        if not dry_run:
            remove_if_free(lock)
    found = every or locks
    would = " would be" if dry_run else ""
    print(f"{format_size(removed)}{would} freed" if found else f"nothing to clean in {folder}")


def _unfinished_layouts(folder: Path) -> list[UnfinishedLayout]:
    """Unfinished packs and partitions that no process makes, in `folder` and the stores in it."""
    stores = [each.parent for each in sorted(folder.glob(f"*/{STORE_JSON}"))]
    packed = [folder, *(each / PACKED for each in stores)]
    partitioned = [each / PARTITIONED for each in stores]
    found = [unfinished_packs(each) for each in packed if each.is_dir()]
    found += [unfinished_partitions(each) for each in partitioned if each.is_dir()]
    return [layout for layouts in found for layout in layouts if not layout.in_use]


def _free_locks(folder: Path, targets: set[Path]) -> list[Path]:
    """Lock files of `if_exists` that no process holds, of stores in `folder` and of `targets`.

    Other programs' files may have such names, so no others are listed.
    """
    stores = {each.parent for each in folder.glob(f"*/{STORE_JSON}")}
    names = sorted(each.name for each in targets | stores)
    return [lock for name in names if is_free(lock := folder / f".{name}.lock")]

"""`gnndrive clean`: what killed imports, inferences, packers and partitioners left."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import is_free, remove_if_free
from gnndrive.common.io.small_files import REPLACING
from gnndrive.common.memory import format_size
from gnndrive.inference.unfinished import Unfinished, unfinished
from gnndrive.store.added import DERIVED
from gnndrive.store.format import STORE_JSON
from gnndrive.store.layout.folder import UnfinishedLayout, unfinished_layouts
from gnndrive.store.layout.kinds import KINDS
from gnndrive.store.temporary_folders import LOCK, LOCKED, Leftover, leftovers


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder in which stores lie.")
    ] = Path("."),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove what imports, inferences, packers and partitioners left when they were killed.

    That are temporary folders and lock files that no process holds, and unfinished inferences and
    derived layouts. A store that was being replaced, of which nothing else is left, is put back;
    and a whole layout or inference is put into its place.
    """
    try:
        folders = leftovers(folder)
        files = _free_files(folder)
        runs = unfinished(folder)
        layouts = _unfinished_layouts(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read ({error.strerror}): give the folder in which the stores lie"
        ) from None
    removed = 0
    every: list[Leftover | Unfinished | UnfinishedLayout] = [*folders, *runs, *layouts]
    for each in every:
        restored = each.remedy == "restore"
        text = f"restore {each.target} from {each.path}" if restored else f"remove {each.path}"
        print(f"{format_size(each.nbytes):>8}  {text}")
        if not (dry_run or each.clean()):
            raise StoreError(
                f"{each.path} cannot be removed, or a process uses it: check whose it is, and run "
                "gnndrive clean again"
            )
        removed += 0 if restored else each.nbytes
    for file in filter(Path.exists, files):
        print(f"{format_size(size := file.stat().st_size):>8}  remove {file}")
        removed += size
        if not dry_run:
            remove_if_free(file)
    if not dry_run:
        inside = [DERIVED, *(kind.inside for kind in KINDS)]
        for place in (store / name for store in _stores(folder) for name in inside):
            with contextlib.suppress(OSError):  # it is not empty
                place.rmdir()
    found = every or files
    would = " would be" if dry_run else ""
    print(f"{format_size(removed)}{would} freed" if found else f"nothing to clean in {folder}")


def _unfinished_layouts(folder: Path) -> list[UnfinishedLayout]:
    """Unfinished layouts that no process makes, in `folder` and the stores in it."""
    found: list[UnfinishedLayout] = []
    for kind in KINDS:
        folders = [folder] if kind.anywhere else []
        folders += [each / kind.inside for each in _stores(folder)]
        for each in filter(Path.is_dir, folders):
            found += unfinished_layouts(each, kind)
    return [layout for layout in found if not layout.in_use]


def _free_files(folder: Path) -> list[Path]:
    """Files that no process holds: new ones that should have replaced others (`replace_file`), and
    locks: those of `if_exists`, and those in whole stores and layouts, whose makers were killed at
    their very end.

    Other programs' files may have such names, so no others are listed.
    """
    stores = _stores(folder)
    found = [*sorted(folder.glob(f".*{LOCKED}")), *(store / LOCK for store in stores)]
    for kind in KINDS:
        for store in stores:
            found += sorted(store.glob(f"{kind.inside}/[!.]*/{kind.lock}"))
        if kind.anywhere:
            found += [
                each.with_name(kind.lock) for each in sorted(folder.glob(f"[!.]*/{kind.json}"))
            ]
    for parent, depths in ((folder, ("", "*/")), *((store, ("*/", "*/*/")) for store in stores)):
        for depth in depths:
            found += sorted(parent.glob(f"{depth}.*{REPLACING}"))
    return [each for each in found if is_free(each)]


def _stores(folder: Path) -> list[Path]:
    return [each.parent for each in sorted(folder.glob(f"*/{STORE_JSON}"))]

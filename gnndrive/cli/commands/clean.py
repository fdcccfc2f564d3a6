"""`gnndrive clean`: what imports that were killed have left behind."""

from __future__ import annotations

from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.temporary_folders import leftovers


def run(folder: Path, dry_run: bool = False) -> None:
    """Remove the temporary folders in `folder` that no process holds, and print each with its size.

    A store that was being replaced, of which nothing else is left, is put back.

    Raises:
        ConfigError: there is no such folder.
        StoreError: a temporary folder cannot be removed.
    """
    try:
        found = leftovers(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read ({error.strerror}): give the folder in which the stores lie"
        ) from None
    removed = 0
    for each in found:
        restored = each.remedy == "restore"
        text = f"restore {each.target} from {each.path}" if restored else f"remove {each.path}"
        print(f"{format_size(each.nbytes):>8}  {text}")
        if not (dry_run or each.clean()):
            raise StoreError(
                f"{each.path} cannot be removed, or a process uses it: check whose it is, and run "
                "gnndrive clean again"
            )
        removed += 0 if restored else each.nbytes
    would = " would be" if dry_run else ""
    print(f"{format_size(removed)}{would} freed" if found else f"nothing to clean in {folder}")

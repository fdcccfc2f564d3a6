"""disk.json beside a store: what reading costs on its disk, as `gnndrive bench disk` measured it.

It belongs to the machine, not to the data: opening and verifying a store do not look at it, and
where it is damaged, or was measured on another disk, it counts as not there.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gnndrive.common.atomic_files import replace_file
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import size_or_none
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.store.files import open_plain, read_at_most

if TYPE_CHECKING:
    from gnndrive.store.reader import Store

DISK_JSON = "disk.json"
DEFAULT_GAP_BYTES = 8192  # what most SSDs are near; a calibration says it of this one
# A byte may cost more under load than it was measured to. Where every sixteenth row is wanted, this
# gap costs 5 % too much if a byte is twice as dear, one of 48 KiB 19 %; cheap as it is, 32 KiB gain
# nothing.
GAP_BYTES_MAX = 24576
_VERSION = 1
_JSON_BYTES_MAX = 1 << 16
_GAP_STEP = 512
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


def gap_bytes(cost: DiskCost | None, read_bytes_max: int) -> int:
    """The widest gap between two rows that is cheaper to read than to ask for the second anew.

    Args:
        cost: what reading costs; None: not calibrated.
        read_bytes_max: the largest read.

    Returns:
        `request_s / byte_s`, rounded down to 512 and at most `GAP_BYTES_MAX` and `read_bytes_max`;
        8,192 where `cost` is None.
    """
    if cost is None:
        return min(DEFAULT_GAP_BYTES, read_bytes_max)
    most = min(GAP_BYTES_MAX, read_bytes_max)
    if cost.request_s >= cost.byte_s * most:
        return most
    return int(cost.request_s / cost.byte_s) // _GAP_STEP * _GAP_STEP


def checked_gap(gap: str | int | None, store: Store, read_bytes_max: int) -> int:
    """The widest gap between two rows that is read over, in bytes.

    Args:
        gap: bytes or text; None: what the store's calibration says, else the default.
        store: whose rows.
        read_bytes_max: the largest read.

    Raises:
        ConfigError: `gap` is no size.
    """
    if gap is None:
        return gap_bytes(load_calibration(store), read_bytes_max)
    return size_or_none(gap, "gap")


def load_calibration(store: Store) -> DiskCost | None:
    """What `gnndrive bench disk` measured for this store, on the disk that it lies on now.

    Returns:
        None where there is none, where it was measured on another disk, and, with a RuntimeWarning,
        where it is damaged.
    """
    if not os.path.lexists(store.path / DISK_JSON):
        return None
    try:
        fd = open_plain(store.path, DISK_JSON)
        try:
            content = read_at_most(fd, _JSON_BYTES_MAX + 1)
        finally:
            os.close(fd)
        cost = _parse(content)
    except (OSError, StoreError, *_MALFORMED) as error:
        warnings.warn(
            f"{store.path / DISK_JSON} cannot be used ({type(error).__name__}: {error}): run "
            f"`gnndrive bench disk {store.path}`; until then the defaults serve",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return cost if cost.disk.same_as(disk_identity(store.path)) else None


def save_calibration(store: Store, cost: DiskCost) -> Path:
    """Write disk.json into the store's folder, whole or not at all.

    Raises:
        StoreError: the folder cannot be written to.
    """
    path = store.path / DISK_JSON
    content = json.dumps({"format": _VERSION, **asdict(cost)}, indent=2, allow_nan=False) + "\n"

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o644)
        file.write(content.encode())

    try:
        replace_file(path, write)
    except OSError as error:
        raise not_writable(store, error.strerror or str(error)) from error
    return path


def not_writable(store: Store, reason: str) -> StoreError:
    """What to raise where disk.json cannot be written."""
    return StoreError(
        f"{store.path / DISK_JSON} cannot be written ({reason}): make the store's folder writable "
        "for this, or leave it and give gap= to the loader"
    )


def _parse(content: bytes) -> DiskCost:
    """disk.json's content; what is wrong with it raises one of many errors."""
    if len(content) > _JSON_BYTES_MAX:
        raise ValueError("it is too large")
    stored = json.loads(content)
    if stored["format"] != _VERSION:
        raise ValueError(f"its format is {stored['format']!r}, not {_VERSION}")
    disk = stored["disk"]
    return DiskCost(
        request_s=_seconds(stored["request_s"]),
        byte_s=_seconds(stored["byte_s"]),
        depth=int(stored["depth"]),
        engine=_text(stored["engine"]),
        date=_text(stored["date"]),
        disk=DiskIdentity(
            *(_text(disk[name]) for name in ("number", "model", "serial", "file_system"))
        ),
        points=tuple((int(nbytes), _seconds(seconds)) for nbytes, seconds in stored["points"]),
    )


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of seconds")
    if not (math.isfinite(value) and 0 <= value < 1e6):
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{value!r} is no text")
    return value


# ---- which disk


def disk_identity(folder: Path) -> DiskIdentity:
    """The disk that a folder is on, as far as the kernel tells."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path(os.path.realpath(f"/sys/dev/block/{number}"))
    if (block / "partition").exists():
        block = block.parent
    return DiskIdentity(
        number=number,
        model=_first_line(block / "device" / "model"),
        serial=_first_line(block / "serial") or _first_line(block / "device" / "serial"),
        file_system=_file_system(os.path.realpath(folder)),
    )


def _first_line(path: Path) -> str:
    try:
        text = path.read_bytes()[:200].decode("ascii", "replace")
    except OSError:
        return ""
    return "".join(letter for letter in text.strip() if letter.isprintable())


def _file_system(folder: str) -> str:
    """The type of the file system that holds `folder`, from the longest mount point above it."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found, longest = "", -1
    for line in lines.splitlines():
        mount, _, source = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape").rstrip("/")
        if (folder + "/").startswith(point + "/") and len(point) >= longest:
            found, longest = source.split()[0], len(point)
    return found

"""disk.json in a store's folder: what its disk takes to read and write, measured by `gnndrive bench
disk`.

It describes the machine; one that was measured on another disk is treated as missing (`cache.py`).
"""

from __future__ import annotations

import math
import os
import shlex
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnndrive.common.errors import StoreError
from gnndrive.common.memory import size_or_none
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.store.cache import load_json, save_json

if TYPE_CHECKING:
    from gnndrive.store.reader import Store

DISK_JSON = "disk.json"
DEFAULT_GAP_BYTES = 8192  # close to the best gap of most SSDs; used without a calibration
# Under load a byte can cost more than the calibration measured. If it costs twice as much and every
# sixteenth row is read, this maximum costs 5 % more than the best gap, and 48 KiB would cost 19 %
# more. If it costs what was measured, 32 KiB would gain nothing.
GAP_BYTES_MAX = 24576
_VERSION = 1
_JSON_BYTES_MAX = 1 << 16
_GAP_STEP = 512
_MALFORMED = (StoreError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def gap_bytes(cost: DiskCost | None, read_bytes_max: int) -> int:
    """The widest gap between two rows that costs less to read than a second request: `request_s /
    byte_s`, rounded down to 512 and at most `GAP_BYTES_MAX` and `read_bytes_max`. A `cost` of None
    is not calibrated: 8,192."""
    if cost is None:
        return min(DEFAULT_GAP_BYTES, read_bytes_max)
    most = min(GAP_BYTES_MAX, read_bytes_max)
    if cost.request_s >= cost.byte_s * most:
        return most
    return int(cost.request_s / cost.byte_s) // _GAP_STEP * _GAP_STEP


def checked_gap(gap: str | int | None, store: Store, read_bytes_max: int) -> int:
    """The widest gap between two rows that is read over, in bytes, of what a user gave: bytes, or a
    text such as "8KiB"; None: what the store's calibration says, or the default if there is none.

    Raises:
        ConfigError: `gap` is not a size.
    """
    if gap is None:
        return gap_bytes(load_calibration(store), read_bytes_max)
    return size_or_none(gap, "gap")


def load_calibration(store: Store) -> DiskCost | None:
    """The costs in a store's disk.json; None: there is none, it was measured on another disk than
    the store is on now, or it is damaged.

    Warns:
        RuntimeWarning: disk.json is damaged.
    """
    try:
        stored = load_json(store, DISK_JSON, _JSON_BYTES_MAX)
        if stored is None:
            return None
        cost = _parse(stored)
    except _MALFORMED as error:
        warnings.warn(
            f"{store.path / DISK_JSON} cannot be used ({type(error).__name__}: {error}): run "
            f"`{calibrate_command(store)}`; until then the defaults are used",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return cost if cost.disk.same_as(disk_identity(store.path)) else None


def calibrate_command(store: Store) -> str:
    """The command that measures the costs of a store's disk."""
    return f"gnndrive bench disk {shlex.quote(str(store.path))}"


def save_calibration(store: Store, cost: DiskCost) -> Path:
    """Write disk.json into the store's folder, whole or not at all; return its path. StoreError:
    the folder cannot be written to."""
    try:
        save_json(store, DISK_JSON, {"format": _VERSION, **asdict(cost)})
    except OSError as error:
        raise not_writable(store, error.strerror or str(error)) from error
    return store.path / DISK_JSON


def not_writable(store: Store, reason: str) -> StoreError:
    """The error for a disk.json that cannot be written for `reason`."""
    return StoreError(
        f"{store.path / DISK_JSON} cannot be written ({reason}): make the store's folder writable "
        "for this, or leave it and give tuning=Tuning(gap=…) to the loader"
    )


def _parse(stored: Any) -> DiskCost:
    """Parse disk.json's content; raises one of `_MALFORMED` if it is damaged."""
    if stored["format"] != _VERSION:
        raise ValueError(f"its format is {stored['format']!r}, not {_VERSION}")
    disk, write_byte_s = stored["disk"], stored.get("write_byte_s")
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
        write_byte_s=None if write_byte_s is None else _seconds(write_byte_s),
    )


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number of seconds")
    if not (math.isfinite(value) and 0 <= value < 1e6):
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{value!r} is not printable text")
    return value


# ---- which disk


def disk_identity(folder: Path) -> DiskIdentity:
    """The disk that a folder is on; what the kernel does not tell is ""."""
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

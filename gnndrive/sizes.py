"""Sizes as people write them: "8GB" is 8·10⁹ bytes, "8GiB" 8·2³⁰."""

from __future__ import annotations

import re

from gnndrive.errors import ConfigError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)}


def parse_size(size: str | int | float, name: str) -> int:
    """Bytes in `size`, a number of bytes or a text such as "288MB", "1.5 GiB".

    Args:
        size: what the user gave.
        name: the argument's name, for the error.

    Raises:
        ConfigError: it is no size, or not positive.
    """
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise ConfigError(f'{name}={size!r} is no size: give bytes or a text such as "8GB"')
    if not isinstance(size, str):
        count = float(size)
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", size)
        if not match or match[2].upper() not in _UNITS:
            raise ConfigError(f'{name}={size!r} is no size: write it as "8GB", "512MiB" or bytes')
        count = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= count < 2**63:
        raise ConfigError(f"{name}={size!r} is not a positive number of bytes")
    return int(count)


def parse_block_size(size: str | int, name: str) -> int:
    """Bytes in `size` as fio writes them, each prefix a power of 1,024: "512", "4k", "64k", "1m".

    Args:
        size: what the user gave.
        name: the argument's name, for the error.

    Raises:
        ConfigError: it is no such size, or 0.
    """
    match = re.fullmatch(r"([0-9]+)([kmgt]?)b?", str(size).strip().lower())
    count = int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else 0
    if not 1 <= count < 2**63:
        raise ConfigError(f"{name}={size!r} is no size as fio takes them: write 512, 4k, 1m or 2g")
    return count


def format_size(count: float) -> str:
    """Bytes in the largest decimal unit that leaves at least one: "1.28 GB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"

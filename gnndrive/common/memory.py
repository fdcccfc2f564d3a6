"""Sizes as people write them ("8GB" and "8G" are 8·10⁹ bytes, "8GiB" 8·2³⁰), the available memory,
and what glibc keeps of the memory that the process has freed.

By default threads that sample or gather batches each have a heap of their own, and what they free
stays in it: some hundred MB, which no plan counts. malloc_trim returns the free end of the main
thread's heap alone; of each other heap glibc keeps up to 64 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable
from decimal import Decimal

from gnndrive.common.errors import ConfigError

_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {_prefix: 1000**_power, f"{_prefix}B": 1000**_power}
    _UNITS |= {f"{_prefix}I": 1024**_power, f"{_prefix}IB": 1024**_power}

_OF_THE_HOST = ("memory", "packing_memory", "buffer")  # arguments that may be a part of its memory

_M_ARENA_MAX = -8  # malloc.h
_FLOAT_LEAST = 1024  # a smaller number with a decimal point is not meant as bytes


def parse_size(size: str | int | float, name: str) -> int:
    """Bytes in `size`, a positive number of bytes or a text such as "288MB", "1.5 GiB", "8G", or,
    if it is for the host's memory, "50%" of `process_memory`; `name` is the argument's, also for
    the error."""
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise ConfigError(f'{name}={size!r} is no size: give bytes or a text such as "8GB"')
    count: float | Decimal
    if isinstance(size, float) and size < _FLOAT_LEAST:
        raise ConfigError(_as_bytes(name, size, f"{size:g}"))
    if not isinstance(size, str):
        count = float(size)
    elif is_share(size):
        count = _share(size, name)
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", size)
        if not match or match[2].upper() not in _UNITS:
            raise ConfigError(f'{name}={size!r} is no size: write it as "8GB", "512MB" or bytes')
        count = Decimal(match[1]) * _UNITS[match[2].upper()]  # "1.001KB" is 1,001 bytes
        if not match[2] and "." in match[1] and count < _FLOAT_LEAST:
            raise ConfigError(_as_bytes(name, size, match[1]))
    if not 1 <= count < 2**63:
        raise ConfigError(f"{name}={size!r} is not a positive number of bytes")
    return int(count)


def _as_bytes(name: str, size: str | float, text: str) -> str:
    """The message for a number that is not meant as bytes."""
    share = f' or "{100 * float(text):g}%" for a part of the memory' if float(text) <= 1 else ""
    return f'{name}={size!r} is a number of bytes: write "{text}GB" for gigabytes{share}'


def is_share(size: object) -> bool:
    """Whether a size is a text such as "50%"."""
    return isinstance(size, str) and size.strip().endswith("%")


def _share(size: str, name: str) -> float:
    """Bytes of a part of this process's memory."""
    if name.removeprefix("--").replace("-", "_") not in _OF_THE_HOST:
        raise ConfigError(f'{name}={size!r}: only memory= and buffer= can be "50%"; give bytes')
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", size)
    if not match or not 0 < float(match[1]) <= 100:
        raise ConfigError(f'{name}={size!r} is no share: give more than "0%" and at most "100%"')
    return float(match[1]) / 100 * process_memory()


def size_or_none(size: str | int | float, name: str) -> int:
    """Bytes of a size that may be 0, in any unit; see `parse_size`."""
    zero = re.fullmatch(r"\s*0*\.?0+\s*([A-Za-z]*)\s*", str(size))
    if zero and zero[1].upper() in _UNITS:
        return 0
    return parse_size(size, name)


def given_size(size: str | int | float | None, name: str) -> int | None:
    """Bytes of a size; None: it is not given. See `parse_size`."""
    return None if size is None else parse_size(size, name)


def parse_block_size(size: str | int, name: str) -> int:
    """Bytes in a positive `size` as fio writes them, each prefix a power of 1,024: "512", "4k",
    "64k", "1m"; `name` is the argument's, for the error."""
    match = re.fullmatch(r"([0-9]+)([kmgt]?)b?", str(size).strip().lower())
    count = int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else 0
    if not 1 <= count < 2**63:
        raise ConfigError(f"{name}={size!r} is no size as fio takes them: write 512, 4k, 1m or 2g")
    return count


def format_size(count: float, beside: float | None = None) -> str:
    """Bytes in the largest decimal unit that leaves at least one: "1.28 GB"; with more digits if it
    is compared with `beside`, and both would look the same."""
    digits = 3
    if beside is not None and beside != count:
        while digits < 16 and _size(count, digits) == _size(beside, digits):
            digits += 1
    return _size(count, digits)


def _size(count: float, digits: int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.{digits}g} {unit}"
        count /= 1000
    return f"{count:.{digits}g} TB"


def least_text(count: int) -> str:
    """A text for at least `count` bytes, to be given as an argument: four digits, rounded up."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= unit:
            digits = 10 ** max(4 - len(str(count // unit)), 0)
            return f"{-(-count * digits // unit) / digits:g}{name}"
    return str(count)


def exact_text(count: int) -> str:
    """A text for exactly `count` bytes, to be given as an argument."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= unit and not count % (unit // 1000):
            return f"{count / unit:.3f}".rstrip("0").rstrip(".") + name
    return str(count)


def require_memory(memory: int, least: int, what: str) -> None:
    """Raise ConfigError unless `memory` bytes suffice for `what`, "to pack 5 rows"."""
    if memory < least:
        raise ConfigError(
            f"memory={format_size(memory, least)} is too little {what}: give at least "
            f"{least_text(least)}"
        )


def available_memory() -> int:
    """Bytes that this process may still use: the machine's available memory, or what its cgroup has
    left if that is less."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    return min(available, _of_cgroup(_left_in_group))


def process_memory() -> int:
    """Bytes that this process may have in all: the machine's memory, or its cgroup's limit if that
    is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, _of_cgroup(_limit_of_group))


def _of_cgroup(bytes_of: Callable[..., int]) -> int:
    """The least that `bytes_of` says of this process's memory cgroups."""
    limit = 2**63 - 1
    try:
        with open("/proc/self/cgroup", encoding="ascii") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return limit
    for _, controllers, path in groups:
        if controllers == "":
            folder, names = f"/sys/fs/cgroup{path}", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            folder = f"/sys/fs/cgroup/memory{path}"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        try:
            limit = min(limit, bytes_of(folder, *names))
        except (OSError, ValueError):
            continue  # no such file at the root, or "max"
    return limit


def _left_in_group(folder: str, limit_file: str, usage_file: str, prefix: str) -> int:
    """Bytes that a memory cgroup has left; the kernel drops its page cache where it must. OSError
    or ValueError if it has no limit."""

    limit, used = _number(folder, limit_file), _number(folder, usage_file)
    with open(f"{folder}/memory.stat", encoding="ascii") as lines:
        stat = dict(line.split() for line in lines if line.strip())
    cache = sum(int(stat.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
    return max(limit - max(used - cache, 0), 0)


def _limit_of_group(folder: str, limit_file: str, usage_file: str, prefix: str) -> int:
    """The limit of a memory cgroup; raises what `_left_in_group` does."""
    return _number(folder, limit_file)


def _number(folder: str, name: str) -> int:
    with open(f"{folder}/{name}", encoding="ascii") as text:
        return int(text.read())


def share_one_heap() -> None:
    """Let threads that start from now on, the user's too, share the heaps that there are: that of
    the main thread, unless other threads have made some. What one thread frees the next one uses.

    Large blocks cost the same as before, and hardly any thread waits for another to allocate. Once
    nine heaps exist glibc ignores it.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return what is free at this moment in the heap of the main thread, and between blocks in
    those of others. Takes some milliseconds, and memory that is needed again costs page faults:
    call it once a plan is made or a loader is closed, and for each batch only where large
    temporaries would leave ever more holes.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

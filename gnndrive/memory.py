"""How much memory there is."""

from __future__ import annotations

import os


def available_memory() -> int:
    """Bytes that this process may still use: the machine's available memory or its cgroup's limit,
    if less.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    return min(available, _cgroup_limit())


def _cgroup_limit() -> int:
    limit = 2**63 - 1
    try:
        with open("/proc/self/cgroup", encoding="ascii") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return limit
    for _, controllers, path in groups:
        if controllers == "":
            file = f"/sys/fs/cgroup{path}/memory.max"
        elif "memory" in controllers.split(","):
            file = f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"
        else:
            continue
        try:
            with open(file, encoding="ascii") as text:
                limit = min(limit, int(text.read()))
        except (OSError, ValueError):
            continue  # no such file at the root, or "max"
    return limit

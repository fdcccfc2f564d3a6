"""What a process may use of its host: the memory that is left for a loader without a budget, and
the threads of a gather.

`plan/` asks `left_memory` for the default's share; a loader's runtime claims what its plan counts
from its start until it is closed (`claim`). A feature buffer fills within the first batches, so
what is available now says nothing about what a loader that was just started will use.
"""

from __future__ import annotations

import itertools
import os
import threading

import torch

from gnndrive.common.memory import available_memory

GATHER_THREADS = 4  # more copy hardly faster (native/gather.c)

_lock = threading.Lock()
_claims: dict[int, int] = {}  # bytes by number
_numbers = itertools.count()
_before = 0  # this process's own memory when the first of the claims was made


def claim(nbytes: int) -> int:
    """Claim what a loader that starts will use, with this rank's part of what ranks share; return
    the claim's number, for `release`."""
    global _before
    own = _own_bytes()
    with _lock:
        if not _claims:
            _before = own
        number = next(_numbers)
        _claims[number] = nbytes
        return number


def release(number: int) -> None:
    """Give back a claim; idempotent. Takes no lock: a finalizer may call it wherever garbage is
    collected, and wait for the loop that does."""
    _claims.pop(number, None)


def left_memory(ranks: int) -> int:
    """Bytes of host memory that are left for another loader of `ranks` ranks of this host together.

    Each rank of the host has an equal part of what is available, and memory that its live loaders
    claim and have not used yet is not left of it. Other ranks are taken to have the same loaders.
    """
    on_host = max(local_ranks(), ranks)
    unused = 0
    if claimed := sum(list(_claims.values())):
        unused = max(claimed - max(_own_bytes() - _before, 0), 0)
    return max(ranks * available_memory() // on_host - ranks * unused, 0)


def local_ranks() -> int:
    """The number of ranks of this process's group on this host; 1 if there is no group.

    torchrun says it in LOCAL_WORLD_SIZE. Else all ranks of a group whose master is this host are
    taken for ranks on it.
    """
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    distributed = torch.distributed
    on_host = os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1")
    if on_host and distributed.is_available() and distributed.is_initialized():
        return max(int(distributed.get_world_size()), 1)
    return 1


def gather_threads() -> int:
    """The most threads in which a gather copies rows. All ranks on this host together start about
    as many as one process would, because they share its processors and its memory's bandwidth."""
    return max(GATHER_THREADS // local_ranks(), 1)


def _own_bytes() -> int:
    """Bytes of this process's memory without mapped files; shared memory counts as an equal part
    for each rank of this host."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            fields = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
        own, shared = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, ValueError):
        return 0
    return own + shared // local_ranks()

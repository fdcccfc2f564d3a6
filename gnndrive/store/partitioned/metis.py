"""Partitioning by METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998), through pymetis, an extra.

METIS cuts the fewest edges. It holds the graph in memory several times over, may abort its process
when memory runs out, and tells no progress, so it runs in a child process (metis_child.py). When
not to use it: for graphs of more than some ten million edges; LDG (ldg.py) cuts hardly more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array
from gnndrive.store.partitioned.arrays import remove
from gnndrive.store.partitioned.symmetric import SymmetricLists

METIS = "METIS"  # the phase, for progress
BYTES_AN_ENTRY = 88
OUT = "metis.part"
_CHILD = Path(__file__).with_name("metis_child.py")
_INSTEAD = "give method='ldg'"
_LINES = 3  # of what a failed child said


def is_there() -> bool:
    """Whether pymetis can be imported."""
    return find_spec("pymetis") is not None


def check_there() -> None:
    """Raise ConfigError if pymetis cannot be imported."""
    if not is_there():
        raise ConfigError(
            "method='metis' needs pymetis: install it with pip install 'gnndrive[metis]', or "
            f"{_INSTEAD}"
        )


def memory_of(entries: int) -> int:
    """Bytes that METIS takes, at most, for symmetric lists of so many entries."""
    return BYTES_AN_ENTRY * entries


def assign_metis(
    lists: SymmetricLists, folder: Path, nodes: int, parts: int, seed: int, memory: int,
    report: Progress,
) -> Int32Array:  # fmt: skip
    """Assign all nodes in a child process, which ends with this call and leaves its result in
    `folder`; some partitions may be empty. `lists` are in a file; METIS takes the lowest 31 bits of
    `seed`. ConfigError: `memory` is too little, or the child failed."""
    if memory < (least := memory_of(lists.entries)):
        raise ConfigError(
            f"memory={format_size(memory, least)} is too little for METIS, which takes "
            f"{BYTES_AN_ENTRY} bytes for each of {lists.entries:,} neighbours: give at least "
            f"{least_text(least)}, or {_INSTEAD}"
        )
    report(METIS, 0, 1)
    out = folder / OUT
    remove(out)
    words = [lists.path, lists.index_bytes, nodes, parts, seed & 0x7FFFFFFF, out, os.getpid()]
    _run([str(word) for word in words])
    try:
        part = np.fromfile(out, np.int32)
    except OSError as error:
        raise write_failure(out, error) from error
    if part.shape != (nodes,) or (nodes and not 0 <= part.min() <= part.max() < parts):
        raise StoreError(f"METIS has left no partitions of {nodes:,} nodes: {_INSTEAD}")
    report(METIS, 1, 1)
    return part


def _run(words: list[str]) -> None:
    """Run the child to its end; kill it if this call is interrupted."""
    paths = os.pathsep.join(filter(None, sys.path))  # where this process would find pymetis
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"METIS cannot be started ({error}): {_INSTEAD}") from error
    try:
        said, _ = child.communicate()
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise ConfigError(_failure(child.returncode, said.decode(errors="replace")))


def _failure(code: int, said: str) -> str:
    """What to say of a child that failed."""
    how = f"failed (exit status {code})"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        if -code in (signal.SIGKILL, signal.SIGABRT):
            how += ", probably because memory ran out"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = f"; it said: {' / '.join(lines[-_LINES:])}" if lines else ""
    return f"METIS {how}: {_INSTEAD}, or fewer parts, or more memory{told}"

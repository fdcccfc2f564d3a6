"""`run_loading`: load batches in a process of its own, with cold files, perhaps under a limit.

`compare.py` and `bench_strategies.py` compare loaders with it. `loading.py` is what the process
does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.loading import Loaded, Loading
from gnndrive.cli.measure.memory_limit import Cgroup
from gnndrive.cli.measure.page_cache import drop_file
from gnndrive.common.errors import GNNDriveError

PROGRAM = "gnndrive.cli.commands.loading"


class LoadingFailed(GNNDriveError):
    """The process could not load the batches; the message is the reason."""


def drop_cached(folders: Iterable[Path]) -> None:
    """Drop all arrays in these folders from the page cache; see `drop_file`."""
    for folder in folders:
        for path in sorted(folder.rglob("*.npy")):
            drop_file(path)


def run_loading(
    given: Loading, limit: Cgroup | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Loaded:  # fmt: skip
    """Load batches in a process of its own; it ends when this call does, whatever happens.

    Args:
        given: what to load.
        limit: a memory limit for the process.
        progress: called as progress(done, total) after each batch.

    Raises:
        LoadingFailed: it failed, or was killed.
    """
    command = [sys.executable, "-m", PROGRAM, json.dumps(asdict(given))]
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    last: dict[str, Any] = {}
    with nullcontext() if limit is None else limit.run() as run, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command if run is None else run.command(command),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment,
            process_group=0,  # Ctrl-C reaches only this process, which ends the child
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                last = json.loads(line)
                if "done" in last:
                    progress(last["done"], given.warm_up + given.batches)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        said.seek(0)
        complaint = said.read().decode(errors="replace").strip()
    if "failed" in last:
        raise LoadingFailed(last["failed"])
    if code or "seconds" not in last:
        raise LoadingFailed(_why(code, complaint, limit is not None))
    if complaint:
        print(complaint, file=sys.stderr)
    return Loaded(**last)


def _why(code: int, complaint: str, limited: bool) -> str:
    if code == -signal.SIGKILL:
        return "killed, probably by the memory limit" if limited else "killed (signal 9)"
    end = f"its process ended with {code}"
    return f"{end}: {complaint.splitlines()[-1]}" if complaint else end

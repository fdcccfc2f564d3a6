"""Starts ranks as processes: `Starter` in the test, and the process that forks the ranks for it.

That process has no threads, and has imported everything (tests/forked.py). Ranks have a group of
torch.distributed over files, and a process group of the system for themselves, as those that a
terminal starts. Each rank runs a function of `programs.py` or `strangers.py`, and has nothing of
the host service left at its end.

The forking process adopts the orphans of its ranks, that is host services whose rank has ended, so
that it knows when everything that a run started has ended, and how.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from tests.forked import Program
from tests.host.processes import programs
from tests.project_files import ROOT

PACKAGE = "tests.host.processes"
LIMIT_S = 120  # against processes that never end
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ended:
    """A run of several ranks, all processes of which have ended.

    Attributes:
        results: what each rank's function returned; None: it did not return.
        statuses: the exit status of each rank; −N: signal N has killed it.
        orphans: the exit statuses of other processes that outlived their parents.
        outputs: what each rank, and the processes that it started, have printed.
    """

    results: list[Any]
    statuses: list[int]
    orphans: list[int]
    outputs: list[str]


class Starter:
    """Runs ranks; a context manager."""

    def __init__(self) -> None:
        code = f"from {__name__} import main; main()"
        self._process = Program(code, environment={"PYTHONPATH": str(ROOT)})

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate()
        self._process.__exit__(None, None, None)

    def run(self, program: str, world: int, folder: Path, **arguments: Any) -> Ended:
        """Run a function, such as "programs.much", in each of `world` ranks, until all processes
        have ended; they leave in `folder` what they print and return."""
        asked = {"program": program, "world": world, "folder": str(folder), "given": arguments}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], LIMIT_S)[0]:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                each.kill()
            outputs = [path.read_text() for path in sorted(folder.glob("output-*"))]
            raise AssertionError("\n".join(["the processes do not end", *outputs]))
        ended: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        results = [folder / f"result-{rank}" for rank in range(world)]
        return Ended(
            [json.loads(path.read_text()) if path.exists() else None for path in results],
            ended["ranks"],
            ended["orphans"],
            [(folder / f"output-{rank}").read_text() for rank in range(world)],
        )


# ---- the process that forks ranks


def main() -> None:
    """Run ranks for a `Starter`, as often as it asks."""
    import_module(f"{PACKAGE}.strangers")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # ranks share this memory as long as no collection of theirs writes into it
    for line in sys.stdin:
        asked = json.loads(line)
        ranks: list[int] = []
        for rank in range(asked["world"]):
            process = os.fork()
            if process == 0:
                _be_rank(rank, asked)
            ranks.append(process)
            os.setpgid(process, ranks[0])
        statuses = dict(_ended_children())
        others = [status for process, status in statuses.items() if process not in ranks]
        print(json.dumps({"ranks": [statuses[each] for each in ranks], "orphans": others}))
        sys.stdout.flush()


def _ended_children() -> Any:
    while True:
        try:
            process, status = os.wait()
        except ChildProcessError:
            return
        yield process, os.waitstatus_to_exitcode(status)


def _be_rank(rank: int, asked: Mapping[str, Any]) -> None:
    """Run a rank's function in this forked child, and exit as a script does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(asked["folder"])
    output = os.open(folder / f"output-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, empty), (1, output), (2, output)):
        os.dup2(source, target)
    os.close(output)
    os.close(empty)
    try:
        result = _run(asked["program"], rank, asked["world"], folder, asked["given"])
        (folder / f"result-{rank}").write_text(json.dumps(result))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit()


def _run(program: str, number: int, world: int, folder: Path, given: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(world)
    rendezvous, limit = f"file://{folder}/rendezvous", timedelta(minutes=2)
    dist.init_process_group("gloo", rendezvous, limit, rank=number, world_size=world)
    module, name = program.split(".")
    rank = programs.Rank(number, world, folder)
    try:
        result = getattr(import_module(f"{PACKAGE}.{module}"), name)(rank, **given)
    finally:
        dist.destroy_process_group()
    assert programs.left_behind() == []
    return result

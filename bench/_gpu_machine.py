"""Describe a machine with a GPU, its disk and what it allows, as JSON.

usage: python bench/_gpu_machine.py FOLDER [--rehearse]      (FOLDER: where the graph will lie)
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _gpu import fake_or_real
from _limits import tried_limit

from gnndrive.buffer.devices._kernels import UNITS, code
from gnndrive.common.memory import format_size
from gnndrive.disk.engines import why_not_uring

ROOT = Path(__file__).resolve().parent.parent
ASKED = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"
SMI = ["nvidia-smi", "--format=csv,noheader", f"--query-gpu={ASKED}"]
TRIED_BYTES = 2 << 30  # a memory limit that is only tried


def said(*command: str) -> str:
    """What a command prints, in one line, or why it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return " ".join(done.stdout.split())


def commit() -> str:
    """The commit of the tree that this file lies in, or of the tree that made the bundle."""
    file = ROOT / "commit"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    return said("git", "-C", str(ROOT), "rev-parse", "HEAD")


def cupy_version() -> str:
    import cupy

    return str(cupy.__version__)


def kernel() -> str:
    """A name of the kernel that moves rows, another one for each source."""
    return hashlib.sha256("".join(map(code, UNITS)).encode()).hexdigest()[:12]


def limits() -> str:
    """Whether the memory of a loader can be limited here, and how."""
    with tried_limit(TRIED_BYTES, everything=False) as (group, text):
        return text if group is None else f"can be limited ({text})"


def gpu_name(rehearse: bool) -> str:
    if rehearse:
        return "a fake GPU"
    if not torch.cuda.is_available():
        return "none that torch sees"
    return f"{torch.cuda.get_device_name()} (nvidia-smi: {said(*SMI)})"


def describe(folder: Path, rehearse: bool) -> dict[str, Any]:
    """Describe the machine; a question that fails is answered by its error."""
    reason = why_not_uring()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    space = os.statvfs(folder)
    questions: dict[str, Callable[[], Any]] = {
        "date": lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "gpu": lambda: gpu_name(rehearse),
        "torch": lambda: f"{torch.__version__}, CUDA {torch.version.cuda}",
        "cupy": cupy_version,
        "moved_by": kernel,
        "python": lambda: sys.version.split()[0],
        "kernel": lambda: f"{platform.release()}, {platform.machine()}",
        "cores": lambda: len(os.sched_getaffinity(0)),
        "memory": lambda: format_size(pages),
        "disk": lambda: f"{format_size(space.f_bavail * space.f_frsize)} free",
        "mount": lambda: said(
            "findmnt", "-n", "-T", str(folder), "-o", "TARGET,SOURCE,FSTYPE,OPTIONS"
        ),
        "queues": lambda: os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "8"),
        "engine": lambda: "uring" if reason is None else "threads",
        "why_threads": lambda: reason or "",
        "limits": limits,
    }
    found: dict[str, Any] = {"rehearsal": rehearse}
    for name, ask in questions.items():
        try:
            found[name] = ask()
        except Exception as error:  # a machine may refuse anything
            found[name] = f"unknown ({error})"
    return found


def main() -> None:
    folder, *flags = sys.argv[1:]
    rehearse = flags == ["--rehearse"]
    with fake_or_real(rehearse):
        json.dump(describe(Path(folder), rehearse), sys.stdout, indent=2)


if __name__ == "__main__":
    main()

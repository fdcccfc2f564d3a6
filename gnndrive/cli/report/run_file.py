"""A RUN.json: what a command's `--json` prints, and what `gnndrive report` makes a page of.

It is one object. `run_envelope` makes the keys that all kinds have; each command adds sections of
its own, and a reader ignores what it does not know. Nothing here reads such a file.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from importlib.metadata import version
from typing import Any, Literal

import torch

from gnndrive.plan.plan import Plan

Kind = Literal["train", "strategies", "headroom", "plan"]

_words: ContextVar[Sequence[str] | None] = ContextVar("words", default=None)


@contextmanager
def typed(words: Sequence[str] | None) -> Iterator[None]:
    """A context in which `run_envelope` names the command of these words, which come after the
    program's name; None: those of sys.argv."""
    token = _words.set(words)
    try:
        yield
    finally:
        _words.reset(token)


def run_envelope(kind: Kind) -> dict[str, Any]:
    """The keys that every RUN.json has; `kind`: which sections a reader may expect."""
    words = _words.get()
    return {
        "gnndrive": version("gnndrive"),
        "kind": kind,
        "command": shlex.join(["gnndrive", *(sys.argv[1:] if words is None else words)]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "processors": os.cpu_count() or 1,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }


def plan_section(plan: Plan) -> dict[str, Any]:
    """The section "plan": what a plan says of each use of memory."""
    uses = (("host", plan.lines), ("device", plan.device_lines))
    return {
        "memory": plan.memory,
        "items": [
            {"what": item.what, "bytes": item.nbytes, "why": item.why, "where": where}
            for where, items in uses
            for item in items
        ],
        "text": str(plan),
    }

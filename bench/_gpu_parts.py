"""Parts of bench/gpu_all.py: each is a command with a time limit, and leaves its result in a file.

A part that fails, hangs or is killed leaves its error, and the others go on.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import _script

ROOT = Path(__file__).resolve().parent.parent
STOPS = (signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)
"""How a process is ended, and the seconds that it has for that."""
TAIL = 3  # lines of each output that an error quotes

Result: TypeAlias = dict[str, Any]


class Child(Protocol):
    """A command that runs."""

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or None: it had not ended after `seconds` and was stopped."""

    def stop(self) -> None:
        """Stop it with all processes that it started; idempotent."""

    def output(self) -> tuple[str, str]:
        """What it printed to standard output and to standard error; called once, at its end."""


class Process:
    """A command in a process group of its own, so that it can be stopped with its children.

    It is asked to end as by Ctrl-C first: pytest then still writes its report.

    Args:
        command: the program and its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._files = [tempfile.TemporaryFile("w+b") for _ in range(2)]  # noqa: SIM115
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        self._child = subprocess.Popen(
            command, cwd=ROOT, env=environment, process_group=0, stdin=subprocess.DEVNULL,
            stdout=self._files[0], stderr=self._files[1],
        )  # fmt: skip

    def wait(self, seconds: float) -> int | None:
        """See `Child.wait`."""
        try:
            return self._child.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.stop()
            return None

    def stop(self) -> None:
        """See `Child.stop`."""
        if self._child.poll() is not None:
            return
        for number, grace_s in STOPS:
            with contextlib.suppress(ProcessLookupError):  # the last of them has ended
                os.killpg(self._child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace_s)

    def output(self) -> tuple[str, str]:
        """See `Child.output`."""
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return texts[0], texts[1]


class Parts:
    """Runs parts one after the other, within one time, and keeps their results in a file.

    Args:
        out: folder of the results; it exists.
        seconds: the time for all parts.
        head: what `results` holds at first.
        start: starts a command.
        clock: seconds.
        changed: called after each part.

    Attributes:
        results: `head`, and in `parts` by name: the command, when it began, seconds, exit status,
            the result, and an error or "".
    """

    def __init__(
        self,
        out: Path,
        seconds: float,
        head: Result,
        start: Callable[[Sequence[str]], Child] = Process,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.results: Result = {"parts": {}} | head
        self._out, self._start, self._clock, self._changed = out, start, clock, changed
        self._ends = clock() + seconds
        self._running: dict[str, tuple[Child, list[str], float, str]] = {}

    def left(self) -> float:
        """Seconds that are left for all parts."""
        return self._ends - self._clock()

    def run(self, name: str, command: Sequence[str], most_s: float, file: str = "") -> Result:
        """Run a part; see `begin` and `end`."""
        self.begin(name, command)
        return self.end(name, most_s, file)

    def begin(self, name: str, command: Sequence[str]) -> None:
        """Start a part; `end` waits for it."""
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        started = self._clock()
        self._running[name] = self._start(command), list(command), started, began

    def end(self, name: str, most_s: float, file: str = "") -> Result:
        """Wait for a part, at most `most_s` seconds and at most until all time is used up.

        Args:
            name: the part.
            most_s: seconds.
            file: name of a JSON file below `out` that holds its result; "": its output, if that is
                JSON.

        Returns:
            Its result, {} if it left none.
        """
        child, command, started, began = self._running[name]
        limit = min(most_s, self.left())
        status = child.wait(limit)
        seconds = self._clock() - started
        printed, errors = child.output()
        del self._running[name]
        part: Result = {
            "command": shown(command), "began": began, "seconds": seconds, "status": status,
            "result": self._result(file, printed), "error": "",
        }  # fmt: skip
        if status is None:
            part["error"] = f"stopped after {seconds:.0f} s, because the time was up"
        elif status:
            texts = [errors] if part["result"] else [errors, printed]
            last = [line for text in texts for line in text.strip().splitlines()[-TAIL:]]
            part["error"] = f"ended with {status}: {' / '.join(last)}"
        self._log(name, part, printed, errors)
        self.add(name, part)
        result: Result = part["result"]
        return result

    def add(self, name: str, part: Result) -> None:
        """Keep what is known of a part."""
        self.results["parts"][name] = part
        self.save()

    def skip(self, name: str, why: str) -> None:
        """Keep why a part was not run."""
        print(f"{name}: {why}", flush=True)
        none: Result = {"command": "", "began": "", "seconds": 0.0, "status": None, "result": {}}
        self.add(name, none | {"error": why})

    def save(self) -> None:
        """Write the results."""
        self.results["left_s"] = self.left()
        _script.write(self.results, str(self._out / "results.json"))
        self._changed()

    def stop(self) -> None:
        """Stop the parts that run."""
        for child, *_ in self._running.values():
            child.stop()

    def _result(self, file: str, printed: str) -> Result:
        path = self._out / file
        try:
            found: Result = json.loads(path.read_text() if file else printed)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _log(self, name: str, part: Result, printed: str, errors: str) -> None:
        words = part["error"] or "ended well"
        print(f"{name}: {part['seconds']:.0f} s, {words} ({self.left():.0f} s left)", flush=True)
        with (self._out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n== {name}: {part['command']}\n{errors}{printed}\n-- {words}\n")


def shown(command: Sequence[str]) -> str:
    """A command as one would type it in the bundle's folder."""
    words = [Path(word).name if word == command[0] else word for word in command]
    return shlex.join(word.removeprefix(f"{ROOT}/") for word in words)

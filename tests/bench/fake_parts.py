"""Fakes of the parts of bench/gpu_all.py: on a virtual clock, or in this process."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS_XML = """<testsuites><testsuite name="pytest" errors="0" tests="4" time="2.5">
<testcase classname="tests.gpu.test_loader" name="test_a" time="0.1" />
<testcase classname="tests.gpu.test_loader" name="test_b"><skipped message="no CuPy" /></testcase>
<testcase classname="tests.gpu.test_loader" name="test_c"><skipped message="no CuPy" /></testcase>
<testcase classname="tests.gpu.test_io" name="test_d"><failure message="wrong&#10;x" /></testcase>
</testsuite></testsuites>"""


class Fake:
    """Starts fakes of all parts on a virtual clock; notes when each command was started."""

    def __init__(self) -> None:
        self.now, self.commands = 0.0, list[tuple[float, list[str]]]()
        self.seconds: dict[str, float] = {}  # by a word of the command; 1 by default
        self.statuses: dict[str, int] = {}  # by a word of the command
        self.budget_kills = ""  # the host budget under which pinned dies, by `dies`
        self.dies = "ended with -9 (killed: out of memory?)"
        self.crashes_at = ""  # a set of switches or a way at which bench/gpu.py crashes
        self.moves_kept = 0  # of that one, measured before
        self.checksums: dict[str, int] = {}  # of the loaders' batches; 1 by default
        self.limited = True  # whether a host budget holds
        self.reports_when_stopped = False  # whether tests that are stopped write their report
        self.killed_at = ""  # a word of the command at which the script itself is stopped
        self.stopped = 0

    def clock(self) -> float:
        return self.now

    def start(self, command: Sequence[str]) -> FakeChild:
        self.commands.append((self.now, list(command)))
        return FakeChild(self, list(command))

    def of(self, table: dict[str, Any], command: Sequence[str], default: Any) -> Any:
        return next((value for word, value in table.items() if word in command), default)

    def began(self, word: str) -> list[float]:
        """When commands with this word were started."""
        return [time for time, command in self.commands if word in command]


class FakeChild:
    """A process that ends after some virtual seconds and leaves results as the real one does."""

    def __init__(self, fake: Fake, command: list[str]) -> None:
        self._fake, self._command = fake, command
        self._ends = fake.now + fake.of(fake.seconds, command, 1.0)

    def wait(self, seconds: float) -> int | None:
        if self._fake.killed_at in self._command:
            raise SystemExit(143)
        hangs = self._ends > self._fake.now + seconds
        for word in self._command:
            if word.startswith("--junitxml=") and (not hangs or self._fake.reports_when_stopped):
                Path(word.partition("=")[2]).write_text(TESTS_XML)
        if hangs:
            self._fake.now += max(seconds, 0)
            return None
        self._fake.now = max(self._fake.now, self._ends)
        if "bench/gpu.py" in self._command:
            given = dict(zip(self._command, self._command[1:], strict=False))
            Path(given["--json"]).write_text(json.dumps(self._measured(given)))
        if self._fake.crashes_at and self._fake.crashes_at in self._asked():
            return -11
        status: int = self._fake.of(self._fake.statuses, self._command, 0)
        return status

    def _switches(self) -> list[str]:
        words = enumerate(self._command)
        return [self._command[at + 1] for at, word in words if word == "--switch"] or ["defaults"]

    def _asked(self) -> list[str]:
        """The sets of switches, and the ways of moves."""
        given = dict(zip(self._command, self._command[1:], strict=False))
        return [*self._switches(), *given.get("--ways", "").split(",")]

    def _measured(self, given: dict[str, str]) -> dict[str, Any]:
        switches = self._switches()
        found: dict[str, Any] = {"moves": [], "epochs": [], "failed": [], "unavailable": []}
        found |= {"memory": "a limit", "features_bytes": 6 * 10**9, "limited": self._fake.limited}
        if "--generate" in given:
            found["features_bytes"] = int(float(given["--generate"]) * 512e6)
        found["host_budget"] = given.get("--host-budget", "")
        if given["--parts"] == "epoch":
            loaders = given.get("--loaders", "pinned,row-copies,gnndrive").split(",")
            if found["host_budget"] and found["host_budget"] == self._fake.budget_kills:
                found["failed"] = [f"epoch, pinned, defaults: pinned {self._fake.dies}"]
                loaders = [name for name in loaders if name != "pinned"]
            if self._fake.crashes_at in switches:
                switches = switches[: switches.index(self._fake.crashes_at)]
            turns = [(name, one) for name in loaders for one in switches]
            found["epochs"] = [epoch_of(name, one, run) for name, one in turns for run in range(2)]
            for one in found["epochs"]:
                one["checksum"] = self._fake.checksums.get(one["loader"], 1)
        else:
            ways = given["--ways"].split(",")
            found["moves"] = [
                move_of(kind, way, nbytes, one)
                for one in switches for way in ways for kind in ("h2d", "gather")
                for nbytes in (512, 3072)
            ]  # fmt: skip
            names = [(move["switches"], move["way"]) for move in found["moves"]]
            at = [n for n, name in enumerate(names) if self._fake.crashes_at in name]
            if at:
                del found["moves"][at[0] + self._fake.moves_kept :]
        return found

    def stop(self) -> None:
        self._fake.stopped += 1

    def output(self) -> tuple[str, str]:
        if self._ends > self._fake.now:
            return "", ""
        if "disk" in self._command:
            disk = {"request_s": 1e-5, "byte_s": 5e-10, "depth": 128, "engine": "uring"}
            return json.dumps(disk), "a warning"
        if "bench/_gpu_machine.py" in self._command:
            return json.dumps({"gpu": "an H200", "commit": "abc", "date": "today",
                               "mount": "/ /dev/vda ext4 rw"}), ""  # fmt: skip
        return "some text", "one line\nthe last line\n"


def epoch_of(loader: str, switches: str, run: int) -> dict[str, Any]:
    seconds = {"pinned": 6.0, "row-copies": 9.0, "gnndrive": 3.0}[loader]
    return {
        "loader": loader, "switches": switches, "run": run, "batches": 8, "idle": 0.25,
        "s_per_batch": seconds, "wall_s": 10.0, "peak_bytes": 10**9, "checksum": 1,
    }  # fmt: skip


def move_of(part: str, way: str, row_bytes: int, switches: str) -> dict[str, Any]:
    ratio = {"zero-copy": 0.95, "copy+kernel": 0.8, "staged": 0.6}[way] - (
        0.05 if "blocks" in switches else 0
    )
    return {
        "part": part, "way": way, "row_bytes": row_bytes, "switches": switches,
        "bytes_per_s": [ratio * 5e10] * 3, "plain_bytes_per_s": [5e10] * 3, "ratio": [ratio] * 3,
    }  # fmt: skip


class InProcess:
    """Runs a part in this process when it is waited for; tests and disk leave given results."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command, self._printed, self._errors = list(command), "", ""

    def wait(self, seconds: float) -> int | None:
        if "pytest" in self._command or "disk" in self._command:
            child = FakeChild(Fake(), self._command)
            status = child.wait(seconds)
            self._printed = child.output()[0]
            return status
        script = importlib.import_module(Path(self._command[1]).stem)
        printed, before = io.StringIO(), sys.argv
        sys.argv = self._command[1:]
        try:
            with contextlib.redirect_stdout(printed):
                script.main()
        except SystemExit as ended:
            self._errors = str(ended.code)
            return ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.argv, self._printed = before, printed.getvalue()
        return 0

    def stop(self) -> None:
        pass

    def output(self) -> tuple[str, str]:
        return self._printed, self._errors


def row(page: str, question: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| {question}"))

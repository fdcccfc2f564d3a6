"""Python programs in processes of their own, forked from one that has imported gnndrive.

A process that imports PyTorch and gnndrive takes three seconds, so one for all tests of a worker
does that, and each program runs in a fork of it, as `python -c` would run it: at the top level of
`__main__`, with no other thread, and with Ctrl-C on. `interpreter` does the same for what starts
`sys.executable`. A program that needs another environment from its start, or that is about what is
imported, needs a process of its own.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tests.project_files import ROOT

ASKED_BYTES_MAX = 1 << 16
LIMIT_S = 120  # against programs that never end
_forking: list[tuple[subprocess.Popen[bytes], socket.socket, bytes]] = []


class Program:
    """A program that runs; like a `subprocess.Popen` whose streams are text.

    Args:
        code: what it does.
        arguments: its sys.argv[1:].
        environment: what it has in os.environ beside what this process has.

    Attributes:
        pid: the process.
        stdin, stdout, stderr: the ends here of its streams.
        returncode: None while it runs; −N: signal N has ended it.
    """

    def __init__(self, code: str, *arguments: str, environment: Mapping[str, str] | None = None):
        names = {**os.environ, **(environment or {})}
        argv = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        asked = {"argv": argv, "cwd": str(ROOT), "environment": names, "files": [0, 1, 2]}
        pipes = [os.pipe() for _ in range(4)]  # the status, and the streams
        (status, its_status), (its_input, stdin), (stdout, its_out), (stderr, its_err) = pipes
        theirs = [its_status, its_input, its_out, its_err]
        socket.send_fds(_socket(), [json.dumps(asked).encode()], theirs)
        for each in theirs:
            os.close(each)
        self.stdin = os.fdopen(stdin, "w")
        self.stdout, self.stderr, self._status = map(os.fdopen, (stdout, stderr, status))
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, told: str = "") -> tuple[str, str]:
        """Write to its standard input, wait for its end, and return what it has printed."""
        errors: list[str] = []
        reading = threading.Thread(target=lambda: errors.append(self.stderr.read()))
        limit = threading.Timer(LIMIT_S, self.kill)
        for each in (reading, limit):
            each.start()
        with self.stdin:
            self.stdin.write(told)
        out = self.stdout.read()
        self.wait()
        limit.cancel()
        for each in (reading, limit):
            each.join()
        return out, errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        self.kill()
        self.wait()
        for each in (self.stdin, self.stdout, self.stderr, self._status):
            each.close()


def run(code: str, *arguments: str, told: str = "") -> subprocess.CompletedProcess[str]:
    with Program(code, *arguments) as program:
        out, errors = program.communicate(told)
        assert program.returncode is not None
        return subprocess.CompletedProcess(code, program.returncode, out, errors)


INTERPRETER = """#!{python} -IS
import json, os, signal, socket, sys
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect({address!r})
files = [int(each) for each in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{{each}}")]
files.remove(asking.fileno())
told, status = os.pipe()
asked = {{"argv": sys.argv, "cwd": os.getcwd(), "environment": dict(os.environ), "files": files}}
socket.send_fds(asking, [json.dumps(asked).encode()], [status, *files])
for each in (status, *files):
    os.close(each)
told = os.fdopen(told)
child = int(told.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(child, number))
ended = int(told.readline())
if ended < 0:
    if -ended != signal.SIGKILL:
        signal.signal(-ended, signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
os._exit(ended)
"""


def interpreter(folder: Path) -> str:
    """Write an executable into `folder` which runs a FILE or a MODULE as `python` would, in a fork
    that has its environment and open files; it passes Ctrl-C and SIGTERM on."""
    _socket()
    path = folder / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, address=_forking[0][2]))
    path.chmod(0o755)
    return str(path)


def python_path() -> str:
    """PYTHONPATH for these tests, before what it is here: a bundle has gnndrive there."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def stop() -> None:
    """End the process that forks, if there is one."""
    while _forking:
        process, ours, _ = _forking.pop()
        ours.close()
        process.wait()


def _socket() -> socket.socket:
    if not _forking:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            code = f"from tests.forked import serve; exec(serve({its.fileno()}))"
            environment = {**os.environ, "PYTHONPATH": python_path()}
            process = subprocess.Popen(
                [sys.executable, "-c", code], env=environment, cwd=ROOT, pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        _forking.append((process, ours, ours.recv(108)))
    return _forking[0][1]


# ---- the process that forks


def serve(number: int) -> str:
    """Fork a process for each program that is asked for; returns its code in that process."""
    import gc

    import torch_geometric.loader  # noqa: F401

    from gnndrive.cli.main import COMMANDS

    for place in COMMANDS.values():
        import_module(f"gnndrive.cli.commands.{place.partition('.')[0]}")
    gc.freeze()  # programs share this memory as long as no collection of theirs writes into it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    tests = socket.socket(fileno=number)
    interpreters = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interpreters.bind("")  # the kernel chooses the address
    interpreters.listen()
    tests.send(interpreters.getsockname())
    while True:
        asking, *_ = select.select([tests, interpreters], [], [])[0]
        theirs = tests if asking is tests else interpreters.accept()[0]
        message, files, _, _ = socket.recv_fds(theirs, ASKED_BYTES_MAX, 64)
        if theirs is not tests:
            theirs.close()
        elif not message:
            os._exit(0)
        if message and not os.fork():
            tests.close()
            interpreters.close()
            return _program(json.loads(message), *files)
        for each in files:
            os.close(each)


def _program(asked: Mapping[str, Any], status: int, *streams: int) -> str:
    """Begin a program in a child, and tell of its end; returns its code in the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        _tell_its_end(child, status, streams)
    os.close(status)
    above = max(asked["files"]) + 1
    given = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in streams]
    for each in streams:
        os.close(each)
    for number, each in zip(asked["files"], given, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    sys.executable, *sys.argv[:] = asked["argv"]
    if sys.argv[0] == "-u":
        del sys.argv[0]
    if sys.argv[0] == "-c":
        return str(sys.argv.pop(1))
    if sys.argv[0] != "-m":
        sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
        return "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__')"
    del sys.argv[0]
    return "import runpy, sys; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


def _tell_its_end(child: int, status: int, streams: tuple[int, ...]) -> NoReturn:
    """Also kill the child when the process that asked for it ends first."""
    for each in streams:
        os.close(each)
    events = select.poll()
    events.register(status, 0)  # POLLERR, which is always told: the reader has closed its end
    events.register(os.pidfd_open(child), select.POLLIN)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{child}\n".encode())
        if events.poll()[0][0] == status:
            os.kill(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
        os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)

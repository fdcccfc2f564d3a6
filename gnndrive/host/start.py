"""Starts a host service for the ranks of this host; the first of them calls it.

The service is a process of its own and not a part of a rank, because its end must not depend on
that rank's user. Its socket has a random name in the abstract namespace: it is no file, nothing is
left of it after a kill, and no earlier run can still have that name.
"""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from gnndrive.common.errors import ConfigError
from gnndrive.common.limits import named_limit
from gnndrive.host.wire import abstract_name, new_socket

BACKLOG = 1024
SEPARATE = "with host_service=False each rank loads for itself"


def host_identity() -> str:
    """A text that is equal in two processes if they can share a service: those of one boot of one
    machine, in one network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


class Listener:
    """A socket that listens, and no process that accepts yet; a context manager that closes it.

    A rank connects to it before it calls `start_service`, so that the service has a client from its
    start: it ends even if the rank dies before it. FileExistsError: another service has this
    `address`, see `names`; None: a random one.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = secrets.token_hex(16) if address is None else address
        with named_limit():
            self.sock = new_socket()
        try:
            self.sock.bind(abstract_name(self.address))
            self.sock.listen(BACKLOG)
        except OSError as error:
            self.sock.close()
            if error.errno == errno.EADDRINUSE:
                raise FileExistsError(error.errno, f"{self.address} is in use") from None
            raise

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *raised: object) -> None:
        self.sock.close()

    def start_service(self, store: Path) -> None:
        """Start a service for the store in the folder `store`, which accepts the clients of this
        socket; it ends when its last client has left. ConfigError: the system refuses to start a
        process or a thread."""
        if not sys.executable:
            raise ConfigError(
                "the host service cannot be started, because this process does not know its Python "
                f"(sys.executable is empty): {SEPARATE}"
            )
        command = [sys.executable, "-m", "gnndrive.host", str(self.sock.fileno()), str(store)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sys.__stderr__, env=_environment(),
                pass_fds=[self.sock.fileno()], start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"the host service cannot be started ({error}): {SEPARATE}"
            ) from error
        try:
            # Else the system keeps a record of the ended process as long as this one runs.
            with named_limit():
                threading.Thread(target=process.wait, name="gnndrive-service", daemon=True).start()
        except ConfigError:
            process.kill()
            process.wait()
            raise


def _environment() -> dict[str, str]:
    """This process's environment, in which Python finds the same gnndrive."""
    parent = str(Path(__file__).resolve().parents[2])
    paths = [parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

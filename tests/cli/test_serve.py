"""`gnndrive serve`: from its start to its end, as a process; and what `--status` prints."""

import itertools
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import gnndrive as gd
from gnndrive.cli.commands.serve import rates, status_json, status_text
from gnndrive.host.names import address_of, addresses
from gnndrive.host.report import ClientReport, ServiceReport
from gnndrive.host.start import Listener
from tests import forked
from tests.cli.conftest import PROGRAM

_numbers = itertools.count()
GUARD_S = 120  # only ends a test that hangs
READING = f"""
import sys
import threading
from gnndrive.host import graphs

def publish(*given):
    print("reading", file=sys.stderr, flush=True)
    threading.Event().wait()

graphs.publish = publish
{PROGRAM}
"""


class Service(forked.Program):
    def __init__(self, store: Path, notify: str, program: str = PROGRAM) -> None:
        self.name = f"cli-{os.getpid()}-{next(_numbers)}"
        words = ["serve", str(store), "--name", self.name, "--memory", "50MB"]
        super().__init__(program, *words, environment={"NOTIFY_SOCKET": notify})
        self.ready = self.stdout.readline()  # printed when it is ready

    def ended(self) -> tuple[int | None, list[str]]:
        """Wait for its end; returns the exit code and the lines of standard error."""
        out, err = self.communicate()
        assert out == ""
        return self.returncode, err.splitlines()


@pytest.fixture
def systemd(tmp_path):
    """A socket that gets what a service tells systemd, at NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(GUARD_S)
        yield sock


@pytest.fixture
def ours(monkeypatch):
    """`--status` finds the services of these tests alone; others may be stopped."""
    own = f"-{os.getpid()}-"
    monkeypatch.setattr(
        "gnndrive.cli.commands.serve.addresses",
        lambda: [each for each in addresses() if own in each],
    )


def load(name: str) -> gd.NeighborLoader:
    store = gd.connect(name)
    return gd.NeighborLoader(
        store, [3], store.split("train"), batch_size=50, buffer="60KB", tuning=gd.Tuning(io_depth=8)
    )


def test_from_start_to_end(planted, tmp_path, systemd, gnndrive, ours):
    with Service(planted, systemd.getsockname()) as service:
        url, pid = f"gnndrive://{service.name}", service.pid
        assert service.ready == f"{url} serves {planted} (process {pid}, 50 MB)\n"
        assert systemd.recv(100) == b"READY=1"
        again = gnndrive("serve", planted, "--name", service.name, "--memory", "9MB")
        assert again.code == 2
        assert f"{url} is in use by process {pid}, which serves {planted}: end it" in again.err
        with load(service.name) as loader:
            batches = iter(loader)
            next(batches)
            folder = tmp_path / f"{service.name}.gnn"
            folder.mkdir()
            status = gnndrive("serve", "--status", folder, "--seconds", "0").out
            assert status.startswith(f"the service {url} serves {planted} (process {pid})\n")
            words = ("serve", "--status", "--seconds", "0.01", "--json")
            (own,) = gnndrive(*words).json["services"]
            assert (own["pid"], own["left"]) == (pid, 50_000_000 - own["used"])
            assert [client["share"] for client in own["clients"]] == [loader.plan().share_bytes]
            service.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert sum(1 for _ in batches) == len(loader) - 1
        code, lines = service.ended()
    assert (code, len(lines)) == (0, 3)
    for line, said in zip(
        lines, ("has come, for ", "no more jobs are accepted", "has left"), strict=True
    ):
        assert said in line


def test_it_ends_at_once_while_it_reads_the_graph(planted, systemd):
    with (
        Service(planted, systemd.getsockname(), READING) as service,
        load(service.name) as loader,
        ThreadPoolExecutor(1) as thread,
    ):
        first = thread.submit(iter, loader)
        assert service.stderr.readline() == "reading\n"
        service.send_signal(signal.SIGTERM)
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]
        service.send_signal(signal.SIGINT)
        code, lines = service.ended()
        assert code == 130
        assert lines[-1].endswith("was refused: HostServiceError('the service has ended')")
        with pytest.raises(gd.HostServiceError, match=f"{service.name} has ended before it answ"):
            first.result()


def test_what_cannot_be_served_or_does_not_answer(gnndrive, planted, tmp_path, monkeypatch, ours):
    (tmp_path / "a b.gnn").mkdir()
    for words, said in (
        ((), "gnndrive serve needs a store: give its folder, or --status"),
        ((tmp_path / "none",), "none"),
        ((planted, "--memory", "1000TB"), "are available: give at most that"),
        ((planted, "--memory", "much"), "--memory='much' is no size"),
        ((planted, "--name", "a/b"), "'a/b' is no name of a service"),
        (("--status", f"none-{os.getpid()}"), "is not running: gnndrive serve --status, without a"),
        (("--status", tmp_path / "a b.gnn"), "'a b.gnn', is no service's: give one, --name"),
        (("--status", planted), f"gnndrive://{planted.stem} is not running: "),
    ):
        assert said in gnndrive("serve", *words).refusal
    monkeypatch.setattr("gnndrive.host.connection.ANSWER_S", 0.01)
    name = f"silent-{os.getpid()}-0"
    with Listener(address_of(name)):
        ended = gnndrive("serve", "--status", "--seconds", "0")
    assert (ended.code, ended.out) == (0, "no service of this user is running here\n")
    assert f"gnndrive://{name} does not answer within 0.01 s" in ended.err


# ---- what a status prints

CLIENT = ClientReport(7, "train.py", 3, 0, 1, 2_000_000, 10, 5_000_000, 4.0)
REPORT = ServiceReport(
    "/data/x.gnn", "ab", 5, False, 9_000_000, 6_000_000, {"resident": 4_000_000}, 20.0, 1, (CLIENT,)
)
ADDRESS = f"{os.geteuid()}-x"


def later(**client: int) -> ServiceReport:
    return replace(REPORT, time_s=22.0, clients=(replace(CLIENT, since_s=6.0, **client),))


def test_what_a_status_says_of_services_and_their_clients():
    """Rates are those since the report before, or since the client came."""
    ranks = replace(CLIENT, name="ddp.py", rank=1, ranks=2)
    unlimited = replace(REPORT, memory=None, draining=True, clients=(ranks,), graphs={})
    found = [(ADDRESS, REPORT, later(batches=16)), ("0f", unlimited, unlimited)]
    assert status_text(found) == (
        "the service gnndrive://x serves /data/x.gnn (process 5)\n"
        "memory: 6 MB of 9 MB, 3 MB left; graph (resident) 4 MB\n"
        "client               share  batches  a second  read  a second\n"
        "train.py, process 7   2 MB       16       3.0  5 MB       0 B\n"
        "\n"
        "the host service, which ranks have started, serves /data/x.gnn (process 5, ending)\n"
        "memory: 6 MB\n"
        "client                                 share  batches  a second  read  a second\n"
        "ddp.py, process 7, rank 1 (of 2 here)   2 MB       10       2.5  5 MB   1.25 MB"
    )
    assert status_text([(ADDRESS, REPORT, replace(REPORT, clients=()))]).endswith("\nno clients")
    (service, _) = json.loads(status_json(found))["services"]
    assert (service["name"], service["named"]) == ("the service gnndrive://x", True)
    (client,) = service["clients"]
    assert (client["pid"], client["batches"], client["batches_per_s"]) == (7, 16, 3.0)
    came = later(group=4, batches=3, nbytes=600)  # since the report before
    assert rates(REPORT, came) == [(0.5, 100.0)]

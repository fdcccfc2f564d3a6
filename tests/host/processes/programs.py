"""Ranks as processes: `Starter` in the test, the process that forks them, and what they do.

The forking process has no threads, and has imported everything (tests/forked.py). Ranks have a
group of torch.distributed over files, and a process group of the system for themselves, as those
that a terminal starts. Each rank runs a function of this file, and has nothing of the host service
left at its end. The forking process adopts the orphans of its ranks, that is host services whose
rank has ended, so that it knows when everything that a run started has ended, and how.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import torch
import torch.distributed as dist

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.buffer.devices.cuda import Cuda
from gnndrive.buffer.items import SLOT_TABLE_BYTES
from gnndrive.common.errors import GNNDriveError, LateError, PeerError
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.host.connect import service_of
from gnndrive.host.connection import Connection, ask
from gnndrive.host.start import Listener
from gnndrive.host.turns import Turns
from gnndrive.loader import exchanging, sharing
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.runtime import Runtime
from gnndrive.plan import choice
from gnndrive.testing.fake_cuda import fake_cuda
from tests.forked import Program, python_path
from tests.given import moved

LIMIT_S = 120  # against processes that never end
PR_SET_CHILD_SUBREAPER = 36
SMALL = {"batch_size": 2}  # 65 batches in an epoch
SEVERAL = {"batch_size": 4}  # 33: each of two ranks has more than fit into its queues


class Starter:
    """Runs ranks, until `close`."""

    def __init__(self) -> None:
        code = f"from {__name__} import main; main()"
        self._process = Program(code, environment={"PYTHONPATH": python_path()})

    def close(self) -> None:
        self._process.communicate()
        self._process.__exit__(None, None, None)

    def run(self, program: str, world: int, folder: Path, **arguments: Any) -> SimpleNamespace:
        """Run a function in each of `world` ranks, until all processes have ended; they leave in
        `folder` what they print and return.

        Returns:
            `results` and `outputs`: what each rank's function returned, or None, and printed.
            `statuses`: the exit status of each rank; −N: signal N has killed it.
            `orphans`: the exit statuses of other processes that outlived their parents.
        """
        # A rank that ended with an error may have left how to reach it.
        for path in (folder / "rendezvous", *folder.glob("result-*")):
            path.unlink(missing_ok=True)
        asked = {"program": program, "world": world, "folder": str(folder), "given": arguments}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], LIMIT_S)[0]:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                each.kill()
            outputs = [path.read_text() for path in sorted(folder.glob("output-*"))]
            raise AssertionError("\n".join(["the processes do not end", *outputs]))
        ended: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        results = [folder / f"result-{rank}" for rank in range(world)]
        return SimpleNamespace(
            results=[json.loads(path.read_text()) if path.exists() else None for path in results],
            outputs=[(folder / f"output-{rank}").read_text() for rank in range(world)],
            **ended,
        )


# ---- the process that forks ranks


def main() -> None:
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
        ended = {"statuses": [statuses[each] for each in ranks], "orphans": others}
        print(json.dumps(ended), flush=True)


def _ended_children() -> Iterator[tuple[int, int]]:
    while True:
        try:
            process, status = os.wait()
        except ChildProcessError:
            return
        yield process, os.waitstatus_to_exitcode(status)


def _be_rank(rank: int, asked: Mapping[str, Any]) -> None:
    """Run a rank's function in this forked child, and exit: as a script does in `much` and after an
    error. Python frees all modules there, which takes longer than what most ranks do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(asked["folder"])
    with open(folder / f"output-{rank}", "ab") as output, open(os.devnull) as empty:
        for target, source in ((0, empty), (1, output), (2, output)):
            os.dup2(source.fileno(), target)
    try:
        result = _run(Rank(rank, asked["world"], folder), asked["program"], asked["given"])
        (folder / f"result-{rank}").write_text(json.dumps(result))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    if asked["program"] == "much":
        sys.exit()
    sys.stdout.flush()
    os._exit(0)


def _run(rank: Rank, program: str, given: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(rank.world)
    dist.init_process_group(
        "gloo", f"file://{rank.folder}/rendezvous", timedelta(minutes=2), rank=rank.number,
        world_size=rank.world,
    )  # fmt: skip
    try:
        result = globals()[program](rank, **given)
    finally:
        dist.destroy_process_group()
    assert _left_behind() == []
    return result


def _left_behind() -> list[str]:
    """What this process still has of host services that have ended: descriptors, mappings, threads
    and records of ended processes."""
    for thread in threading.enumerate():
        if thread.name == "gnndrive-service":
            thread.join()
    gc.collect()
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [each for each in (*links, *maps) if "gnndrive-" in each]
    return found + [str(child) for child in psutil.Process().children()]


# ---- what ranks do


@dataclass
class Rank:
    number: int
    world: int
    folder: Path

    def everyone(self, told: Any) -> list[Any]:
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, told)
        return found


def loader(store: str | Store | list[str], links: bool = False, **arguments: Any) -> NeighborLoader:
    """A loader of a store, or of each rank's part of one."""
    store = store[dist.get_rank()] if isinstance(store, list) else store
    opened = gnndrive.open(store) if isinstance(store, str) and "://" not in store else store
    given: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True}
    given |= {"seed": 5, "buffer": "100KB", "ranks": True, "host_service": True}
    kind: Any = LinkNeighborLoader if links else NeighborLoader
    made: NeighborLoader = kind(opened, **moved(given | arguments))
    return made


def digest(batch: Any) -> str:
    """A text that two batches share if their content is the same, bit for bit."""
    return sha256(b"".join(_bytes(batch.to_dict()))).hexdigest()


def _bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _bytes(value[key])
    elif isinstance(value, torch.Tensor):
        yield value.cpu().contiguous().numpy().tobytes()
    else:
        yield repr(value).encode()


def alone(store: Store, epochs: int = 1, **arguments: Any) -> list[list[str]]:
    given: dict[str, Any] = {"ranks": None, "host_service": "auto", **arguments}
    with loader(store, **given) as made:
        return [[digest(batch) for batch in made] for _ in range(epochs)]


def dealt(whole: Sequence[str], world: int, done: int = 0) -> list[list[str]]:
    """What each of `world` ranks yields of an epoch of which `done` batches are done."""
    steps = -(-(len(whole) - done) // world)
    padded = [whole[(done + at) % len(whole)] for at in range(steps * world)]
    return [padded[rank::world] for rank in range(world)]


def services() -> list[int]:
    """The process ids of the host services that this rank has started and that run."""
    children = psutil.Process().children()
    return [each.pid for each in children if "gnndrive.host" in each.cmdline()]


def error_of(start: Callable[[], object]) -> str:
    try:
        start()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


def several(rank: Rank, asked: list[dict[str, Any]]) -> list[list[str]]:
    """An epoch of each of several loaders, of which `asked` has the arguments; "topology" is a list
    of each rank's, and "state" where the epoch goes on."""
    found = []
    for arguments in asked:
        if "topology" in arguments:
            arguments["topology"] = arguments["topology"][rank.number]
        state = arguments.pop("state", None)
        with loader(**arguments) as made:
            if state is not None:
                made.load_state_dict(state)
            found.append([digest(batch) for batch in made])
            if "exchange" not in arguments and isinstance(arguments["store"], str):
                assert (made.stats()["engine"] == "host service") is ("strategy" not in arguments)
    return found


def broken_off(rank: Rank, at: int, **arguments: Any) -> dict[str, Any]:
    """The state after `at` batches."""
    with loader(**arguments) as made:
        assert len(list(islice(made, at))) == at
        return made.state_dict()


def trained(rank: Rank, asked: list[dict[str, Any]]) -> list[str]:
    """What each of several loaders, of which `asked` has the arguments, makes of one model in an
    epoch of data parallel training."""
    found = []
    for arguments in asked:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with loader(**arguments) as made:
            for batch in made:
                optimizer.zero_grad()
                source, target = batch.edge_index
                mean = torch.zeros_like(batch.x).index_add(0, target, batch.x[source])
                out = model(batch.x + mean)[: batch.batch_size]
                torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
                optimizer.step()
        found.append(digest(SimpleNamespace(to_dict=model.state_dict)))
    return found


def once(rank: Rank, **arguments: Any) -> list[str]:
    """An epoch of one loader."""
    with loader(**arguments) as made:
        return [digest(batch) for batch in made]


def keeping(rank: Rank, **arguments: Any) -> tuple[int, int]:
    """Bytes for rows of other ranks: those that a loader takes, and those of its plan, which counts
    batches no larger than those that were drawn."""
    choices = patch.multiple(choice, HARDLY_MORE=0, HARDLY_MORE_BYTES=0)
    with choices, loader(**arguments) as made:
        (planned,) = (line.nbytes for line in made.plan().lines if line.what == "remote rows")
        next(iter(made))
        kept: Any = made._runtime._buffers.buffer._kept  # type: ignore[union-attr]
        tables = [each.table for each in kept.values()]
        return sum(n.slots * (SLOT_TABLE_BYTES + n.row_bytes) for n in tables), planned


def exchanging_by_default(rank: Rank, strategies: list[str], **arguments: Any) -> list[bool]:
    """With which strategies GPUs copy rows out of each other's slots."""
    found = []
    for strategy in strategies:
        with loader(strategy=strategy, **arguments) as made:
            found.append(any(line.what == "pinned slots" for line in made.plan().lines))
    return found


def on_gpus(rank: Rank, fake: list[bool], asked: list[dict[str, Any]]) -> list[list[str]]:
    """The same on a GPU of each rank's own, if there are as many; `fake`: whether fake ones have a
    CuPy; empty: they are real."""
    with fake_cuda(devices=2, cupy=fake[0]) if fake else nullcontext():
        gpu = rank.number % torch.cuda.device_count()
        torch.cuda.set_device(gpu)
        return several(rank, [{"device": f"cuda:{gpu}", **each} for each in asked])


@contextmanager
def on_host(rank: Rank, hosts: list[str] | None) -> Iterator[None]:
    """Each rank is on one of `hosts`; None: they have one."""
    if hosts is not None:
        here = hosts[rank.number]
        os.environ["LOCAL_WORLD_SIZE"] = str(hosts.count(here))
        with patch.object(exchanging, "host_identity", lambda: here):
            yield
    else:
        yield


def on_fake_gpu(
    rank: Rank, what: str, hosts: list[str] | None = None, ipc: bool = True, **given: Any
) -> Any:
    """What another program does on a fake GPU, and what is warned of; `ipc`: whether GPUs reach
    memory of other processes."""
    recorded = warnings.catch_warnings(record=True)
    with on_host(rank, hosts), fake_cuda(devices=1) as gpus, recorded as warned:
        gpus.ipc = ipc
        found = globals()[what](rank, device="cuda", **given)
    return {"found": found, "warned": [str(each.message) for each in warned]}


def taken(
    rank: Rank, cupy: bool, hosts: list[str] | None = None, **arguments: Any
) -> list[tuple[int, int]]:
    """What a fake GPU of each rank's own takes in an epoch, and what the plan says: registered
    memory, torch's pinned memory, and the GPU's."""
    with (
        on_host(rank, hosts),
        fake_cuda(devices=2, cupy=cupy) as gpus,
        loader(device="cuda:0", **arguments) as made,
    ):
        plan = made.plan()
        registered = 0
        for batch in made:
            registered = max(registered, sum(gpus.host.registered.values()))
            del batch  # before the next one is asked for
            torch.cuda.synchronize()  # else memory that the GPU still uses is not free again
        lines = Counter({line.what: line.nbytes for line in plan.lines})
        out = 0 if cupy or not lines["exchange staging"] else Cuda.copy_out_bytes()  # a table's
        rounded = 8 * 8 * 512  # at most, by torch: the tensors of two batches, and x of more
        staging = lines["pinned staging"] + lines["exchange staging"] - out
        pinned = lines["pinned copies"] + lines["pinned features"] + lines["pinned slots"] + out
        return [
            (registered, staging + lines["host level"]),
            (gpus.host.pinned_bytes, pinned),
            (torch.cuda.max_memory_allocated(0), plan.device_bytes + rounded),
        ]


def in_windows(rank: Rank, asked: list[dict[str, Any]], done: int) -> list[dict[str, Any]]:
    """Two epochs of each loader, with a barrier in each step, and the second again from the middle;
    and what the plan and the counters say."""
    found = []
    for arguments in asked:
        opened = gnndrive.open(arguments.pop("store"))
        with loader(opened, **arguments) as made:
            epochs, rows = [], []
            for _ in range(2):
                epochs.append([])
                for batch in made:
                    epochs[-1].append(digest(batch))
                    if len(epochs[-1]) == done:
                        state = made.state_dict()
                    dist.barrier()
                rank.everyone(None)
                rows.append(made.stats()["rows_loaded"])
                rank.everyone(None)
            plan, engine = made.plan(), made.stats()["engine"]
        with loader(opened, **arguments) as resumed:
            resumed.load_state_dict(state)
            again = [digest(batch) for batch in resumed]
        found.append({
            "epochs": epochs, "resumed": again, "rows": rows, "engine": engine,
            "state": state, "copies": {line.what: line.copies for line in plan.lines},
        })  # fmt: skip
    return found


def much(rank: Rank, store: str, **arguments: Any) -> dict[str, Any]:
    """Two loaders of one run, in many ways; what they yield, by what it is called."""
    opened, found = gnndrive.open(store), dict[str, Any](train=[], valid=[])
    make = partial(loader, **arguments)
    # A second store object, as a script may open one for validation.
    with make(opened) as train, make(store, shuffle=False, input_nodes=range(50)) as valid:
        for _ in range(2):
            batches = []
            for batch in train:
                batches.append(digest(batch))
                dist.barrier()  # as data parallel training does after each step
            found["train"].append(batches)
            found["valid"].append([digest(batch) for batch in valid])
        # Each rank leaves the epoch somewhere else.
        found["broken off"] = [digest(batch) for batch in islice(train, 1 + rank.number)]
        iterator = iter(train)
        found["begun"] = [digest(next(iterator)) for _ in range(2)]
        state = train.state_dict()
        iterator.close()
    with make(opened) as resumed:
        resumed.load_state_dict(state)
        found["resumed"] = [digest(batch) for batch in resumed]
    with make(opened, **SMALL) as small:
        # The last rank keeps its iterator. The others wait for its turns until it begins again.
        kept = iter(small)
        found["kept"] = [digest(batch) for batch in islice(kept, 1 if rank.number else None)]
        next(iter(small))
    return found


def refused(rank: Rank, **arguments: Any) -> str:
    with loader(**arguments) as made:
        return error_of(lambda: list(made))


def without_memory(rank: Rank, store: str, **arguments: Any) -> str | None:
    """The rows that the first rank sends to itself cannot land; the error that it gets."""
    places_of = ExchangedBuffer.places_of

    def refuse(buffer: ExchangedBuffer, owner: int, key: tuple[int, int]) -> Any:
        if owner == rank.number == 0:
            raise MemoryError("no memory for rows")
        return places_of(buffer, owner, key)

    with loader(store, **arguments) as made, patch.object(ExchangedBuffer, "places_of", refuse):
        if rank.number == 0:
            return error_of(lambda: list(made))
        with suppress(PeerError):  # it may have all rows before the first rank ends
            list(made)
    return None


def differing(
    rank: Rank, store: str | list[str], asked: list[list[Any]], hosts: list[str] | None = None
) -> list[str]:
    """The last rank has one other argument, and then another; the errors that this rank gets.
    `hosts` is each rank's host; None: they have one."""
    found, here = [], "" if hosts is None else hosts[rank.number]
    for name, usual, of_last in asked:
        other = of_last if rank.number == rank.world - 1 else usual
        with (
            loader(**{"store": store, name: other}) as made,
            patch.object(sharing, "host_identity", lambda: here),
        ):
            found.append(error_of(partial(iter, made)))
            assert not made.stats(), "nothing was started"
    return found


def never_starting(rank: Rank, store: str, other: str) -> list[str]:
    """The first rank's service cannot start, for one reason after another; the errors that this
    rank gets. In the end the service starts."""
    found, path, moved, wait = [], Path(store), Path(store).with_suffix(".moved"), Connection.wait

    def wait_with_few_files(connection: Connection) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = len(os.listdir("/proc/self/fd")) + 1 if rank.number == 1 else soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            wait(connection)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with loader(store) as made:
        for executable in ("/nonexistent/python", "/bin/false", ""):
            with patch.object(sys, "executable", executable):
                found.append(error_of(lambda: iter(made)))
        rank.everyone(None)
        if rank.number == 0:
            path.rename(moved)
            path.symlink_to(other)
        rank.everyone(None)
        found.append(error_of(lambda: iter(made)))
        rank.everyone(None)
        if rank.number == 0:
            path.unlink()
            moved.rename(path)
        with patch.object(Connection, "wait", wait_with_few_files):
            found.append(error_of(lambda: iter(made)))
        assert len(list(made)) == len(made)
    return found


def ranks_of_a_service(rank: Rank, name: str) -> dict[str, Any]:
    """An epoch over the store of a service by hand, and what that reports in its middle."""
    store = gnndrive.connect(name)
    with loader(store) as made:
        iterator = iter(made)
        batches = [digest(batch) for batch in islice(iterator, 2)]
        dist.barrier()
        clients = [(each.rank, each.ranks, each.group) for each in ask(service_of(store)).clients]
        dist.barrier()
        batches += [digest(batch) for batch in iterator]
        engine = made.stats()["engine"]
    return {"batches": batches, "clients": clients, "engine": engine, "started": services()}


# ---- ways to leave an epoch


def finish(made: NeighborLoader) -> tuple[list[str], Any]:
    return [digest(batch) for batch in made], None


def drop(made: NeighborLoader) -> tuple[list[str], Any]:
    return keep(made)[0], None


def keep(made: NeighborLoader) -> tuple[list[str], Any]:
    iterator = iter(made)
    return [digest(next(iterator))], iterator


def by_error(raising: Callable[[], object], made: NeighborLoader) -> tuple[list[str], Any]:
    """Leave an epoch by an error, whose traceback keeps the iterator."""
    iterator, taken = iter(made), []
    try:
        for batch in iterator:
            taken.append(digest(batch))
            raising()
    except (ValueError, KeyboardInterrupt) as error:
        return taken, error
    raise AssertionError


def close(made: NeighborLoader) -> tuple[list[str], Any]:
    taken, iterator = keep(made)
    made.close()
    return taken, iterator


def resume(made: NeighborLoader) -> tuple[list[str], Any]:
    taken, iterator = keep(made)
    made.load_state_dict(made.state_dict())
    return taken, iterator


LEAVE: Mapping[str, Callable[[NeighborLoader], tuple[list[str], Any]]] = {
    "finish": finish, "drop": drop, "keep": keep,
    "fail": partial(by_error, partial(int, "no number")),
    "interrupt": partial(by_error, partial(signal.raise_signal, signal.SIGINT)),
    "close": close, "delete": keep, "resume": resume, "all resume": resume,
    "keep, then another loader": keep, "all keep, then another loader": keep,
    "drop, then another loader on one rank": drop,
}  # fmt: skip


def leaving(
    rank: Rank, store: str, without: Collection[str] = (), **arguments: Any
) -> dict[str, Any]:
    """In each way but those `without`, the last rank leaves an epoch, which the others finish, and
    then all begin another. What came of both, and of an iterator that was kept, by the way."""
    found, last = {}, rank.number == rank.world - 1
    make = partial(loader, store, **arguments)
    made, other = make(**SEVERAL), make()
    for way, leave in LEAVE.items():
        if way in without:
            continue
        for each in (made, other):
            each.set_epoch(0)
        taken, kept = (leave if last or "all" in way else finish)(made)
        if way == "delete":
            del made, kept
            made, kept = make(**SEVERAL), None
        elsewhere = "another" in way and (last or "on one rank" not in way)
        again = ending(other if elsewhere else made)
        rest = ending(kept) if isinstance(kept, Iterator) else None
        found[way], kept = [taken, again, rest], None
        if way in ("close", "resume"):
            made.close()
            made = make(**SEVERAL)
    made.close()
    other.close()
    return found


def ending(batches: Any) -> list[str] | str:
    """The rest of an epoch, or its error."""
    try:
        return [digest(batch) for batch in batches]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- one of them, or the service, ends or stops


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def epoch(made: NeighborLoader, at: int, act: Callable[[], object] | None) -> dict[str, Any]:
    """Load an epoch, and call `act` after the first `at` batches; what came, and the error."""
    found: dict[str, Any] = {"batches": [], "error": None}
    try:
        for step, batch in enumerate(made):
            found["batches"].append(digest(batch))
            if step + 1 == at and act is not None:
                act()
    except (GNNDriveError, KeyboardInterrupt) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


_kept: list[NeighborLoader] = []  # until Python exits, when a handler closes them


def one_ends(
    rank: Rank, store: str | list[str], victim: int, at: int, how: str, **arguments: Any
) -> dict[str, Any]:
    made = loader(store, **SMALL, **arguments)
    if rank.number == victim:
        _kept.append(made)
        ways = {"kill": die, "kill, own buffers": die, "sys.exit": lambda: sys.exit(4)}
        return epoch(made, at, ways.get(how, lambda: leave_child(rank)))
    with made:
        found = epoch(made, 0, None)
        if how == "leave a child":
            (rank.folder / "fifo").write_text("")  # the child ends, and with it the connections
        found["again"] = error_of(lambda: list(made))
    return found


def leave_child(rank: Rank) -> None:
    """Fork a child, as a DataLoader forks workers, and die; the child lives until it is told."""
    os.mkfifo(rank.folder / "fifo")
    if os.fork():
        die()
    (rank.folder / "fifo").read_text()
    os._exit(0)


def service_dies(rank: Rank, store: str, at: int, **arguments: Any) -> dict[str, Any]:
    def kill_service() -> None:
        [service] = services()
        os.kill(service, signal.SIGKILL)

    with loader(store, **SMALL, **arguments) as made:
        found = epoch(made, at, kill_service if rank.number == 0 else None)
        found["again"] = error_of(lambda: next(iter(made)))
    return found


def interrupted(rank: Rank, store: str, at: int, **arguments: Any) -> dict[str, Any]:
    """Ctrl-C: all processes of the terminal's group get SIGINT in the middle of an epoch."""
    with loader(store, **SMALL, **arguments) as made:
        last = rank.number == rank.world - 1
        return epoch(made, at, partial(os.killpg, 0, signal.SIGINT) if last else None)


def interrupted_at_the_end(rank: Rank, store: str, **arguments: Any) -> list[str]:
    """Ctrl-C while a loader waits for the other ranks, as it does in an exit handler; the threads
    for them that are left."""
    made, signals = loader(store, **SMALL, **arguments), [signal.SIGINT]

    def never(*of: object) -> bool:
        if signals:
            os.kill(os.getpid(), signals.pop())
        return False

    list(made)
    rank.everyone(None)
    with patch.object(Turns, "has_passed", never):
        try:
            with deferred_interrupts():
                made.close()
        except KeyboardInterrupt:
            return [each.name for each in threading.enumerate() if "receive" in each.name]
    return ["was not interrupted"]


def one_closes_first(rank: Rank, store: str, **arguments: Any) -> list[str]:
    """All leave an epoch after its first batch. The last rank begins to sample it when the others
    are about to close their loaders."""
    begin, last = threading.Event(), rank.number == rank.world - 1
    wait = {"worker_init_fn": lambda number: begin.wait()} if last else {}
    with loader(store, **SMALL, **arguments, **wait) as made:
        iterator = iter(made)
        if last:
            rank.everyone(None)
            begin.set()
        batches = [digest(next(iterator))]
        if not last:
            rank.everyone(None)
    return batches


def stopped(
    rank: Rank, store: str, at: int, service: bool = False, **arguments: Any
) -> dict[str, Any]:
    """The last rank, or the service, is stopped in the middle of an epoch, until the first rank has
    got an error that says so; then it goes on."""
    processes = rank.everyone(os.getpid())
    with loader(store, timeout=1, **SMALL, **arguments) as made:
        iterator = iter(made)
        target = [*services(), *processes][0] if service else processes[-1]
        found: dict[str, Any] = {"batches": [], "errors": []}
        while True:
            try:
                found["batches"].append(digest(next(iterator)))
            except StopIteration:
                return found
            except LateError as error:  # other ranks may be slow, and be the reason
                found["errors"].append(str(error))
                if rank.number == 0:
                    os.kill(target, signal.SIGCONT)
            stops = rank.number == (0 if service else rank.world - 1)
            if stops and len(found["batches"]) == at:
                os.kill(target, signal.SIGSTOP)


def crossed(rank: Rank, store: str) -> str:
    """Each of two ranks takes batches of another loader; the error that this rank gets."""
    with (
        patch.object(Ranks, "timeout_s", 1.0),
        loader(store, **SMALL) as first,
        loader(store, **SMALL) as second,
    ):
        iterators = iter(first), iter(second)
        while True:
            try:
                next(iterators[rank.number])
            except LateError as error:  # the disk may be slow, and be the reason
                if "rank" in str(error):
                    rank.everyone(None)
                    return str(error)


POINTS: Mapping[str, tuple[Any, str]] = {
    "start": (Listener, "start_service"), "plan": (sharing, "buffer_settings"),
    "connect": (Connection, "__init__"), "welcome": (Connection, "wait"),
    "use": (Runtime, "__init__"),
}  # fmt: skip


def one_dies_early(rank: Rank, store: str, victim: int, point: str) -> str:
    """One rank dies while they come together; the error that this rank gets."""
    thing, name = POINTS[point]
    usual, after = getattr(thing, name), point in ("start", "connect")

    def dying(*given: Any, **named: Any) -> None:
        if after:
            usual(*given, **named)
        die()

    with loader(store) as made:
        if rank.number == victim:
            with patch.object(thing, name, dying):
                list(made)
        return error_of(lambda: list(made))

"""Several ranks on one host: batches a second, bytes read and memory, shared and each for itself.

usage: python bench/ranks.py STORE [--ranks 2] [--mode one,own,shared,exchange] [--batches 40]
           [--rounds 1] [--memory SIZE | --buffer SIZE] [--fanout 10,10,10] [--batch-size 1024]
           [--samplers N] [--sweep N] [--strategy gnndrive] [--step-s 0] [--hosts --net 1gbit]
           [--remote-cache SIZE] [--memory-steps 0] [--limit SIZE] [--json FILE]

Each mode loads the same batches of one epoch: "one" in one process; "own" in --ranks processes,
each with a feature buffer and a graph of its own (host_service=False); "shared" in --ranks
processes with one buffer and one graph; "exchange" in --ranks processes whose buffers act as one
over TCP (Tuning(exchange=True)), as on several hosts. --memory and --buffer are for the whole host,
in each mode.
With --hosts each rank is a host, a network namespace that sends and receives at most --net, such as
1gbit (as root, with iproute2); then --memory and --buffer are for each of them. STORE may be such
as "parts/part-{rank}.gnn", of `gnndrive shard`, with --mode exchange.
The ranks meet after each step (torch.distributed.barrier over gloo), and compute for --step-s
seconds before.
Modes take turns, --rounds times; caches are dropped before each run, where that is allowed, and
with --limit all processes of a run are in one control group.

"batches/s" counts those of all ranks, from the second step on; "first" is the time to the first
step; "read" is bytes and rows of features; "memory" is the largest sum of PSS of all processes
after a step, without files (a page that processes share counts once), less what they had before
they made loaders. It is taken after every --memory-steps steps, which takes some time; 0: never.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import _limits
import _script
import torch
import torch.distributed as dist

import gnndrive
from gnndrive.common.memory import format_size, parse_size

BRIDGE, NIC = "gnndrive", "gnndrive0"
MODES = ("one", "own", "shared", "exchange")


def make_loader(options: argparse.Namespace) -> gnndrive.NeighborLoader:
    store = gnndrive.open(options.store.format(rank=options.rank))
    seeds = torch.randperm(store.num_nodes, generator=torch.Generator().manual_seed(0))
    count = min(options.batches * options.batch_size, store.num_nodes)
    sizes = {
        name: getattr(options, name) for name in ("memory", "buffer") if getattr(options, name)
    }
    return gnndrive.NeighborLoader(
        store, options.fanout, seeds[:count], batch_size=options.batch_size, seed=0, ranks=True,
        strategy=options.strategy, host_service=options.mode == "shared",
        tuning=gnndrive.Tuning(
            samplers=options.samplers or "auto", sweep=options.sweep or "auto",
            exchange=options.mode == "exchange",
            remote_cache=options.remote_cache if options.mode == "exchange" else 0,
        ),
        **sizes,
    )  # fmt: skip


def pss(pid: int) -> int:
    """A process's part of the memory that is no file's, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return found["Pss_Anon"] + found["Pss_Shmem"]


def service_pids() -> list[int]:
    """The host services that this process's ranks have started."""
    parents = {int(pid) for pid in os.environ["GNNDRIVE_BENCH_PIDS"].split(",") if pid}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"gnndrive.host" in command and parent in parents:
            found.append(int(entry.name))
    return found


def rank_main(options: argparse.Namespace) -> None:
    """Load the rank's batches; the first rank prints what was measured."""
    world = 1 if options.mode == "one" else options.ranks
    dist.init_process_group(
        "gloo", init_method=f"file://{options.meet}", rank=options.rank, world_size=world
    )
    pids: list[Any] = [None] * world
    dist.all_gather_object(pids, os.getpid())
    os.environ["GNNDRIVE_BENCH_PIDS"] = ",".join(map(str, pids))
    before, memory, services = pss(os.getpid()), [0], list[int]()
    loader, started, times = make_loader(options), time.perf_counter(), []
    for _ in loader:
        time.sleep(options.step_s)
        dist.barrier()
        times.append(time.perf_counter() - started)
        if options.memory_steps and len(times) % options.memory_steps == 0:
            services = services or (service_pids() if options.rank == 0 else [])
            memory.append(sum(map(pss, [os.getpid(), *services])) - before)
    dist.barrier()
    stats = loader.stats()
    told = {"memory": memory, "read": stats["bytes_read"], "loaded": stats["rows_loaded"]}
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, told)
    if options.rank == 0:
        shared = options.mode == "shared"
        read, loaded = (
            told[name] if shared else sum(each[name] for each in everyone)
            for name in ("read", "loaded")
        )
        print(json.dumps({
            "steps": len(times), "first_s": times[0],
            "batches_s": world * (len(times) - 1) / (times[-1] - times[0]),
            "read": read, "loaded": loaded,
            "memory": max(map(sum, zip(*(each["memory"] for each in everyone), strict=True))),
            "engine": loader.stats()["engine"],
            "plan": loader.plan().details(), "planned": loader.plan().host_bytes,
        }))  # fmt: skip
    dist.barrier()
    loader.close()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's gloo threads may abort a process whose interpreter exits


def run_quietly(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True)


@contextmanager
def hosts(count: int, net: str) -> Iterator[None]:
    """Network namespaces gnndrive-0, … behind a bridge, with an interface each."""
    with ExitStack() as undo:
        run_quietly("ip", "link", "add", BRIDGE, "type", "bridge")
        undo.callback(run_quietly, "ip", "link", "del", BRIDGE)
        run_quietly("ip", "link", "set", BRIDGE, "up")
        for host in range(count):
            name, outer, limit = f"gnndrive-{host}", f"{BRIDGE}-{host}", ["rate", net]
            limit += ["burst", "1mb", "latency", "100ms"]
            run_quietly("ip", "netns", "add", name)
            undo.callback(run_quietly, "ip", "netns", "del", name)
            run_quietly(
                "ip", "link", "add", outer, "type", "veth", "peer", "name", NIC, "netns", name
            )
            run_quietly("ip", "link", "set", outer, "master", BRIDGE, "up")
            run_quietly("tc", "qdisc", "add", "dev", outer, "root", "tbf", *limit)
            for command in (
                ["ip", "link", "set", "lo", "up"],
                ["ip", "addr", "add", f"10.77.0.{host + 1}/24", "dev", NIC],
                ["ip", "link", "set", NIC, "up"],
                ["tc", "qdisc", "add", "dev", NIC, "root", "tbf", *limit],
            ):
                run_quietly("ip", "netns", "exec", name, *command)
        yield


def run_mode(options: argparse.Namespace, mode: str, group: Any) -> dict[str, Any]:
    _limits.drop_caches(Path(options.store).parent, everything=True)
    world = 1 if mode == "one" else options.ranks
    with (
        tempfile.TemporaryDirectory() as folder,
        nullcontext() if group is None else group.run() as run,
    ):
        ranks = []
        for rank in range(world):
            command = [sys.executable, __file__, *sys.argv[1:], "--as", mode, "--rank", str(rank)]
            command += ["--meet", f"{folder}/meet"]
            pipe = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            command = command if run is None else run.command(command)
            environment = dict(os.environ)
            if options.hosts:
                command = ["ip", "netns", "exec", f"gnndrive-{rank}", *command]
                environment |= {"LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": NIC}
            ranks.append(subprocess.Popen(command, stdout=pipe, text=True, env=environment))
        printed, _ = ranks[0].communicate()
        codes = [each.wait() for each in ranks]
    if any(codes) or not printed:
        raise SystemExit(f"{mode}: the ranks ended with {codes}")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def main() -> None:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    parser.add_argument("--ranks", type=int, default=2)
    _script.add_batches(parser, 40, 1024)
    parser.add_argument("--modes", "--mode", type=_script.names, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=1)
    for name in ("--memory", "--buffer", "--limit"):
        parser.add_argument(name)
    parser.add_argument("--samplers", type=int)
    parser.add_argument("--sweep", type=int)
    parser.add_argument("--strategy", default="gnndrive")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--memory-steps", type=int, default=0)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--net", default="10gbit")
    parser.add_argument("--remote-cache", default="0")
    parser.add_argument("--as", dest="mode", help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    _script.check_names(parser, "mode", options.modes, MODES)
    if options.mode:
        rank_main(options)
        return
    modes = options.modes
    limit = None if options.limit is None else parse_size(options.limit, "--limit")
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    limited = nullcontext((None, "no limit")) if limit is None else _limits.tried_limit(limit)
    with limited as made, ExitStack() as undo:
        group, words = made
        if options.hosts:
            undo.enter_context(hosts(options.ranks, options.net))
            words = f"a host of {options.net} each, {words}"
        print(f"{options.store}, {options.ranks} ranks, {words}", flush=True)
        for _ in range(options.rounds):
            for mode in modes:
                runs[mode].append(run_mode(options, mode, group))
                found = runs[mode][-1]
                print(
                    f"{mode:<7} {found['batches_s']:6.3f} batches/s  first {found['first_s']:5.2f}"
                    f" s  read {format_size(found['read']):>8}, {found['loaded']:,} rows"
                    f"  memory {format_size(found['memory']):>8}"
                    f"  planned {format_size(found['planned'])}",
                    flush=True,
                )  # fmt: skip
    medians = {
        mode: {
            name: median(run[name] for run in each) for name in ("batches_s", "loaded", "memory")
        }
        for mode, each in runs.items()
    }
    first = medians[modes[0]]
    lines = [
        f"{mode:<7} {found['batches_s'] / first['batches_s']:.2f} × the batches/s of {modes[0]}, "
        f"{found['loaded'] / max(first['loaded'], 1):.3f} × its rows read, "
        f"{found['memory'] / max(first['memory'], 1):.2f} × its memory"
        for mode, found in medians.items()
    ]
    _script.show("\n".join(lines), {"runs": runs, "medians": medians}, options.json)


if __name__ == "__main__":
    _script.run(main)

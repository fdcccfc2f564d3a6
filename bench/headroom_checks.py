"""Is the verdict of `gnndrive bench headroom` right? Four set-ups of which each has one limit.

usage: python bench/headroom_checks.py STORE [--checks disk,sampler,step,buffer] [--disk-rate 150MB]
           [--batches 16] [--rounds 3] [--json FILE]

disk     the kernel lets the command read from the store's disk at --disk-rate only (a control group
         of version 1 with blkio, as root); a buffer of half of the rows, a step of a millisecond
sampler  one sampler, a fanout of 15,15,15, all rows in the feature buffer, and a process beside it
         that keeps one processor busy
step     a training step of half a second
buffer   a feature buffer that has room for little more than one batch

Each is right if the verdict begins with the words that belong to the set-up. The store needs some
hundred megabytes of rows, as bench/scale.py makes them. The exit code is 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _script

import gnndrive
from gnndrive.cli.measure.memory_limit import Kernel, Run
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size

BLKIO = Path("/sys/fs/cgroup/blkio")
BLOCK_DEVICES = Path("/sys/dev/block")
READ_RATE = "blkio.throttle.read_bps_device"
BURN = "while True: pass"
FANOUT, BATCH_SIZE = "10,10", "1000"
BUFFER_BATCHES = 1.25  # largest batches that a buffer that is too small has room for


@dataclass(frozen=True)
class Check:
    """The command's options, a processor that another process keeps busy, a disk that is made slow,
    and the words with which the verdict must begin."""

    words: str
    options: tuple[str, ...]
    busy: bool = False
    throttled: bool = False


def checks(row_bytes: int, rows: int, batch_rows: int) -> dict[str, Check]:
    """The set-ups for a store of so many rows, whose batches have at most `batch_rows`."""
    small, half, whole = (
        str(row_bytes * int(count)) for count in (BUFFER_BATCHES * batch_rows, rows // 2, rows)
    )
    usual = ("--fanout", FANOUT, "--batch-size", BATCH_SIZE)
    return {
        "disk": Check(
            "you wait for the disk", (*usual, "--buffer", half, "--step-ms", "1"), throttled=True
        ),
        "sampler": Check(
            "you wait for the sampler",
            ("--fanout", "15,15,15", "--batch-size", BATCH_SIZE, "--buffer", whole, "--tuning",
             "samplers=1", "--step-ms", "1"), busy=True,
        ),
        "step": Check(
            "you wait for the training step", (*usual, "--buffer", half, "--step-ms", "500")
        ),
        "buffer": Check(
            "the feature buffer is too small", (*usual, "--buffer", small, "--step-ms", "1")
        ),
    }  # fmt: skip


def device_of(folder: Path) -> str:
    """The "major:minor" of the disk that a folder is on: of the whole disk, because a partition has
    no limit of its own.

    Raises:
        ConfigError: it is on no block device.
    """
    number = folder.stat().st_dev
    device = BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
        raise ConfigError(f"{folder} is on no disk that can be made slow: put the store on one")
    device = device.resolve()
    if (device / "partition").exists():
        device = device.parent
    return (device / "dev").read_text(encoding="ascii").strip()


@contextlib.contextmanager
def slow_disk(folder: Path, rate: int) -> Iterator[Run]:
    """A context with a group in which a command reads at most `rate` bytes a second from the disk
    of `folder`.

    Raises:
        ConfigError: this process may not limit it.
    """
    group, kernel = BLKIO / f"gnndrive-headroom-{rate}", Kernel()
    try:
        group.mkdir(exist_ok=True)
        (group / READ_RATE).write_text(f"{device_of(folder)} {rate}", encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"the disk cannot be made slow ({error}): run this as root where control groups of "
            f"version 1 have blkio at {BLKIO}, or leave out disk with --checks"
        ) from None
    try:
        yield Run(group, group / READ_RATE, kernel)
    finally:
        kernel.remove(group)


@contextlib.contextmanager
def busy_processor() -> Iterator[None]:
    """A context in which another process keeps one processor busy."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(check: Check, own: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "gnndrive.cli.main", "bench", "headroom", str(own.store)]
    command += [*check.options, "--batches", str(own.batches), "--rounds", str(own.rounds)]
    with contextlib.ExitStack() as around:
        if check.throttled:
            command = around.enter_context(slow_disk(own.store, own.disk_rate)).command(command)
        if check.busy:
            around.enter_context(busy_processor())
        ended = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise ConfigError(f"{' '.join(command)} ended with {ended.returncode}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    names = list(checks(1, 1, 1))
    parser.add_argument("store", type=Path)
    parser.add_argument("--checks", type=_script.names, default=names)
    parser.add_argument("--disk-rate", default="150MB", help="bytes a second of the slow disk")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    own = parser.parse_args(given)
    _script.check_names(parser, "check", own.checks, names)
    own.disk_rate = parse_size(own.disk_rate, "--disk-rate")
    return own


def batch_rows(store: Any) -> int:
    """The rows of the largest of a few batches of the usual set-up."""
    fanout = [int(part) for part in FANOUT.split(",")]
    with gnndrive.NeighborLoader(
        store, fanout, batch_size=int(BATCH_SIZE), shuffle=True, seed=0, memory="8GB"
    ) as loader:
        return int(loader.plan().batch_rows_max)


def main() -> None:
    own = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the child, too
    store = gnndrive.open(own.store)
    x = store.table("nodes/x")
    made, found, wrong = checks(x.row_bytes, x.row_count, batch_rows(store)), {}, 0
    for name in own.checks:
        check = made[name]
        found[name] = run(check, own)
        text = found[name]["headroom"]["verdict"]
        right = text.startswith(check.words)
        wrong += not right
        print(f"{name:<8} {'right' if right else 'WRONG'}  {' '.join(check.options)}")
        for line in found[name]["headroom"]["lines"]:
            seconds, times = line["seconds_per_batch"], line["times"]
            print(f"         {line['free']:<8} {seconds:8.4f} s {times:6.2f}")
        print(f"         {text}", flush=True)
    if own.json:
        _script.write(found, own.json)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    _script.run(main)

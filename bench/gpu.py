"""The cost of the way to the GPU: rows into the feature buffer, rows out of it, and whole epochs.

usage: python bench/gpu.py STORE [--runs 3] [--batches 20] [--device-memory 4GB] [--json FILE]
       python bench/gpu.py --generate 20 --folder DIR [--host-budget 4GiB] [the same options]
       python bench/gpu.py --parts h2d,gather      (neither store nor disk)
       python bench/gpu.py --parts h2d --switch defaults --switch "blocks=128 gather_stream"

Three parts:
h2d     rows from pinned staging into random slots of the feature buffer, in each of the ways,
        compared with a plain cudaMemcpyAsync of the same bytes from the same memory
gather  rows of random slots into a new tensor, compared with a copy of the same bytes within the
        GPU's memory; the copy of the slot numbers counts if it is on the stream that gathers
epoch   seconds a batch with a training step on each, a GraphSAGE of 64 hidden units, compared with
        pinned      PyG's way: threads sample and gather from the memory-mapped table into pinned
                    memory, ahead of training; a batch is copied to the GPU in one piece
        row-copies  the same, with one cudaMemcpyAsync a row

h2d and gather are the GPU's time between two events; all work is queued before the first starts.
Bytes are those of the rows, counted once. Loaders run in separate processes, in turn, with cold
caches, on the same batches, which a checksum proves; time counts from the end of the set-up to the
end of the last step. `idle` is the share of that time in which no step ran on the GPU: 1 less the
steps' seconds, each between two events, over the epoch's seconds. A gather of gnndrive that runs
during a step counts as part of the step.

Figures are the median of the runs and their range; a ratio is of two figures of one run. Each
--switch is one set of the device's switches (gnndrive/buffer/devices/_options.py); they are
measured in turn.

`--generate N` first makes a graph of N million nodes in DIR (593 bytes of disk a node), unless it
exists. `--host-budget` limits each loader's memory, page cache and CUDA's own libraries included,
with a cgroup as root, after a trial of whether a limit is enforced. Otherwise the output says that
there was no limit, and the page cache helps the two loaders that map the store. bench/epoch.py's
options are accepted too (`--batch-size`, `--fanout`, `--topology`, …). With --seconds, epochs have
as many batches and rounds as fit into the time, at least one round, after a pilot, and only the
store's files are dropped from the caches. `--json` is written after each result, so that a run that
is stopped leaves what it had. Without a GPU the script says so and exits with 2; if something could
not be measured, it says what and exits with 1. --rehearse runs on a fake GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import _script
import epoch
import scale
import torch
from _gpu import needed, parse_switches
from _gpu_epochs import RUNS, Epochs, speedups_of_gnndrive
from _gpu_moves import measure_moves
from _limits import tried_limit
from _script import grouped, names, spread

import gnndrive
from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size

PARTS = ("h2d", "gather", "epoch")


# ---- the output


def table(found: dict[str, Any], options: argparse.Namespace | None) -> str:
    lines, to = [found["machine"]], "–"
    if found["moves"]:
        heads = f"{'rows':>6} {'GB/s':>24} {'plain copy GB/s':>24} {'ratio':>18}  switches"
        lines.append(f"{'part':<7} {'way':<11} {heads}")
    for move in found["moves"]:
        moved, plain = (
            spread([x / 1e9 for x in move[key]], 1, to)
            for key in ("bytes_per_s", "plain_bytes_per_s")
        )
        lines.append(
            f"{move['part']:<7} {move['way']:<11} {move['row_bytes']:>4} B {moved:>24} "
            f"{plain:>24} {spread(move['ratio'], 3, to):>18}  {move['switches']}"
        )
    lines += [f"not measured: {what}" for what in found["unavailable"] + found["failed"]]
    if options is None or not found["epochs"]:
        return "\n".join(lines)
    fanout, engine = ",".join(map(str, options.fanout)), ""
    lines.append(f"batches of {options.batch_size}, fanout {fanout}; {found['memory']}")
    lines.append(f"{'loader':<11} {'s/batch':>22} {'GPU idle':>22} {'ours beside it':>22}")
    for (name, switches), runs in grouped(found["epochs"], "loader", "switches").items():
        engine = runs[0].get("engine", engine)
        line = f"{name:<11} {spread([run['s_per_batch'] for run in runs], 3, to):>22}"
        line += f" {spread([run['idle'] for run in runs], 2, to):>22}"
        if name != "gnndrive" and (ratios := speedups_of_gnndrive(found["epochs"], name)):
            line += f" {spread(ratios, 2, to):>22}"
        lines.append(line if switches == "defaults" else f"{line}  {switches}")
    return "\n".join([*lines, f"engine: {engine}"] if engine else lines)


def machine(rehearse: bool) -> str:
    if rehearse:
        return f"a rehearsal on a fake GPU, torch {torch.__version__}"
    try:
        import cupy

        version = f"CuPy {cupy.__version__}"
    except ImportError:
        version = "no CuPy"
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {version}"


# ---- the script


def parse(given: list[str]) -> tuple[argparse.Namespace, argparse.Namespace | None]:
    """Parse this script's options and bench/epoch.py's; the latter are None if no loader runs."""
    parser = _script.parser(__doc__)
    parser.add_argument("--parts", type=names, default=list(PARTS))
    parser.add_argument("--ways", type=names, default=list(WAYS), help="of the moves")
    parser.add_argument("--way", choices=WAYS, help="of the epochs; default: the loader's choice")
    parser.add_argument("--switch", action="append", metavar='"NAME=VALUE …"')
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="time for all epochs; default: no limit")
    parser.add_argument("--generate", type=float, metavar="N", help="million nodes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder of that graph")
    parser.add_argument("--loaders", dest="gpu_loaders", type=names, default=list(RUNS))
    parser.add_argument("--device-memory", help="default: what training leaves")
    parser.add_argument("--buffer", help="default: what --device-memory leaves")
    parser.add_argument("--host-budget", metavar="SIZE", help="memory limit of each loader")
    parser.add_argument("--threads", type=int, default=4, help="of the two loaders that map")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU, in small")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    own, left = parser.parse_known_args(given)
    own.switch = list(dict.fromkeys(own.switch or ["defaults"]))
    _script.check_names(parser, "part", own.parts, PARTS)
    _script.check_names(parser, "loader", own.gpu_loaders, RUNS)
    _script.check_names(parser, "way", own.ways, WAYS)
    try:
        for switches in own.switch:
            parse_switches(switches)
    except ConfigError as error:
        parser.error(str(error))
    if own.runs < 1 or own.threads < 1:
        parser.error("--runs and --threads must be at least 1")
    if "epoch" not in own.parts:
        return own, None
    if own.generate is not None:
        left = [str(scale.store_path(own.folder, round(own.generate * 1e6))), *left]
    options = epoch.parse(left)
    options.given, options.buffer = given, own.buffer
    options.device_memory, options.threads = own.device_memory, own.threads
    options.way, options.switches = own.way, parse_switches(own.switch[-1])
    return own, options


def measure(
    own: argparse.Namespace, options: argparse.Namespace | None, found: dict[str, Any]
) -> None:
    """Measure all parts; the file of --json is written after each result."""

    def save() -> None:
        if own.json:
            _script.write(found, own.json)

    measure_moves(own, found, save)
    if options is None:
        return
    if own.generate is not None:
        scale.make_missing(own.folder, [round(own.generate * 1e6)])
    found["features_bytes"] = gnndrive.open(options.store).info.arrays["nodes/x"].nbytes
    none = None, "no memory limit was requested, the store's pages dropped"
    budget = own.host_budget
    everything = own.seconds is None  # libraries are read again too, which takes seconds
    with (
        tried_limit(parse_size(budget, "--host-budget"), everything)
        if budget
        else nullcontext(none)
    ) as (group, found["memory"]):
        found["limited"] = group is not None
        Epochs(own, options, group, found, save).run()


def run(own: argparse.Namespace, options: argparse.Namespace | None) -> None:
    if own.worker and options is not None:
        json.dump(RUNS[own.worker](options) | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    found: dict[str, Any] = {"machine": machine(own.rehearse), "memory": ""}
    found |= {"moves": [], "epochs": [], "unavailable": [], "failed": []}
    found |= {"rehearsal": own.rehearse, "host_budget": own.host_budget or ""}
    measure(own, options, found)
    _script.show(table(found, options), found, own.json)
    if found["failed"]:
        sys.exit(1)


def main() -> None:
    own, options = parse(sys.argv[1:])
    with needed(own.rehearse):
        run(own, options)


if __name__ == "__main__":
    _script.run(main)

"""docs/gpu-results.md, filled in from the results of bench/gpu_all.py.

A part, such as `moves`, may have run as several commands: one for each way ("moves, staged"), or
again with more memory ("epochs, 5GiB").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _gpu_epochs import same_batches, speedups_of_gnndrive
from _gpu_moves import MEASURE, ROW_BYTES
from _script import grouped
from _script import spread as spread_to

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.common.memory import format_size, parse_size

ROOT = Path(__file__).resolve().parent.parent
FILLED = "## Results"
HOW = "## How to run it"
FAKE = "*(fake GPU)*"
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
MACHINE = {
    "date": "date", "commit": "commit of the bundle", "gpu": "GPU", "torch": "torch",
    "cupy": "CuPy", "python": "Python", "kernel": "kernel", "cores": "cores", "memory": "memory",
    "mount": "mount of the graph's folder", "disk": "disk", "queues": "CUDA's queues",
    "engine": "engine", "why_threads": "why not io_uring", "limits": "memory of a loader",
}  # fmt: skip
SAME_WAY = 0.02  # ratios that differ by less are the same

Result = dict[str, Any]


# ---- what is in the results


def step_of(name: str) -> str:
    """The part that a command belongs to."""
    return "graph" if name == "smaller graph" else name.partition(",")[0]


def of_step(results: Result, step: str) -> list[Result]:
    return [ran for name, ran in results["parts"].items() if step_of(name) == step]


def all_of(ran: Iterable[Result], what: str) -> list[Result]:
    """All that commands have measured of something: "moves" or "epochs"."""
    return [each for one in ran for each in one["result"].get(what, [])]


def working_ways(results: Result) -> list[str]:
    """The ways of which all moves were measured, and that failed at nothing; the preferred one
    first."""
    found = {way: results["parts"].get(f"moves, {way}", {}).get("result", {}) for way in WAYS}
    each = len(MEASURE) * len(ROW_BYTES)
    return [
        way for way, result in found.items()
        if len(result.get("moves", [])) == each and not result["failed"]
    ]  # fmt: skip


def epochs_of_gnndrive(results: Result) -> Result:
    """The first result, that with the least memory, in which an epoch of gnndrive ended, or {}."""
    for one in of_step(results, "epochs"):
        if any(each["loader"] == "gnndrive" for each in all_of([one], "epochs")):
            found: Result = one["result"]
            return found
    return {}


def compared(ran: list[Result], loader: str) -> list[Result]:
    """The command that compares gnndrive with a loader under the least memory; without one, the
    last that has any epochs, or the last."""
    for one in ran:
        if speedups_of_gnndrive(all_of([one], "epochs"), loader):
            return [one]
    return ([one for one in ran if all_of([one], "epochs")] or ran)[-1:]


def why(one: Result) -> str:
    kinds = (one["result"].get(kind, []) for kind in ("failed", "unavailable"))
    lines = [line for lines in kinds for line in lines if isinstance(line, str)]
    return "; ".join(lines) or one["error"] or "no result"


# ---- figures: each is made of the commands of its part; an empty one is not there


def spread(values: Sequence[float], digits: int = 2) -> str:
    return spread_to(values, digits, "–")


def tests(results: Result, ran: list[Result]) -> str:
    """The counts of tests/gpu, each test that failed, and why others were skipped."""
    if not ran or "passed" not in ran[0]["result"]:
        return ""
    found = ran[0]["result"]
    failed, skipped = found["failed"], found["skipped"]
    words = [f"{found['passed']} passed, {len(failed)} failed, {len(skipped)} skipped"]
    words += [f"{name} failed: {error}" for name, error in failed]
    reasons = Counter(reason for _, reason in skipped)
    words += [f"{count} skipped: {reason}" for reason, count in reasons.items()]
    if ran[0]["status"] is None:
        words.append(f"not all ran: {ran[0]['error']}")
    return "; ".join(words)


def ratios(results: Result, ran: list[Result], kind: str) -> str:
    return "; ".join(
        f"{move['way']}, {move['row_bytes']:,} B: {spread(move['ratio'])}"
        for move in all_of(ran, "moves") if move["part"] == kind
    )  # fmt: skip


def faster_way(results: Result, ran: list[Result]) -> str:
    """The way whose rows reach the feature buffer faster, by the smaller of its ratios; a way that
    failed at any move does not count."""
    if not all_of(ran, "moves"):
        return ""
    ways = working_ways(results)
    rows = [move for move in all_of(ran, "moves") if move["part"] == "h2d" and move["way"] in ways]
    least = {
        way: min(median(move["ratio"]) for move in of_way)
        for way, of_way in grouped(rows, "way").items()
    }
    if len(least) < 2:
        return f"not measured: only {', '.join(least) or 'no way'} could be measured"
    first, second, *_ = sorted(least, key=lambda way: -least[way])
    words = f"{first}: {least[first]:.2f} of the plain copy, {second} {least[second]:.2f}"
    return words + (" (no difference)" if least[first] - least[second] < SAME_WAY else "")


def speedup(results: Result, ran: list[Result], loader: str) -> str:
    epochs = all_of(ran, "epochs")
    if not epochs:
        return ""
    if not same_batches(epochs):
        return "not measured: the loaders did not train on the same batches"
    found, values = ran[0]["result"], speedups_of_gnndrive(epochs, loader)
    if not values:
        return f"not measured: no round in which both loaders ended: {why(ran[0])}"
    rounds = f"{len(values)} rounds of" if len(values) > 1 else "1 round of"
    return (
        f"{spread(values)} times as fast; {rounds} {epochs[0]['batches']} batches; features "
        f"{format_size(found['features_bytes'])}, {found['memory']}{room(found)}"
    )


def room(found: Result) -> str:
    """A warning if a loader's memory may have had room for all features."""
    budget = found.get("host_budget") if found.get("limited") else ""
    if budget and parse_size(budget, "host_budget") < found["features_bytes"]:
        return ""
    return (
        f"; **the features {'fit' if budget else 'may fit'} into the host's memory: this does not "
        "answer the question**"
    )


def idle(results: Result, ran: list[Result]) -> str:
    return "; ".join(
        f"{loader} {spread([one['idle'] for one in runs])}"
        for loader, runs in grouped(all_of(ran, "epochs"), "loader").items()
    )


def disk(results: Result, ran: list[Result]) -> str:
    return "".join(
        f"{found['request_s'] * 1e6:.1f} µs a request, {found['byte_s'] * 1e9:.3f} ns a byte, "
        f"{found['depth']} at once, engine {found['engine']}{on_memory(results)}"
        for found in (one["result"] for one in ran) if found
    )  # fmt: skip


def on_memory(results: Result) -> str:
    """A warning if the graph lies in memory."""
    mounted = results["parts"].get("machine", {}).get("result", {}).get("mount", "").split()
    if any(kind in mounted for kind in MEMORY_FILE_SYSTEMS):
        return "; **the folder is in memory: this is no disk's figure**"
    return ""


def switches(results: Result, ran: list[Result]) -> str:
    """The ratio of each set of switches to a plain copy, less that of the defaults."""
    by_set = grouped(all_of(ran, "moves"), "switches")
    plain = {(move["part"], move["row_bytes"]): median(move["ratio"])
             for move in by_set.pop("defaults", [])}  # fmt: skip
    changes = []
    for name, rows in by_set.items():
        words = [
            f"{move['part']} {move['row_bytes']:,} B "
            f"{median(move['ratio']) - plain[move['part'], move['row_bytes']]:+.2f}"
            for move in rows if (move["part"], move["row_bytes"]) in plain
        ]  # fmt: skip
        changes += [f"{name}: {', '.join(words)}"] if words else []
    return "; ".join(changes)


def switch_epochs(results: Result, ran: list[Result]) -> str:
    epochs = all_of(ran, "epochs")
    return "; ".join(f"{one['switches']}: {one['s_per_batch']:.3f} s" for one in epochs)


class Row(NamedTuple):
    """A question of the page, and what answers it.

    Attributes:
        question: the question.
        wanted: what is asked for.
        step: the part whose commands answer it.
        answer: makes the figure of all results and of these commands.
        loader: of the part's commands the one counts that compares gnndrive with this loader.
    """

    question: str
    wanted: str
    step: str
    answer: Callable[[Result, list[Result]], str]
    loader: str = ""


ROWS = (
    Row("tests/gpu", "green", "tests", tests),
    Row("rows into the feature buffer beside a plain pinned copy of the same bytes, 512 and 3,072 "
        "bytes a row, by each way", "at least 0.9", "moves", partial(ratios, kind="h2d")),
    Row("which way is faster", "", "moves", faster_way),
    Row("gather beside a copy within the GPU's memory, 512 and 3,072 bytes a row, by each way",
        "at least 0.8", "moves", partial(ratios, kind="gather")),
    Row("seconds a batch beside PyG's way, pinned host gather and copy, features larger than the "
        "host's budget", "at least 2 times as fast", "epochs", partial(speedup, loader="pinned"),
        "pinned"),
    Row("seconds a batch beside one copy a row", "", "epochs",
        partial(speedup, loader="row-copies"), "row-copies"),
    Row("GPU idle share of the epoch, each loader", "", "epochs", idle, "pinned"),
    Row("the disk's two constants", "", "disk", disk),
    Row("rows moved with each switch of the device, ratio less that of the defaults", "",
        "switches", switches),
    Row("seconds a batch with each switch of the device", "", "switch-epochs", switch_epochs),
)  # fmt: skip


# ---- the page


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cell(value) for value in line)} |" for line in lines] + [""]


def cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def answer(results: Result, row: Row) -> tuple[str, str, str, str, str]:
    """A question, what is asked for, the figure, when it was measured and by what."""
    ran = of_step(results, row.step)
    if row.loader:
        ran = compared(ran, row.loader)
    figure = row.answer(results, ran)
    if not figure:
        not_run = "not run" if row.step in results["asked"] else "not asked for"
        figure = f"not measured: {'; '.join(map(why, ran)) or not_run}"
    elif results["rehearsal"]:
        figure += f" {FAKE}"
    commands = "; ".join(f"`{one['command']}`" for one in ran if one["command"])
    return row.question, row.wanted, figure, ran[0]["began"] if ran else "", commands


def page(results: Result, template: str) -> str:
    found = results["parts"].get("machine", {}).get("result", {})
    mark = f" {FAKE}" if results["rehearsal"] else ""
    head = (
        "**A rehearsal on a fake GPU.** No figure here is a measurement."
        if results["rehearsal"]
        else f"Measured {found.get('date', '')} on {found.get('gpu', 'a machine unknown')}, commit "
        f"{found.get('commit', 'unknown')}."
    )
    title, how = template.splitlines()[0], template[template.index(HOW) :]
    how = how[: how.index(FILLED)].strip()
    lines = [title, "", head + on_memory(results), "", how, "", FILLED, ""]
    heads = ("question", "asked for", "figure", "when", "command")
    lines += table(heads, [answer(results, row) for row in ROWS])
    lines += ["### The machine", ""]
    known = [(words, found[name]) for name, words in MACHINE.items() if found.get(name, "") != ""]
    lines += table(("what", "is"), known or [("everything", "not described")])
    lines += [*moves_table(results, mark), *epochs_table(results, mark)]
    lines += ["### How the parts ended", ""]
    ended = [
        (name, f"{ran['seconds']:.0f}", ran["error"] or "well")
        for name, ran in results["parts"].items()
    ]
    lines += table(("part", "seconds", "ended"), ended)
    return "\n".join(lines)


def moves_table(results: Result, mark: str) -> list[str]:
    rows = [
        (
            move["part"], move["way"], f"{move['row_bytes']:,}", move["switches"],
            spread([value / 1e9 for value in move["bytes_per_s"]], 1) + mark,
            spread([value / 1e9 for value in move["plain_bytes_per_s"]], 1) + mark,
            spread(move["ratio"], 3) + mark,
        )
        for step in ("moves", "switches") for move in all_of(of_step(results, step), "moves")
    ]  # fmt: skip
    heads = ("part", "way", "bytes a row", "switches", "GB/s", "plain copy GB/s", "ratio")
    return ["### Moves", "", *table(heads, rows)] if rows else []


def epochs_table(results: Result, mark: str) -> list[str]:
    rows = [
        (
            name, loader, chosen, len(runs), runs[0]["batches"],
            spread([one["s_per_batch"] for one in runs], 3) + mark,
            spread([one["idle"] for one in runs]) + mark,
            format_size(max(one["peak_bytes"] for one in runs)), runs[0].get("engine", ""),
        )
        for name, ran in results["parts"].items() if "epochs" in name
        for (loader, chosen), runs in grouped(all_of([ran], "epochs"), "loader", "switches").items()
    ]  # fmt: skip
    heads = ("part", "loader", "switches", "rounds", "batches", "s a batch", "GPU idle",
             "peak of host memory", "engine")  # fmt: skip
    return ["### Epochs", "", *table(heads, rows)] if rows else []

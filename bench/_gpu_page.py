"""docs/gpu-results.md, filled in from the results of bench/gpu_all.py.

usage: python bench/_gpu_page.py RESULTS.json >docs/gpu-results.md
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from _gpu_epochs import same_batches, speedups_of_gnndrive
from _gpu_tries import moves_of, of_step, try_with, working_ways

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
FIRST = "pinned"  # the loader that gnndrive is compared with first
SAME_WAY = 0.02  # ratios that differ by less are the same

Result = dict[str, Any]
Parts = Callable[[Result], list[str]]


class Missing(Exception):
    """A figure is missing; the message says why."""


# ---- what is in the results


def part(results: Result, name: str) -> Result:
    """A part.

    Raises:
        Missing: it was not run.
    """
    if name not in results["parts"]:
        raise Missing("not run" if name in results["asked"] else "not asked for")
    found: Result = results["parts"][name]
    return found


def of_part(results: Result, name: str, key: str) -> Any:
    """What a part's result has at `key`.

    Raises:
        Missing: the part has failed, or its result lacks that.
    """
    found = part(results, name)["result"].get(key)
    if found is None or found == []:
        raise Missing(why(results, name))
    return found


def why(results: Result, name: str) -> str:
    """Why a part lacks a result."""
    ran = part(results, name)
    kinds = () if name == "tests" else ("failed", "unavailable")
    said = [line for kind in kinds for line in ran["result"].get(kind, [])]
    return "; ".join(said) or ran["error"] or "no result"


def moves(results: Result, step: str = "moves") -> list[Result]:
    """All moves that the parts of a step have measured.

    Raises:
        Missing: there are none.
    """
    if found := moves_of(results, step):
        return found
    raise Missing("; ".join(why(results, name) for name in of_step(results, step) or [step]))


def epochs_with(results: Result, loader: str) -> tuple[str, list[Result]]:
    """The try in which a loader is compared with gnndrive, and its epochs.

    Raises:
        Missing: it has none, or their times cannot be compared.
    """
    name = try_with(results, loader)
    found: list[Result] = of_part(results, name, "epochs")
    if not same_batches(found):
        raise Missing("the loaders did not train on the same batches")
    return name, found


# ---- figures


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the range if there are several values."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def tests(results: Result) -> str:
    """The counts of tests/gpu, each test that failed, and why others were skipped."""
    of_part(results, "tests", "passed")
    found = results["parts"]["tests"]["result"]
    failed, skipped = found["failed"], found["skipped"]
    words = [f"{found['passed']} passed, {len(failed)} failed, {len(skipped)} skipped"]
    words += [f"{name} failed: {error}" for name, error in failed]
    reasons = Counter(reason for _, reason in skipped)
    words += [f"{count} skipped: {reason}" for reason, count in reasons.items()]
    if results["parts"]["tests"]["status"] is None:
        words.append(f"not all ran: {results['parts']['tests']['error']}")
    return "; ".join(words)


def ratios(results: Result, kind: str) -> str:
    """The ratio to a plain copy, of each way and row size."""
    found = [move for move in moves(results) if move["part"] == kind]
    if not found:
        raise Missing("; ".join(why(results, name) for name in of_step(results, "moves")))
    return "; ".join(
        f"{move['way']}, {move['row_bytes']:,} B: {spread(move['ratio'])}" for move in found
    )


def faster_way(results: Result) -> str:
    """The way whose rows reach the feature buffer faster, by the smaller of its ratios; a way that
    failed at any move does not count."""
    least: dict[str, float] = {}
    found, ways = moves(results), working_ways(results)
    for move in found:
        if move["part"] == "h2d" and move["way"] in ways:
            ratio = statistics.median(move["ratio"])
            least[move["way"]] = min(least.get(move["way"], ratio), ratio)
    if len(least) < 2:
        raise Missing(f"only {', '.join(least) or 'no way'} could be measured")
    first, second, *_ = sorted(least, key=lambda way: -least[way])
    words = f"{first}: {least[first]:.2f} of the plain copy, {second} {least[second]:.2f}"
    return words + (" (no difference)" if least[first] - least[second] < SAME_WAY else "")


def speedup(results: Result, loader: str) -> str:
    """How many times as fast as `loader` gnndrive was."""
    name, epochs = epochs_with(results, loader)
    found = results["parts"][name]["result"]
    values = speedups_of_gnndrive(epochs, loader)
    if not values:
        raise Missing(f"no round in which both loaders ended: {why(results, name)}")
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


def idle(results: Result) -> str:
    """The share of time without a training step, of each loader."""
    _, epochs = epochs_with(results, FIRST)
    shares: dict[str, list[float]] = {}
    for result in epochs:
        shares.setdefault(result["loader"], []).append(result["idle"])
    return "; ".join(f"{loader} {spread(values)}" for loader, values in shares.items())


def disk(results: Result) -> str:
    """The disk's two constants."""
    request_s = of_part(results, "disk", "request_s")
    found = results["parts"]["disk"]["result"]
    return (
        f"{request_s * 1e6:.1f} µs a request, {found['byte_s'] * 1e9:.3f} ns a byte, "
        f"{found['depth']} at once, engine {found['engine']}{on_memory(results)}"
    )


def on_memory(results: Result) -> str:
    """A warning if the graph lies in memory."""
    mounted = results["parts"].get("machine", {}).get("result", {}).get("mount", "").split()
    if any(kind in mounted for kind in MEMORY_FILE_SYSTEMS):
        return "; **the folder is in memory: this is no disk's figure**"
    return ""


def switches(results: Result) -> str:
    """The ratio of each set of switches to a plain copy, less that of the defaults."""
    found = moves(results, "switches")
    plain = {(m["part"], m["row_bytes"]): statistics.median(m["ratio"])
             for m in found if m["switches"] == "defaults"}  # fmt: skip
    changes: dict[str, list[str]] = {}
    for move in found:
        key = move["part"], move["row_bytes"]
        if move["switches"] != "defaults" and key in plain:
            change = statistics.median(move["ratio"]) - plain[key]
            words = f"{move['part']} {move['row_bytes']:,} B {change:+.2f}"
            changes.setdefault(move["switches"], []).append(words)
    if not changes:
        raise Missing("; ".join(why(results, name) for name in of_step(results, "switches")))
    return "; ".join(f"{name}: {', '.join(words)}" for name, words in changes.items())


def switch_epochs(results: Result) -> str:
    """Seconds a batch of gnndrive with each set of switches."""
    epochs = of_part(results, "switch-epochs", "epochs")
    times = {result["switches"]: result["s_per_batch"] for result in epochs}
    return "; ".join(f"{name}: {seconds:.3f} s" for name, seconds in times.items())


def in_step(step: str) -> Parts:
    """The parts of a step."""
    return lambda results: of_step(results, step)


def in_try(loader: str) -> Parts:
    """The try of the epochs in which a loader is compared with gnndrive."""
    return lambda results: [try_with(results, loader)]


Row = tuple[Parts, Callable[[Result], str]]
ROWS: dict[str, Row] = {
    "tests/gpu": (in_step("tests"), tests),
    "rows into the feature buffer beside a plain pinned copy of the same bytes, 512 and 3,072 "
    "bytes a row, by each way": (in_step("moves"), lambda results: ratios(results, "h2d")),
    "which way is faster": (in_step("moves"), faster_way),
    "gather beside a copy within the GPU's memory, 512 and 3,072 bytes a row, by each way":
        (in_step("moves"), lambda results: ratios(results, "gather")),
    "seconds a batch beside PyG's way, pinned host gather and copy, features larger than the "
    "host's budget": (in_try(FIRST), lambda results: speedup(results, FIRST)),
    "seconds a batch beside one copy a row":
        (in_try("row-copies"), lambda results: speedup(results, "row-copies")),
    "GPU idle share of the epoch, each loader": (in_try(FIRST), idle),
    "the disk's two constants": (in_step("disk"), disk),
    "rows moved with each switch of the device, ratio less that of the defaults":
        (in_step("switches"), switches),
    "seconds a batch with each switch of the device": (in_step("switch-epochs"), switch_epochs),
}  # fmt: skip
"""By the question of docs/gpu-results.md: the parts that answer it, and the answer."""


# ---- the page


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cell(value) for value in line)} |" for line in lines] + [""]


def cell(value: object) -> str:
    """A value as the text of a table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def questions(template: str) -> dict[str, str]:
    """What is asked for, by the questions of the page's table."""
    lines = template[template.index(FILLED) :].splitlines()
    first = lines.index(next(line for line in lines if line.startswith("| question |")))
    asked = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        question, wanted, *_ = (word.strip() for word in line.strip("|").split("|"))
        asked[question] = wanted
    return asked


def answers(results: Result, template: str) -> list[tuple[str, str, str, str, str]]:
    """For each question: what is asked for, the figure, when it was measured and by what."""
    lines = []
    for question, wanted in questions(template).items():
        parts, answer = ROWS[question]
        ran = [results["parts"][name] for name in parts(results) if name in results["parts"]]
        try:
            figure = answer(results) + (f" {FAKE}" if results["rehearsal"] else "")
        except Missing as why:
            figure = f"not measured: {why}"
        began = ran[0]["began"] if ran else ""
        commands = "; ".join(f"`{one['command']}`" for one in ran if one["command"])
        lines.append((question, wanted, figure, began, commands))
    return lines


def page(results: Result, template: str) -> str:
    """The page with the results instead of its last section."""
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
    lines += table(("question", "asked for", "figure", "when", "command"),
                   answers(results, template))  # fmt: skip
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
    """Every move."""
    rows = [
        (
            move["part"], move["way"], f"{move['row_bytes']:,}", move["switches"],
            spread([value / 1e9 for value in move["bytes_per_s"]], 1) + mark,
            spread([value / 1e9 for value in move["plain_bytes_per_s"]], 1) + mark,
            spread(move["ratio"], 3) + mark,
        )
        for move in moves_of(results, "moves", "switches")
    ]  # fmt: skip
    heads = ("part", "way", "bytes a row", "switches", "GB/s", "plain copy GB/s", "ratio")
    return ["### Moves", "", *table(heads, rows)] if rows else []


def epochs_table(results: Result, mark: str) -> list[str]:
    """Every loader of every try."""
    rows = []
    for name in (name for name in results["parts"] if "epochs" in name):
        found = results["parts"][name]["result"].get("epochs", [])
        turns = dict.fromkeys((result["loader"], result["switches"]) for result in found)
        for loader, chosen in turns:
            runs = [one for one in found if (one["loader"], one["switches"]) == (loader, chosen)]
            rows.append((
                name, loader, chosen, len(runs), runs[0]["batches"],
                spread([one["s_per_batch"] for one in runs], 3) + mark,
                spread([one["idle"] for one in runs]) + mark,
                format_size(max(one["peak_bytes"] for one in runs)), runs[0].get("engine", ""),
            ))  # fmt: skip
    heads = ("part", "loader", "switches", "rounds", "batches", "s a batch", "GPU idle",
             "peak of host memory", "engine")  # fmt: skip
    return ["### Epochs", "", *table(heads, rows)] if rows else []


def main() -> None:
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(page(results, (ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()

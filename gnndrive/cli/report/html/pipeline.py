"""The pipeline as the paper draws it, with what was measured at each of its places."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.cli.measure.verdict import WAITS as WAITS_MATTER
from gnndrive.cli.report.html.reading import Part, hit_share, rows_looked_up
from gnndrive.cli.report.html.values import (
    count,
    escaped,
    figure,
    over,
    seconds,
    share,
    size,
    table,
)

STAGES = {
    "sampler_wait": "seeds wait for a sampler",
    "sample": "a worker samples",
    "extracting_queue": "waits to be extracted",
    "admission": "waits for slots of the feature buffer",
    "read": "missing rows are read",
    "training_queue": "waits to be gathered",
    "gather": "rows are copied into the batch",
    "output_queue": "waits for you",
    "step": "your training step",
}
"""What happens to a batch, in order."""
WAITS = {
    "sample": "wait_sampling_s",
    "extract": "wait_disk_s",
    "train": "wait_gather_s",
    "standby": "wait_slots_s",
}
"""Where in the figure the loop's waiting is."""


@dataclass(frozen=True, slots=True)
class Box:
    """A place in the figure.

    Attributes:
        name: a word of the paper.
        lines: what was measured there.
        kind: "stage", "queue" or "place".
        inside: the places that it consists of, from the top down.
        waited: the line that says how long the loop waited for it.
        most: whether the loop waited for it most.
    """

    name: str
    lines: tuple[str, ...]
    kind: str = "stage"
    inside: tuple[Box, ...] = ()
    waited: str = ""
    most: bool = False

    def markup(self, arrow: str = "") -> str:
        """The place in HTML, an item of a list; `arrow`: the style's class of one that leads to
        it: "to" if it comes from the left on a wide page, "down" if it does not."""
        kind = f"{self.kind} most" if self.most else self.kind
        said = "".join(f"<span>{escaped(line)}</span>" for line in self.lines)
        waited = f'<span class="accent">{escaped(self.waited)}</span>' if self.waited else ""
        inner = "".join(box.markup("down" if at else "") for at, box in enumerate(self.inside))
        inner = f"<ol>{inner}</ol>" if inner else ""
        return f'<li class="box {kind} {arrow}"><b>{self.name}</b>{said}{waited}{inner}</li>'


def pipeline_section(run: Part) -> str:
    """The places that a batch of training goes through."""
    if not (run.has("batches") and run.has("elapsed_s")):
        return ""
    waited = ""
    if run.has("wait_disk_s"):
        waited = " You waited: the time in which your loop had no batch because of this place" + (
            "; the thick border is where it waited most." if _waits(run)[1] else "."
        )
    about = (
        "Each box is a place that a batch goes through, with what was measured there; p50 is the "
        f"median of the batches, p99 what one in a hundred exceeds.{_of_which(run)}{waited}"
    )
    sample, *others, releasing, standby = _boxes(run)
    queue, *stages = (box.markup("to") for box in others)
    last = f'<li class="last to"><ol>{releasing.markup()}{standby.markup("down")}</ol></li>'
    back = '<li class="back">slots for the next rows</li>'
    loop = f'<li class="loop"><ol>{"".join(stages)}{last}{back}</ol></li>'
    picture = f'<ol class="flow">{sample.markup()}{queue}{loop}</ol>'
    return figure(about, _numbers(run), picture)


def _of_which(run: Part) -> str:
    """Of which epochs the percentiles are, if it is not all of them: each epoch had a loader."""
    stages, epochs = run.part("stages"), run.parts("epochs")
    gather = None if stages is None else stages.part("gather")
    counted = None if gather is None else gather.number_or_none("count")
    if counted is None or len(epochs) < 2 or counted >= run.number("batches"):
        return ""
    return " The percentiles are of the last epoch."


def _kept(text: str) -> str:
    return text.replace(" ", "\xa0")


def _spread(run: Part, stage: str, before: str = "") -> tuple[str, ...]:
    """Median and 99th percentile of a stage, if they are known."""
    stages = run.part("stages")
    found = None if stages is None else stages.part(stage)
    if found is None or not found.has("p50_s"):
        return ()
    half, most = found.number("p50_s"), found.number_or_none("p99_s")
    text = before + _kept(f"p50 {seconds(half)}")
    return (text if most is None else f"{text}, {_kept(f'p99 {seconds(most)}')}",)


def _mean(run: Part, seconds_of: str, batches: str) -> tuple[str, ...]:
    """The mean of a stage that has no percentiles."""
    mean = over(run.number_or_none(seconds_of), run.number_or_none(batches))
    return () if mean is None else (f"{seconds(mean)} a batch",)


def _queued(run: Part, queue: str) -> tuple[str, ...]:
    """The mean number of batches in a queue, over the intervals."""
    known = [each for each in run.parts("intervals") if each.has(queue)]
    weights = [each.number_or_none("interval_s") or 0.0 for each in known]
    filled = sum(each.number(queue) * w for each, w in zip(known, weights, strict=True))
    mean = over(filled, sum(weights))
    return () if mean is None else (_kept(f"{count(mean)} batches") + " on average",)


def _rate(run: Part, name: str, what: str) -> tuple[str, ...]:
    """Something a second, if it is known."""
    rate = over(run.number_or_none(name), run.number("elapsed_s"))
    return () if rate is None else (_kept(count(rate)) + f" {what}/s",)


def _boxes(run: Part) -> list[Box]:
    """The figure's places in the order of a batch."""
    elapsed, read = run.number("elapsed_s"), run.number_or_none("bytes_read")
    bytes_s, each = over(read, elapsed), over(read, run.number_or_none("requests"))
    disk = Box(
        "disk",
        (
            *((_kept(size(bytes_s, "/s")),) if bytes_s is not None else ()),
            *_rate(run, "requests", "requests"),
            *((f"{_kept(size(each))} a request",) if each is not None else ()),
        ),
        "place",
    )
    row_bytes = over(run.number_or_none("bytes_wanted"), rows_looked_up(run))
    loaded = run.number_or_none("rows_loaded")
    useful = over(None if row_bytes is None or loaded is None else row_bytes * loaded, read)
    staging = Box(
        "staging",
        () if useful is None else (f"{_kept(share(min(useful, 1.0)))} of the bytes are rows",),
        "place",
    )
    hit, slots = hit_share(run), run.number_or_none("buffer_slots")
    buffer = Box(
        "feature buffer",
        (
            *((_kept(f"{share(hit)} hits"),) if hit is not None else ()),
            *_rate(run, "rows", "rows"),
            *_rate(run, "rows_loaded", "rows loaded"),
            *((_kept(f"{count(slots)} slots"),) if slots is not None else ()),
        ),
        "place",
    )
    waits, most = _waits(run)

    def waited(name: str) -> tuple[str, bool]:
        said = f"you waited {_kept(seconds(waits[name]))}" if waits.get(name) else ""
        return said, bool(said) and name == most

    extract = (*_spread(run, "admission", "waits for slots "), *_spread(run, "read", "read "))
    seeds = _spread(run, "sampler_wait", "seeds wait ")
    sample = _spread(run, "sample", "sampling ") or _mean(run, "sample_s", "samples")
    gather = _spread(run, "gather", "gather ") or _mean(run, "gather_s", "batches")
    return [
        Box("sample", (*seeds, *sample, *_rate(run, "edges", "edges")), "stage", (),
            *waited("sample")),
        Box("extracting queue", (*_queued(run, "extracting_queue"),
            *_spread(run, "extracting_queue")), "queue"),
        Box("extract", extract or _mean(run, "extract_s", "batches"), "stage",
            (disk, staging, buffer), *waited("extract")),
        Box("training queue", (*_queued(run, "training_queue"),
            *_spread(run, "training_queue")), "queue"),
        Box("train", (*_rate(run, "batches", "batches"), *gather,
            *_spread(run, "output_queue", "waits for you "),
            *_spread(run, "step", "step ")), "stage", (), *waited("train")),
        Box("releasing queue", (), "queue"),
        Box("standby", _rate(run, "evictions", "rows leave"), "place", (), *waited("standby")),
    ]  # fmt: skip


def _waits(run: Part) -> tuple[dict[str, float], str]:
    """Seconds that the loop waited, by place, and the place with the most; empty if not
    known, or if all waits together are so short that the verdict names the training step."""
    waits = {name: run.number_or_none(key) or 0.0 for name, key in WAITS.items()}
    most = max(waits, key=lambda name: waits[name])
    share = over(sum(waits.values()), run.number("elapsed_s")) or 0.0
    return waits, most if share >= WAITS_MATTER else ""


def _numbers(run: Part) -> str:
    """Every stage's latencies, and the counters that the figure shows."""
    found = run.part("stages")
    stages = {} if found is None else {name: found.part(name) for name in STAGES}
    rows = [
        (
            name, STAGES[name], count(stage.number_or_none("count")),
            *(seconds(stage.number_or_none(f"{each}_s")) for each in ("mean", "p50", "p90", "p99")),
        )
        for name, stage in stages.items() if stage is not None
    ]  # fmt: skip
    heads = ("stage", "what a batch does", "batches", "mean", "p50", "p90", "p99")
    elapsed = run.number("elapsed_s")
    counters = [
        (what, f"{run.number(name):,.0f}", say(over(run.number(name), elapsed), "/s"))
        for name, what, say in (
            ("batches", "batches", count), ("rows", "rows", count), ("edges", "edges", count),
            ("rows_hit", "rows hit", count), ("rows_waited", "rows shared", count),
            ("rows_loaded", "rows loaded", count), ("evictions", "rows that left", count),
            ("requests", "requests", count), ("bytes_read", "bytes read", size),
            ("bytes_wanted", "bytes wanted", size),
        ) if run.has(name)
    ]  # fmt: skip
    waits = [
        (f"waited for {what}", seconds(run.number(name)), share(over(run.number(name), elapsed)))
        for name, what in (
            ("wait_s", "batches, in all"), ("wait_disk_s", "the disk"),
            ("wait_sampling_s", "sampling"), ("wait_gather_s", "the gather"),
            ("wait_slots_s", "slots"),
        ) if run.has(name)
    ]  # fmt: skip
    both = [*counters, *waits]
    return (table(heads, rows) if rows else "") + table(
        ("counter", "in all", "a second, or of the time"), both
    )

"""The pipeline as the paper draws it, with what was measured at each of its places."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.cli.measure.verdict import WAITS as WAITS_MATTER
from gnndrive.cli.report.html.plots import WAITS
from gnndrive.cli.report.html.reading import Part, hit_share, rows_looked_up
from gnndrive.cli.report.html.values import (
    count,
    escaped,
    figure,
    known,
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
WAITED_AT = {
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
        lines: what was measured there; those that are not known are empty.
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
        said = "".join(f"<span>{escaped(line)}</span>" for line in self.lines if line)
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
    """Of which batches the percentiles are, if it is not all of them: an evaluation between epochs
    ends a loader."""
    counted = run.part("stages").part("gather").number_or_none("count")
    if counted is None or len(run.parts("epochs")) < 2 or counted >= run.number("batches"):
        return ""
    return f" The percentiles are of the last {counted:,.0f} batches."


def _kept(text: str) -> str:
    return text.replace(" ", "\xa0")


def _spread(run: Part, stage: str, before: str = "") -> str:
    """Median and 99th percentile of a stage."""
    found = run.part("stages").part(stage)
    if not found.has("p50_s"):
        return ""
    text = before + _kept(f"p50 {seconds(found.number('p50_s'))}")
    most = known(found.number_or_none("p99_s"), lambda p99: _kept(f"p99 {seconds(p99)}"))
    return f"{text}, {most}" if most else text


def _mean(run: Part, seconds_of: str, batches: str) -> str:
    """The mean of a stage that has no percentiles."""
    mean = over(run.number_or_none(seconds_of), run.number_or_none(batches))
    return known(mean, lambda each: f"{seconds(each)} a batch")


def _queued(run: Part, queue: str) -> str:
    """The mean number of batches in a queue, over the intervals."""
    intervals = [each for each in run.parts("intervals") if each.has(queue)]
    weights = [each.number_or_none("interval_s") or 0.0 for each in intervals]
    filled = sum(each.number(queue) * w for each, w in zip(intervals, weights, strict=True))
    mean = over(filled, sum(weights))
    return known(mean, lambda filled: _kept(f"{count(filled)} batches") + " on average")


def _rate(run: Part, name: str, what: str) -> str:
    rate = over(run.number_or_none(name), run.number("elapsed_s"))
    return known(rate, lambda rate: _kept(count(rate)) + f" {what}/s")


def _boxes(run: Part) -> list[Box]:
    """The figure's places in the order of a batch."""
    elapsed, read = run.number("elapsed_s"), run.number_or_none("bytes_read")
    a_request = over(read, run.number_or_none("requests"))
    disk = (
        known(over(read, elapsed), lambda rate: _kept(size(rate, "/s"))),
        _rate(run, "requests", "requests"),
        known(a_request, lambda nbytes: f"{_kept(size(nbytes))} a request"),
    )
    row_bytes = over(run.number_or_none("bytes_wanted"), rows_looked_up(run))
    loaded = run.number_or_none("rows_loaded")
    useful = over(None if row_bytes is None or loaded is None else row_bytes * loaded, read)
    staging = known(useful, lambda part: f"{_kept(share(min(part, 1.0)))} of the bytes are rows")
    buffer = (
        known(hit_share(run), lambda hits: _kept(f"{share(hits)} hits")),
        _rate(run, "rows", "rows"),
        _rate(run, "rows_loaded", "rows loaded"),
        known(run.number_or_none("buffer_slots"), lambda slots: _kept(f"{count(slots)} slots")),
    )
    places = (
        Box("disk", disk, "place"), Box("staging", (staging,), "place"),
        Box("feature buffer", buffer, "place"),
    )  # fmt: skip
    waits, most = _waits(run)

    def stage(name: str, *lines: str, kind: str = "stage", inside: tuple[Box, ...] = ()) -> Box:
        waited = f"you waited {_kept(seconds(waits[name]))}" if waits[name] else ""
        return Box(name, lines, kind, inside, waited, bool(waited) and name == most)

    def queue(name: str, key: str) -> Box:
        return Box(name, (_queued(run, key), _spread(run, key)), "queue")

    admission = _spread(run, "admission", "waits for slots ")
    reading = _spread(run, "read", "read ")
    if not (admission or reading):
        reading = _mean(run, "extract_s", "batches")
    return [
        stage("sample", _spread(run, "sampler_wait", "seeds wait "),
              _spread(run, "sample", "sampling ") or _mean(run, "sample_s", "samples"),
              _rate(run, "edges", "edges")),
        queue("extracting queue", "extracting_queue"),
        stage("extract", admission, reading, inside=places),
        queue("training queue", "training_queue"),
        stage("train", _rate(run, "batches", "batches"),
              _spread(run, "gather", "gather ") or _mean(run, "gather_s", "batches"),
              _spread(run, "output_queue", "waits for you "), _spread(run, "step", "step ")),
        Box("releasing queue", (), "queue"),
        stage("standby", _rate(run, "evictions", "rows leave"), kind="place"),
    ]  # fmt: skip


def _waits(run: Part) -> tuple[dict[str, float], str]:
    """Seconds that the loop waited, by place, and the place with the most; empty if not
    known, or if all waits together are so short that the verdict names the training step."""
    waits = {name: run.number_or_none(key) or 0.0 for name, key in WAITED_AT.items()}
    most = max(waits, key=lambda name: waits[name])
    share = over(sum(waits.values()), run.number("elapsed_s")) or 0.0
    return waits, most if share >= WAITS_MATTER else ""


def _numbers(run: Part) -> str:
    """Every stage's latencies, and the counters that the figure shows."""
    found = run.part("stages")
    stages = {name: found.part(name) for name in STAGES if found.has(name)}
    rows = [
        (
            name, STAGES[name], count(stage.number_or_none("count")),
            *(seconds(stage.number_or_none(f"{each}_s")) for each in ("mean", "p50", "p90", "p99")),
        )
        for name, stage in stages.items()
    ]  # fmt: skip
    heads = ("stage", "what a batch does", "batches", "mean", "p50", "p90", "p99")
    elapsed = run.number("elapsed_s")
    counters = [
        (what, f"{run.number(name):,.0f}", say(over(run.number(name), elapsed), "/s"))
        for name, what, say in (
            ("batches", "batches", count), ("rows", "rows", count), ("edges", "edges", count),
            ("rows_hit", "rows in the feature buffer", count),
            ("rows_waited", "rows read for another batch", count),
            ("rows_loaded", "rows read", count), ("evictions", "rows that left", count),
            ("requests", "requests", count), ("bytes_read", "bytes read", size),
            ("bytes_wanted", "bytes of rows in batches", size),
        ) if run.has(name)
    ]  # fmt: skip
    waits = [
        (f"waited for {what}", seconds(run.number(name)), share(over(run.number(name), elapsed)))
        for name, what in {"wait_s": "batches, in all", **WAITS}.items()
        if run.has(name)
    ]
    of_counters = table(("counter", "in all", "a second, or of the time"), [*counters, *waits])
    return (table(heads, rows) if rows else "") + of_counters

"""The pipeline as the paper draws it, with what was measured at each of its places."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.cli.measure.verdict import WAITS as WAITS_MATTER
from gnndrive.cli.report.html.drawing import LINE, Drawing, wrapped
from gnndrive.cli.report.html.figure import Figure
from gnndrive.cli.report.html.reading import Part, hit_share, rows_looked_up
from gnndrive.cli.report.html.values import count, over, seconds, share, size, table

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
_PAD, _GAP, _DOWN = 8.0, 24.0, 22.0


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

    def height(self, width: float) -> float:
        """Its height in px."""
        inner = sum(box.height(width - 2 * _PAD) + 16 for box in self.inside)
        return _PAD + LINE * (1 + len(self._lines(width))) + inner + _PAD

    def draw(self, picture: Drawing, x: float, y: float, width: float) -> None:
        """Draw it with its upper left corner at (x, y)."""
        kind = f"box {self.kind}" + (" most" if self.most else "")
        corner = 3 if self.kind == "queue" else 9
        picture.box(x, y, width, self.height(width), kind, corner=corner)
        picture.text(x + _PAD, y + _PAD + 11, self.name, "bold")
        below = y + _PAD + 11 + LINE
        for line, kind in self._lines(width):
            picture.text(x + _PAD, below, line, kind)
            below += LINE
        below -= 11
        for number, box in enumerate(self.inside):
            high = box.height(width - 2 * _PAD)
            if number:
                picture.arrow([(x + width / 2, below - 10), (x + width / 2, below + 4)])
            box.draw(picture, x + _PAD, below + 6, width - 2 * _PAD)
            below += high + 16

    def _lines(self, width: float) -> list[tuple[str, str]]:
        """What it says, line by line, each with its class."""
        room = width - 2 * _PAD
        said = [(each, "") for line in self.lines for each in wrapped(line, room, 4)]
        waited = wrapped(self.waited, room, 4, bold=True) if self.waited else []
        return said + [(line, "accent") for line in waited]


def pipeline_figure(run: Part) -> Figure | None:
    """The figure of a run that trained; None: it did not."""
    if not (run.has("batches") and run.has("elapsed_s")):
        return None
    boxes = _boxes(run)
    waited = ""
    if run.has("wait_disk_s"):
        waited = " You waited: the time in which your loop had no batch because of this place" + (
            "; the thick border is where it waited most." if _waits(run)[1] else "."
        )
    about = (
        "Each box is a place that a batch goes through, with what was measured there; p50 is the "
        f"median of the batches, p99 what one in a hundred exceeds.{_of_which(run)}{waited}"
    )
    return Figure(
        "The pipeline and its rates", about, _numbers(run), lambda picture: _draw(picture, boxes)
    )


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


def _draw(picture: Drawing, boxes: list[Box]) -> None:
    draw = _upright if picture.width < 700 else _level
    draw(picture, boxes)


def _level(picture: Drawing, boxes: list[Box]) -> None:
    """From left to right; the last two boxes stand below each other."""
    widths = (134.0, 136.0, 224.0, 130.0, 158.0, 132.0)
    x, top = 2.0, 2.0
    centre: dict[str, float] = {}
    for number, (box, wide) in enumerate(zip(boxes, widths, strict=False)):
        box.draw(picture, x, top, wide)
        centre[box.name] = x + wide / 2
        if number:
            picture.arrow([(x - _GAP + 1, top + 17), (x - 1, top + 17)])
        x += wide + _GAP
    left, wide = x - _GAP - widths[-1], widths[-1]
    below = top + boxes[-2].height(wide)
    picture.arrow([(left + wide / 2, below), (left + wide / 2, below + _DOWN - 1)])
    boxes[-1].draw(picture, left, below + _DOWN, wide)
    end = below + _DOWN + boxes[-1].height(wide)
    turn = picture.bottom + 26
    to = centre["extract"]
    picture.arrow(
        [(left + wide / 2, end), (left + wide / 2, turn), (to, turn),
         (to, top + boxes[2].height(widths[2]) + 1)]
    )  # fmt: skip
    picture.text((to + left) / 2, turn - 6, "slots for the next rows", "muted", middle=True)


def _upright(picture: Drawing, boxes: list[Box]) -> None:
    """From the top down, with the way back on the right."""
    wide, y = picture.width - 24, 2.0
    middles: dict[str, float] = {}
    for number, box in enumerate(boxes):
        if number:
            picture.arrow([(wide / 2, y), (wide / 2, y + _DOWN - 1)])
            y += _DOWN
        box.draw(picture, 2, y, wide - 2)
        high = box.height(wide - 2)
        middles[box.name] = y + (high - 40 if box.inside else high / 2)
        y += high
    start, to, right = middles["standby"], middles["extract"], picture.width - 8
    picture.arrow([(wide, start), (right, start), (right, to), (wide + 1, to)])
    picture.text(2, y + 18, "Right: slots go back for the next rows.", "muted")


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

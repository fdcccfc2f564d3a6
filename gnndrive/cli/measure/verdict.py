"""The verdict: what training waits for, in one sentence, from measured numbers.

`verdict` judges the lines of `gnndrive bench headroom`, `verdict_of_run` what a training run
counted of itself. Both begin with what to look at first, one of `FIRST_WORDS`.

docs/tasks/limits.md, "How the sentence is made", has the order in which `verdict` decides. A part's
gain is how many times faster a batch is without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MATTERS = 1.1  # the least gain of a first limit
TIED = 0.1  # parts whose gains lie so near the largest are named with it
BUFFER_HELPS = 1.2  # the least gain of twice the buffer, for a buffer that is too small
FEW_HITS = 0.5  # of the rows: if the buffer has fewer, it may be named instead of the disk
SLOTS_SHARE = 0.2  # of the time: if waits for slots take so much, the buffer is named
SLOWER_DISK = 2.0  # times what its calibration says, for a disk that others may be reading from
READS_SHARE = 0.05  # of a batch: shorter reads do not tell whether the disk has become slower
TIMES_MOST = 100  # larger ratios are of seconds too short to be measured
WAITS = 0.1  # a run whose waiting is a smaller share of its time waits for the training step

PARTS = {"disk": "the disk", "sampler": "the sampler", "step": "the training step"}
"""What can be free by itself, and how it is called."""
STEP = PARTS["step"]
TOO_SMALL = "the feature buffer is too small"
FIRST_WORDS = (
    "you wait for the disk", "you wait for the sampler", "you wait for the training step",
    TOO_SMALL, "you wait for the loader", "you wait for the gather", "the loader and the training",
)  # fmt: skip
WAIT_PARTS = {
    "wait_disk_s": ("the disk", "disk"), "wait_sampling_s": ("the sampler", "sampler"),
    "wait_gather_s": ("the gather", "gather"),
    "wait_slots_s": ("room in the feature buffer", "buffer"),
}  # fmt: skip
"""The parts of `wait_s` in `NeighborLoader.stats`: how they are called, and the key of what helps
in `REMEDIES`."""
REMEDIES = {
    "disk": "give more --memory, or another --strategy (gnndrive bench strategies compares them)",
    "slower disk": "see who else reads from it, and run gnndrive bench disk if it stays so",
    "buffer": "give more --memory (or --buffer), or fewer samplers and shorter queues (--tuning), "
    "whose memory the buffer gets, or another --strategy",
    "sampler": "give --tuning topology=resident or more samplers, a smaller --fanout, or "
    "--sampling labor",
    "step": "a smaller model or a faster device; the loader is fast enough",
    "with a step": "a smaller model or a faster device",
    "loader": "leave it more processor time: fewer of torch's threads, or a smaller --fanout",
    "gather": "leave it more processor time: fewer samplers (--tuning), or fewer of torch's "
    "threads",
    "both": "only both together make training faster",
}
"""What helps, by what limits."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was measured of the same batches.

    Attributes:
        seconds: what was free → seconds a batch: "nothing", which must be there, "sampler", "disk",
            "loader", "step".
        twice_s: seconds a batch with twice the feature buffer; None: unknown, or it holds all rows.
        predicted: whether `twice_s` was predicted, not measured.
        hit_share: the share of a batch's rows that the buffer has; None: unknown.
        slots_share: the share of the time in which the user waited for a batch that waited for
            slots; None: unknown.
        calibrated_s: seconds a batch that its reads take by the disk's calibration; None: unknown.
        ranges: what was free → seconds a batch of the fastest and of the slowest round.
    """

    seconds: Mapping[str, float]
    twice_s: float | None = None
    predicted: bool = False
    hit_share: float | None = None
    slots_share: float | None = None
    calibrated_s: float | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def gain(self, free: str) -> float | None:
        """How many times faster a batch is with a part free; None: it was not measured."""
        seconds = self.seconds.get(free)
        return None if seconds is None else times(self.seconds["nothing"], seconds)

    @property
    def twice_gain(self) -> float | None:
        """How many times faster a batch is with twice the buffer; None: unknown."""
        return None if self.twice_s is None else times(self.seconds["nothing"], self.twice_s)


class _Clauses(NamedTuple):
    """The sentence so far: what limits, what helps, and clauses behind the first."""

    head: str
    helps: str
    more: Sequence[str] = ()


def times(slow_s: float, fast_s: float) -> float:
    """How many times faster `fast_s` is than `slow_s`."""
    return slow_s / max(fast_s, 1e-9)


def first_limits(found: Headroom) -> list[str]:
    """The parts that limit first, the largest gain first; none if no gain reaches `MATTERS`."""
    gains = {part: found.gain(part) or 0.0 for part in PARTS}
    most = max(gains.values())
    near = [part for part, gain in gains.items() if gain >= most / (1 + TIED) and gain >= MATTERS]
    return sorted(near, key=lambda part: -gains[part])


def verdict(found: Headroom) -> str:
    """What limits, what twice the buffer gives, what limits next, and what helps."""
    first = first_limits(found)
    said = _judged(found, first)
    more = [*_spread(found, first), *_buffer(found), *_next(found, first)]
    return f"{'; '.join([said.head, *said.more, *more])}. What helps: {said.helps}."


def _spread(found: Headroom, first: Sequence[str]) -> list[str]:
    """Whether the rounds differ by more than the gain that the verdict is made of."""
    limit = first[0] if first else "loader"
    if (found.gain(limit) or 0.0) < MATTERS or not {limit, "nothing"} <= found.ranges.keys():
        return []
    faster = found.ranges[limit][1] < found.ranges["nothing"][0]
    return [] if faster else ["rounds differ by more than the gain"]


def _judged(found: Headroom, first: Sequence[str]) -> _Clauses:
    """What limits first, by steps 2 to 4 of that page."""
    twice, most = found.twice_gain or 0.0, max(found.gain(part) or 0.0 for part in PARTS)
    if twice >= BUFFER_HELPS and twice >= most and not found.predicted:
        crowded = "batches wait for each other's places in it"
        without = "no part that is free gives more than twice the buffer does"
        return _Clauses(f"{TOO_SMALL}: {crowded}", REMEDIES["buffer"], [without])
    if not first:
        return _balanced(found)
    without = _without(found, first)
    if "disk" in first:
        saved = found.seconds["nothing"] - found.seconds["disk"]
        least = READS_SHARE * found.seconds["nothing"]
        expected = found.calibrated_s or 0.0
        if expected and expected >= least and saved >= SLOWER_DISK * expected:
            longer = _times(saved / expected)
            slower = f"reads take {longer} as long as its calibration says"
            return _Clauses(_waits(found, first), REMEDIES["slower disk"], [slower])
        hits, gain = found.hit_share, found.twice_gain
        if hits is not None and gain is not None and hits < FEW_HITS and gain >= BUFFER_HELPS:
            few = f"{hits:.0%} of the rows are in it when a batch needs them"
            waits = _also(first, "the disk reads the others")
            return _Clauses(f"{TOO_SMALL}: {few}", REMEDIES["buffer"], [waits, without])
    if "step" not in first and (found.slots_share or 0.0) >= SLOTS_SHARE:
        share = f"{found.slots_share:.0%} of the time batches wait for room in it"
        return _Clauses(f"{TOO_SMALL}: {share}", REMEDIES["buffer"], [without])
    others = max(found.gain(part) or 0.0 for part in ("sampler", "disk", "loader"))
    step = "with a step" if others >= MATTERS else "step"
    helps = (REMEDIES[step if part == "step" else part] for part in first)
    return _Clauses(_waits(found, first), "; ".join(helps))


def _balanced(found: Headroom) -> _Clauses:
    """No part alone has a gain."""
    loader = found.gain("loader") or 0.0
    if loader >= MATTERS:
        more = "neither a free disk nor a free sampler alone makes batches much faster"
        without = f"without it a batch takes {_share(found, 'loader')} of the time"
        return _Clauses("you wait for the loader as a whole", REMEDIES["loader"], [more, without])
    head = "the loader and the training step take equally long: neither waits for the other"
    return _Clauses(head, REMEDIES["both"])


def _waits(found: Headroom, first: Sequence[str]) -> str:
    without = _without(found, first)
    if len(first) == 1:
        without = f"without it a batch takes {_share(found, first[0])} of the time"
    return f"you wait for {_and([PARTS[part] for part in first])}: {without}"


def _also(first: Sequence[str], disk: str) -> str:
    """The clause about the disk, and the parts that limit as much."""
    others = [PARTS[part] for part in first if part != "disk"]
    return f"{disk}, and you wait for {_and(others)} as much" if others else disk


def _without(found: Headroom, first: Sequence[str]) -> str:
    """What a batch takes without each of the first limits."""
    most, *others = first
    head = f"without {PARTS[most]} a batch takes {_share(found, most)} of the time"
    return ", ".join([head, *(f"without {PARTS[part]} {_share(found, part)}" for part in others)])


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _share(found: Headroom, free: str) -> str:
    share = found.seconds[free] / max(found.seconds["nothing"], 1e-9)
    return "less than 0.001" if share < 0.001 else _two_digits(share)


def _times(gain: float) -> str:
    return f"more than {TIMES_MOST} times" if gain > TIMES_MOST else f"{_two_digits(gain)} times"


def _two_digits(value: float) -> str:
    """A positive number with two significant digits."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:.{max(1 - math.floor(math.log10(rounded)), 0)}f}" if rounded else "0"


def _buffer(found: Headroom) -> list[str]:
    """What twice the buffer gives."""
    if found.twice_gain is None:
        return []
    how = " (predicted)" if found.predicted else ""
    if found.twice_gain < 1 + TIED / 2:
        return [f"twice the buffer gives nothing{how}"]
    return [f"twice the buffer gives {_times(found.twice_gain)} the speed{how}"]


def _next(found: Headroom, first: Sequence[str]) -> list[str]:
    """What limits when the first limit is gone."""
    if len(first) != 1:
        return []
    rest, gain = found.gain("loader"), found.gain(first[0])
    if gain is None or rest is None:
        return []
    if first[0] == "step":
        return [f"the loader is the next limit, at {_times(gain)} the speed"]
    step = f"{STEP} is the next limit, at {_times(rest)} the speed"
    if rest <= gain * (1 + TIED):
        return [step]
    behind = f"and then {STEP}, at {_times(rest)}"
    return [f"the rest of the loader is the next limit, at {_times(gain)} the speed, {behind}"]


# ---- a run that counted for itself


def verdict_of_run(stats: Mapping[str, Any]) -> str:
    """A sentence about what a training run waited for, by its own counters; empty: nothing was
    loaded. The parts of `wait_s` may be missing in `stats`."""
    elapsed_s, wait_s = float(stats.get("elapsed_s", 0)), float(stats.get("wait_s", 0))
    if not stats.get("batches") or elapsed_s <= 0:
        return ""
    share = min(wait_s / elapsed_s, 1.0)
    if share < WAITS:
        took = f"{1 - share:.0%} of the time; waiting for batches takes {share:.0%}"
        return f"you wait for {STEP}, {took}. What helps: {REMEDIES['step']}."
    ready = f"with batches always ready training would be {_times(times(1, 1 - share))} as fast"
    known = {name: float(stats[name]) for name in WAIT_PARTS if name in stats}
    most = max(known.values(), default=0.0)
    if len(known) < len(WAIT_PARTS) or most <= 0:
        which = "gnndrive bench headroom says for which part of it"
        return f"you wait for the loader, {share:.0%} of the time; {ready}; {which}."
    ranked = sorted(known, key=lambda name: -known[name])
    near = [name for name in ranked if known[name] >= most / (1 + TIED)]
    parts = ", ".join(
        f"{known[name] / elapsed_s:.0%} for {WAIT_PARTS[name][0]}"
        for name in ranked
        if known[name] >= 0.01 * elapsed_s
    )
    others = [WAIT_PARTS[name][0] for name in near if name != "wait_slots_s"]
    heads = [TOO_SMALL] if "wait_slots_s" in near else []
    heads += [f"you wait for {_and(others)}"] if others else []
    helps = "; ".join(REMEDIES[WAIT_PARTS[name][1]] for name in near)
    return (
        f"{' and '.join(heads)}: {share:.0%} of the time is waiting, {parts}; {ready}. "
        f"What helps: {helps}."
    )

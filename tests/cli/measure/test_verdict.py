"""The verdict on made-up numbers: what is named first, what is said of the buffer and of the next
limit, and the thresholds between."""

from typing import Any

import pytest

from gnndrive.cli.measure.verdict import (
    FIRST_WORDS,
    Headroom,
    first_limits,
    verdict,
    verdict_of_run,
)

EVEN = {"nothing": 1.0, "sampler": 1.0, "disk": 1.0, "loader": 1.0, "step": 1.0}
SMALL = "the feature buffer is too small"


def found(more: dict[str, Any] | None = None, **seconds: float) -> Headroom:
    return Headroom({**EVEN, **seconds}, **(more or {}))


def test_the_example_of_the_manual():
    said = verdict(found({"twice_s": 1 / 1.4}, disk=0.6, loader=1 / 2.1))
    assert said == (
        "you wait for the disk: without it a batch takes 0.60 of the time; twice the buffer gives "
        "1.4 times; the rest of the loader is the next limit, at 1.7 times, and then the training "
        "step, at 2.1 times. What helps: give more memory=, or another strategy= (gnndrive bench "
        "strategies compares them)."
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"disk": 0.5, "loader": 0.4}, "you wait for the disk:"),
        ({"sampler": 0.5, "loader": 0.4}, "you wait for the sampler:"),
        ({"step": 0.5}, "you wait for the training step:"),
        ({"loader": 0.5}, "you wait for the loader as a whole;"),
        ({}, "the loader and the training step take equally long"),
        ({"disk": 0.50, "sampler": 0.54}, "you wait for the disk and the sampler:"),
        ({"disk": 0.54, "sampler": 0.50}, "you wait for the sampler and the disk:"),
        ({"disk": 0.50, "sampler": 0.56}, "you wait for the disk:"),
        (
            {"disk": 0.50, "sampler": 0.51, "step": 0.52},
            "you wait for the disk, the sampler and the training step:",
        ),
        ({"disk": 0.92}, "the loader and the training step take equally long"),
        ({"disk": 0.90}, "you wait for the disk:"),
    ],
)
def test_the_largest_gain_comes_first_and_equals_are_named_with_it(seconds, words):
    said = verdict(found(**seconds))
    assert said.startswith(words)
    assert said.startswith(FIRST_WORDS)
    assert said.endswith(".")


def test_gains_of_less_than_a_tenth_and_parts_that_were_not_measured_limit_nothing():
    assert first_limits(found(disk=0.92, sampler=0.95)) == []
    assert first_limits(found(disk=1.3, sampler=1.1, step=1.2)) == []
    assert first_limits(Headroom({"nothing": 1.0, "step": 0.5})) == ["step"]
    assert verdict(Headroom({"nothing": 1.0, "step": 0.5})).startswith("you wait for the training")


@pytest.mark.parametrize(
    ("more", "seconds", "words"),
    [
        # few hits, and a buffer that helps
        ({"hit_share": 0.30, "twice_s": 0.80}, {"disk": 0.4}, SMALL),
        ({"hit_share": 0.49, "twice_s": 0.83}, {"disk": 0.4}, SMALL),
        # half of the rows are there: the disk is slow
        ({"hit_share": 0.50, "twice_s": 0.80}, {"disk": 0.4}, "you wait for the disk"),
        # twice the buffer hardly helps
        ({"hit_share": 0.30, "twice_s": 0.84}, {"disk": 0.4}, "you wait for the disk"),
        ({"hit_share": 0.30}, {"disk": 0.4}, "you wait for the disk"),
        ({"twice_s": 0.80}, {"disk": 0.4}, "you wait for the disk"),
        # a buffer that gains more than any part, unless that is only predicted
        ({"twice_s": 0.7}, {"sampler": 0.75}, SMALL),
        ({"twice_s": 0.7, "predicted": True}, {"sampler": 0.75}, "you wait for the sampler"),
        ({"twice_s": 0.85}, {"sampler": 0.75}, "you wait for the sampler"),
        # waits for slots
        ({"slots_share": 0.20}, {"sampler": 0.5}, f"{SMALL}: 20% of the time"),
        ({"slots_share": 0.19}, {"sampler": 0.5}, "you wait for the sampler"),
        ({"slots_share": 0.50}, {"step": 0.5}, "you wait for the training step"),
    ],
)
def test_a_small_buffer_and_a_slow_part(more, seconds, words):
    said = verdict(found(more, **seconds))
    assert said.startswith(words)
    helps = "give more memory= (or buffer=), or fewer samplers="
    assert (helps in said) == words.startswith(SMALL)
    if "hit_share" in more and words == SMALL:
        assert "without the disk a batch takes 0.40" in said


def test_what_else_is_said_of_a_small_buffer():
    said = verdict(found({"hit_share": 0.3, "twice_s": 0.8, "predicted": True}, disk=0.4))
    assert said.startswith(f"{SMALL}: 30% of the rows are in it")
    assert "twice the buffer gives 1.2 times (predicted)" in said
    said = verdict(found({"hit_share": 0.2, "twice_s": 0.7}, disk=0.4, sampler=0.42))
    assert "the disk reads the others, and you wait for the sampler as much" in said
    assert "twice the buffer gives nothing;" in verdict(found({"twice_s": 0.97}, step=0.5))
    assert "buffer" not in verdict(found(step=0.5))


def test_a_disk_that_is_slower_than_its_calibration_is_named_before_the_buffer():
    numbers = {"hit_share": 0.3, "twice_s": 0.6, "calibrated_s": 0.3}
    said = verdict(found(numbers, disk=0.4))
    start = "you wait for the disk: without it a batch takes 0.40 of the time; reads"
    assert said.startswith(start)
    assert "reads take 2.0 times as long as its calibration says" in said
    assert verdict(found(numbers | {"calibrated_s": 0.31}, disk=0.4)).startswith(SMALL)
    for calibrated, slower in ((0.003, False), (0.049, False), (0.05, True)):
        said = verdict(found({"calibrated_s": calibrated}, disk=0.4))
        assert ("as its calibration says" in said) == slower  # others should take hardly any time


@pytest.mark.parametrize(
    ("seconds", "clause"),
    [
        ({"disk": 0.5, "loader": 0.48}, "; the training step is the next limit, at 2.1 times."),
        ({"disk": 0.5, "loader": 0.2}, "; the rest of the loader is the next limit, at 2.0 times"),
        ({"step": 0.5}, "; the loader is the next limit, at 2.0 times."),
    ],
)
def test_the_next_limit_follows_from_what_is_left(seconds, clause):
    assert clause in verdict(found(**seconds))


@pytest.mark.parametrize(
    ("others", "enough"),
    [({}, True), ({"loader": 0.92}, True), ({"loader": 0.9}, False), ({"sampler": 0.8}, False)],
)
def test_the_loader_is_fast_enough_only_if_nothing_is_gained_there(others, enough):
    said = verdict(found(step=0.5, **others))
    assert said.startswith("you wait for the training step:")
    assert ("the loader is fast enough" in said) == enough


@pytest.mark.parametrize(
    ("part", "slowest", "differ"), [("disk", 0.89, False), ("disk", 0.9, True), ("loader", 2, True)]
)
def test_a_gain_within_the_spread_of_the_rounds_is_said_to_be_so(part, slowest, differ):
    ranges = {"nothing": (0.9, 1.2), part: (0.4, slowest)}
    said = verdict(found({"ranges": ranges}, **{part: 0.5}))
    assert ("; rounds differ by more than the gain" in said) == differ
    assert "rounds differ" not in verdict(found({"ranges": ranges}, **{part: 0.95}))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (1 / 325.1, ["takes 0.0031 of the time", "at over 100 times"]),
        (1e-5, ["takes less than 0.001 of the time", "at over 100 times"]),
        (1 / 12.34, ["takes 0.081 of the time", "at 12 times"]),
        (1 / 9.96, ["takes 0.10 of the time", "at 10 times"]),
    ],
)
def test_numbers_have_two_digits_and_ratios_an_end(step, says):
    said = verdict(found(step=step))
    assert [text for text in says if text not in said] == []


# ---- a run's own counters

RUN = {
    "batches": 10, "elapsed_s": 100.0, "wait_s": 60.0, "wait_disk_s": 50.0, "wait_gather_s": 1.5,
    "wait_sampling_s": 8.0, "wait_slots_s": 0.5,
}  # fmt: skip


def test_a_run_says_what_it_waited_for():
    assert verdict_of_run(RUN) == (
        "you wait for the disk: 60% of the time is waiting, 50% for the disk, 8% for the sampler, "
        "2% for the gather; with batches always ready training would be 2.5 times as fast. What "
        "helps: give more memory=, or another strategy= (gnndrive bench strategies compares them)."
    )
    assert "training would be over 100 times as fast" in verdict_of_run(RUN | {"wait_s": 99.9})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wait_s": 9.9}, "you wait for the training step, 90% of the time;"),
        ({"wait_s": 10.0}, "you wait for the disk:"),
        ({"wait_sampling_s": 51.0}, "you wait for the sampler and the disk:"),
        ({"wait_sampling_s": 56.0}, "you wait for the sampler:"),
        ({"wait_gather_s": 99.0}, "you wait for the gather:"),
        ({"wait_slots_s": 99.0}, "the feature buffer is too small:"),
        ({"wait_slots_s": 52.0}, "the feature buffer is too small and you wait for the disk:"),
        (dict.fromkeys(RUN.keys() - {"batches", "elapsed_s", "wait_s"}, 0.0), "you wait for the l"),
    ],
)
def test_a_runs_verdict_begins_with_what_it_waited_for(change, words):
    assert verdict_of_run(RUN | change).startswith(words)


def test_a_run_without_the_split_of_its_waits_and_one_without_batches():
    known = {name: value for name, value in RUN.items() if name != "wait_slots_s"}
    said = verdict_of_run(known)
    assert said.startswith("you wait for the loader, 60% of the time;")
    assert "gnndrive bench headroom says" in said
    assert verdict_of_run({}) == verdict_of_run(RUN | {"batches": 0}) == ""
    assert verdict_of_run(RUN | {"elapsed_s": 0.0}) == ""

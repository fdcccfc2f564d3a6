"""The verdict on made-up numbers: what is named first, and what is said of the buffer and of the
next limit, at each threshold."""

import pytest

from gnndrive.cli.measure.verdict import FIRST_WORDS, Headroom, verdict, verdict_of_run

EVEN = {"nothing": 1.0, "sampler": 1.0, "disk": 1.0, "loader": 1.0, "step": 1.0}
SMALL = "the feature buffer is too small"
DISK, SAMPLER, STEP = (f"you wait for the {part}:" for part in ("disk", "sampler", "training step"))
EQUAL = "the loader and the training step take equally long"
HELPS = "give more --memory (or --buffer), or fewer samplers"
FEW = {"hit_share": 0.30, "twice_s": 0.80}
CALIBRATED = "take 2.0 times as long as its calibration says"
APART = "; rounds differ by more than the gain"
ENOUGH = "the loader is fast enough"


def ranges(part, slowest):
    return {"ranges": {"nothing": (0.9, 1.2), part: (0.4, slowest)}}


def test_the_example_of_the_manual():
    assert verdict(Headroom({**EVEN, "disk": 0.6, "loader": 1 / 2.1}, twice_s=1 / 1.4)) == (
        "you wait for the disk: without it a batch takes 0.60 of the time; twice the buffer gives "
        "1.4 times the speed; the rest of the loader is the next limit, at 1.7 times the speed, "
        "and then the training step, at 2.1 times. What helps: give more --memory, or another "
        "--strategy (gnndrive bench strategies compares them)."
    )


@pytest.mark.parametrize(
    ("seconds", "more", "start", "says", "says_not"),
    [
        # the largest gain comes first, and equals are named with it
        ({"sampler": 0.5, "loader": 0.4}, {}, SAMPLER, "", SMALL),
        ({"loader": 0.5}, {}, "you wait for the loader as a whole;", "", SMALL),
        ({"disk": 0.50, "sampler": 0.54}, {}, "you wait for the disk and the sampler:", "", SMALL),
        ({"disk": 0.50, "sampler": 0.56}, {}, DISK, "", SMALL),
        (
            {"disk": 0.51, "sampler": 0.50, "step": 0.52}, {},
            "you wait for the sampler, the disk and the training step:", "", SMALL,
        ),
        # gains of less than a tenth limit nothing
        ({}, {}, EQUAL, "", "buffer"),
        ({"disk": 0.92, "sampler": 1.3}, {}, EQUAL, "", SMALL),
        ({"disk": 0.90}, {}, DISK, "", SMALL),
        # few hits, and a buffer that helps
        ({"disk": 0.4}, {"hit_share": 0.49, "twice_s": 0.83}, SMALL, HELPS, DISK),
        ({"disk": 0.4}, FEW, f"{SMALL}: 30% of the rows", "without the disk a batch takes 0.40",
         "(predicted)"),
        ({"disk": 0.4}, FEW | {"predicted": True}, SMALL, "1.2 times the speed (predicted)", DISK),
        ({"disk": 0.4, "sampler": 0.42}, FEW | {"twice_s": 0.7}, SMALL,
         "the disk reads the others, and you wait for the sampler as much", DISK),
        # half of the rows are there: the disk is slow; or twice the buffer hardly helps
        ({"disk": 0.4}, FEW | {"hit_share": 0.50}, DISK, "", HELPS),
        ({"disk": 0.4}, FEW | {"twice_s": 0.84}, DISK, "", HELPS),
        ({"disk": 0.4}, {"hit_share": 0.30}, DISK, "", HELPS),
        ({"disk": 0.4}, {"twice_s": 0.80}, DISK, "", HELPS),
        ({"step": 0.5}, {"twice_s": 0.97}, STEP, "twice the buffer gives nothing;", HELPS),
        # a buffer that gains more than any part, unless that is only predicted
        ({"sampler": 0.75}, {"twice_s": 0.7}, SMALL, HELPS, SAMPLER),
        ({"sampler": 0.75}, {"twice_s": 0.7, "predicted": True}, SAMPLER, "", HELPS),
        ({"sampler": 0.75}, {"twice_s": 0.85}, SAMPLER, "", HELPS),
        # waits for slots
        ({"sampler": 0.5}, {"slots_share": 0.20}, f"{SMALL}: 20% of the time", HELPS, SAMPLER),
        ({"sampler": 0.5}, {"slots_share": 0.19}, SAMPLER, "", HELPS),
        ({"step": 0.5}, {"slots_share": 0.50}, STEP, "", HELPS),
        # a disk slower than its calibration comes before the buffer, if reads take a while
        ({"disk": 0.4}, {**FEW, "calibrated_s": 0.3}, DISK, CALIBRATED, SMALL),
        ({"disk": 0.4}, {**FEW, "calibrated_s": 0.31}, SMALL, "", CALIBRATED),
        ({"disk": 0.4}, {"calibrated_s": 0.049}, DISK, "", "calibration"),
        ({"disk": 0.4}, {"calibrated_s": 0.05}, DISK, "calibration", SMALL),
        # what is left is the next limit
        ({"disk": 0.5, "loader": 0.48}, {}, DISK,
         "; the training step is the next limit, at 2.1 times the speed.", SMALL),
        ({"disk": 0.5, "loader": 0.2}, {}, DISK,
         "; the rest of the loader is the next limit, at 2.0 times the speed", SMALL),
        ({"step": 0.5}, {}, STEP, "; the loader is the next limit, at 2.0 times the sp", "buffer"),
        # the loader is fast enough if nothing is gained there
        ({"step": 0.5, "loader": 0.92}, {}, STEP, ENOUGH, SMALL),
        ({"step": 0.5, "loader": 0.9}, {}, STEP, "", ENOUGH),
        # a gain within the spread of the rounds
        ({"disk": 0.5}, ranges("disk", 0.89), DISK, "", APART),
        ({"disk": 0.5}, ranges("disk", 0.9), DISK, APART, SMALL),
        ({"loader": 0.5}, ranges("loader", 2), "you wait for the loader", APART, SMALL),
        ({"disk": 0.95}, ranges("disk", 0.9), EQUAL, "", APART),
        # numbers have two digits, and ratios an end
        ({"step": 1e-5}, {}, STEP, "less than 0.001 of the time", "100000"),
        ({"step": 1 / 325.1}, {}, STEP, "takes 0.0031 of the time", "at 325"),
        ({"step": 1 / 325.1}, {}, STEP, "at more than 100 times the speed", "at 325"),
        ({"step": 1 / 12.34}, {}, STEP, "at 12 times", "12.3"),
    ],
)  # fmt: skip
def test_a_verdict(seconds, more, start, says, says_not):
    said = verdict(Headroom({**EVEN, **seconds}, **more))
    assert said.startswith(start)
    assert said.startswith(FIRST_WORDS)
    assert (says in said, says_not in said) == (True, False)


def test_parts_that_were_not_measured_limit_nothing():
    assert verdict(Headroom({"nothing": 1.0, "step": 0.5})).startswith(STEP)


RUN = {
    "batches": 10, "elapsed_s": 100.0, "wait_s": 60.0, "wait_disk_s": 50.0, "wait_gather_s": 1.5,
    "wait_sampling_s": 8.0, "wait_slots_s": 0.5,
}  # fmt: skip


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
        ({}, "you wait for the disk: 60% of the time is waiting, 50% for the disk, 8% for the "
         "sampler, 2% for the gather; with batches always ready training would be 2.5 times as "
         "fast. What helps: give more --memory"),
    ],
)  # fmt: skip
def test_a_runs_verdict_is_of_its_own_counters(change, words):
    assert verdict_of_run(RUN | change).startswith(words)


def test_a_run_without_the_split_of_its_waits_and_one_without_batches():
    known = {name: value for name, value in RUN.items() if name != "wait_slots_s"}
    said = verdict_of_run(known)
    assert said.startswith("you wait for the loader, 60% of the time;")
    assert "gnndrive bench headroom says" in said
    assert "training would be more than 100 times as fast" in verdict_of_run(RUN | {"wait_s": 99.9})
    assert verdict_of_run({}) == verdict_of_run(RUN | {"batches": 0}) == ""
    assert verdict_of_run(RUN | {"elapsed_s": 0.0}) == ""

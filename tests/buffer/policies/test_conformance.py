"""What every policy must do, and that a policy which does not is found."""

import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.base import NO_USE, Keys, Policy, PolicyContext
from gnndrive.common import plugins
from gnndrive.common.records import Int64Array
from gnndrive.pipeline.epoch import Stages
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.testing.faults import NOISE
from gnndrive.testing.simulation import RandomSampler, Scenario, simulate, write_told_rows
from tests.second import Pairs
from tests.soak import Seeds

# Policies that the standard context does not make: a function of it gives theirs.
CONTEXTS: dict[str, Callable[[PolicyContext], PolicyContext]] = {}
ALL = [*plugins.names("policies"), Pairs]
DEVICES = ("host", "simulated-cuda")
ROWS = 200
# Cases as the feature buffer has them: indices of batches that are known, and no use; the first
# batches of an epoch and the last of a long one.
NOW = 0
CASES = tuple(
    np.array([NO_USE, *range(first, first + 8)] * 28, np.int64)[:256]
    for first in (0, 5, 10**6, 2**62)
)


def made(kind: type[Policy], slots: int = 50) -> Policy:
    """A policy of that kind, for a table of numbered rows."""
    context = PolicyContext("nodes/x", ROWS, slots)
    try:
        return kind.make(CONTEXTS.get(kind.name, lambda given: given)(context))
    except Exception as error:
        pytest.fail(
            f"the policy {kind.name!r} cannot be made from the standard context ({error!r}): give "
            "it one in CONTEXTS of this test"
        )


def keys_of(policy: Policy, next_use: Int64Array) -> Int64Array:
    """A key for each case of a row of the highest class."""
    given = next_use.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as for a number that is too large
        base, mask = policy.keys(given, NOW)
    for array, dtype in ((base, np.int64), (mask, np.uint8)):
        assert isinstance(array, np.ndarray)
        assert array.dtype == dtype
        assert array.shape == next_use.shape, "not a key for each case"
    assert np.array_equal(given, next_use), "the cases were changed"
    assert policy.score is not None or not mask.any(), "classes count without a score"
    return base + mask


def ranks(kind: type[Policy]) -> bool:
    return kind.looks_ahead or kind.score is not None


# ---- the contract


def it_says_whether_it_looks_ahead(kind: type[Policy], folder: Path, seeds: Seeds) -> None:
    """Memory to look ahead is planned before one is made; without it there are no keys."""
    assert type(kind.looks_ahead) is bool
    policy = made(kind)
    if ranks(kind):
        keys_of(policy, CASES[0])
        return
    with pytest.raises(NotImplementedError):
        policy.keys(CASES[0], NOW)


def a_key_depends_on_the_next_use_alone(kind: type[Policy], folder: Path, seeds: Seeds) -> None:
    """On no place among the cases, and on nothing that was asked before."""
    if not ranks(kind):
        return
    for next_use in CASES:
        policy = made(kind)
        keys = keys_of(policy, next_use)
        order = np.random.default_rng(1).permutation(len(next_use))
        keys_of(policy, next_use + (next_use != NO_USE))
        for other in (policy, made(kind)):
            again = keys_of(other, next_use[order])
            assert np.array_equal(again, keys[order]), "a key depends on more than the next use"
        for use in np.unique(next_use):
            assert len(np.unique(keys[next_use == use])) == 1, "one use has two keys"


def higher_classes_never_leave_first(kind: type[Policy], folder: Path, seeds: Seeds) -> None:
    """Of rows in one case: a mask has no bit without those above it."""
    if not ranks(kind):
        return
    policy, classes = made(kind), np.arange(256, dtype=np.uint8)
    for next_use in CASES:
        for mask in np.unique(policy.keys(next_use.copy(), NOW).mask):
            counted = (classes & mask).astype(int)
            assert (np.diff(counted) >= 0).all(), "a lower class is kept longer"


def no_use_is_on_one_side(kind: type[Policy], folder: Path, seeds: Seeds) -> None:
    """Of every known use, and on the same side early in an epoch and late: no number ran over."""
    if not kind.looks_ahead:
        return
    policy, sides = made(kind), set[int]()
    for next_use in CASES:
        *known, none = keys_of(policy, np.unique(next_use)).tolist()
        sides |= {(key > none) - (key < none) for key in known}
    assert len(sides) == 1, "no use is on either side"


def what_leaves_changes_no_batch(kind: type[Policy], folder: Path, seeds: Seeds) -> None:
    """Every row right, no deadlock, nothing lost, in a buffer that is tight and one that is not."""
    file = write_told_rows(folder / "rows", ROWS, 64)
    classes = np.random.default_rng(2).integers(0, 256, ROWS).astype(np.uint8)
    for seed in seeds(4):
        slots, sweep = (16, 40, 64)[seed % 3], (1, 3, None)[(seed + seed // 3) % 3]
        scenario = Scenario(
            file, slots, 8, faults=NOISE, stages=Stages(sweep=sweep), policy=made(kind, slots),
            device=DEVICES[seed % 2], classes=classes if seed % 4 else None,
        )  # fmt: skip
        sampler = RandomSampler(ROWS, scenario.extra_max)
        expected = [
            (each.index, sampler.sample_nodes(each.node, batch_key(seed, 0, each.index)).node)
            for each in scenario.seeds(seed)
        ]
        for (index, node), batch in zip(expected, simulate(scenario, seed), strict=True):
            assert batch.index == index
            assert np.array_equal(batch.node, node), "another batch"


Check = Callable[[type[Policy], Path, Seeds], None]
CONTRACT = (
    it_says_whether_it_looks_ahead,
    a_key_depends_on_the_next_use_alone,
    higher_classes_never_leave_first,
    no_use_is_on_one_side,
    what_leaves_changes_no_batch,
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("policy", ALL, ids=plugins.name_of)
def test_a_policy_keeps_its_contract(policy, check, tmp_path, seeds):
    check(plugins.find("policies", policy), tmp_path, seeds)


# ---- a broken one is found


ONES = np.ones(256, np.uint8)
BROKEN: list[tuple[Callable[..., object], Check, str, dict[str, Any]]] = [
    (lambda policy, use, base, mask: (base.astype(np.int32), mask),
     it_says_whether_it_looks_ahead, "int32", {}),
    (lambda policy, use, base, mask: (base[:3], mask[:3]),
     it_says_whether_it_looks_ahead, "not a key for each case", {}),
    (lambda policy, use, base, mask: [np.negative(use, out=use), (base, mask)][1],
     it_says_whether_it_looks_ahead, "the cases were changed", {}),
    (lambda policy, use, base, mask: (base, mask),
     it_says_whether_it_looks_ahead, "bool", {"looks_ahead": None}),
    (lambda policy, use, base, mask: (base + next(policy.asked), mask),
     a_key_depends_on_the_next_use_alone, "more than the next use", {"asked": count()}),
    (lambda policy, use, base, mask: (base * 256 + np.arange(len(base)), mask),
     a_key_depends_on_the_next_use_alone, "more than the next use", {}),
    (lambda policy, use, base, mask: (base, ONES[: len(use)]),
     higher_classes_never_leave_first, "a lower class is kept longer", {"score": "degree"}),
    (lambda policy, use, base, mask: (use * 2, 0 * ONES[: len(use)]),
     no_use_is_on_one_side, "either side", {}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "check", "message", "attributes"), BROKEN)
def test_a_broken_policy_is_found(change, check, message, attributes, tmp_path, seeds):
    """One whose keys are what `change` makes of them."""

    def keys(self: Policy, next_use: Int64Array, now: int) -> Keys:
        return Keys(*change(self, next_use, *Pairs.keys(self, next_use, now)))

    broken = type("Broken", (Pairs,), {"keys": keys, **attributes})
    with pytest.raises(AssertionError, match=message):
        check(broken, tmp_path, seeds)

"""Each rule of the protocol (docs/architecture.md) and each wait for a copy, with and without it.

With all rules every seed of every scenario ends well. Without one of them, taken out by `drop_…`,
seeds end in a deadlock, a wrong row, a lost slot or a lost batch. Which seeds do was searched for;
a change of what is simulated may need others.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gnndrive.buffer.devices.simulated_cuda import SimulatedHostSlots
from gnndrive.common.records import TableFile
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import Deadlock
from tests.host.test_simulated_windows import whole_epochs
from tests.pipeline import dropped, scenarios
from tests.pipeline.conftest import use_device_of
from tests.soak import Seeds

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Rule:
    """A rule, a scenario that needs it, and seeds of which one at least finds that it is missing.

    Attributes:
        number: of the rule; 0: a wait for a copy.
        error: what a breach looks like; Deadlock: each seed must end in it.
        message: what the error says.
    """

    number: int
    drop: Callable[[Patch], None]
    scenario: Callable[..., None]
    seeds: tuple[int, ...] = (0, 1)
    table: str = "rows"
    given: dict[str, Any] = field(default_factory=dict)
    error: type[Exception] = Exception
    message: str = ""


GROUPS = {"stages": Stages(group=3)}
ONE_PLACE = {"places": 1, "residents": 60}
HOST_SLOTS = {"device": SimulatedHostSlots.name}
WRONG: dict[str, Any] = {"error": AssertionError, "message": "wrong rows for nodes"}

RULES = [
    Rule(1, dropped.drop_order_of_tickets, scenarios.epoch_ends_well),
    Rule(1, dropped.drop_order_of_tickets, scenarios.epoch_ends_well, given=GROUPS),
    Rule(1, dropped.drop_ticket_in_the_same_step, scenarios.epoch_ends_well),
    Rule(1, dropped.drop_ticket_in_the_same_step, scenarios.epoch_ends_well, given=GROUPS),
    Rule(2, dropped.drop_windows, scenarios.narrow_queues_end_well, (16, 34)),
    Rule(3, dropped.drop_all_or_none, scenarios.epoch_ends_well),
    Rule(3, dropped.drop_all_or_none, scenarios.epoch_ends_well, given=GROUPS),
    Rule(3, dropped.drop_first_come_first_served, scenarios.epoch_ends_well),
    Rule(3, dropped.drop_first_come_first_served, scenarios.epoch_ends_well, (2, 3), given=GROUPS),
    Rule(
        4, dropped.drop_retry_on_completion, scenarios.cancelled_leases_come_back, (32, 38), "wide",
    ),
    Rule(
        5, dropped.drop_reads_belong_to_the_buffer, scenarios.cancelled_leases_among_many_slots,
        (3, 4), "wide",
    ),
    Rule(6, dropped.drop_orphans_wait, scenarios.cancelled_leases_come_back, (4, 13), table="wide"),
    Rule(
        6, dropped.drop_places_wait_for_reads, scenarios.cancelled_leases_come_back, (3, 6), "wide",
        given={"places": 1},
    ),
    Rule(7, dropped.drop_valid_after_commit, scenarios.epoch_ends_well),
    Rule(7, dropped.drop_batches_wait_for_their_rows, scenarios.epoch_ends_well, given=ONE_PLACE),
    Rule(
        7, dropped.drop_batches_wait_for_residents, scenarios.epoch_ends_well, (6, 23), "wide",
        given={"places": 1, "residents": 150},
    ),
    Rule(8, dropped.drop_failures_reach_waiters, scenarios.failing_epoch_ends, (2, 3)),
    Rule(8, dropped.drop_failed_rows_stay_invalid, scenarios.failing_epoch_ends, (2, 3)),
    Rule(
        8, dropped.drop_failures_reach_the_batch, scenarios.failing_epoch_ends, (2, 3),
        given=ONE_PLACE,
    ),
    Rule(9, dropped.drop_release_behind_the_gather, scenarios.epoch_ends_well),
    Rule(9, dropped.drop_release_behind_the_gather, scenarios.epoch_ends_well, given=GROUPS),
    Rule(
        10, dropped.drop_cancelled_grants_come_back, scenarios.granted_and_cancelled_in_one_turn,
    ),
    Rule(11, dropped.drop_staging_after_slots, scenarios.leases_share_staging, error=Deadlock),
    Rule(11, dropped.drop_a_portion_for_each_part, scenarios.leases_share_staging, error=Deadlock),
    Rule(12, dropped.drop_buffer_of_its_own, scenarios.two_epochs_in_one_task, error=Deadlock),
    Rule(13, dropped.drop_drain_before_free, scenarios.closing_waits_for_the_kernel),
    Rule(14, dropped.drop_errors_in_turn, scenarios.failing_epoch_ends, (2, 3)),
    Rule(14, dropped.drop_errors_in_turn, scenarios.failing_epoch_ends, (2, 3), given=GROUPS),
    Rule(
        14, dropped.drop_batches_before_a_failure, scenarios.failing_epoch_ends, (4, 7),
        given=GROUPS, message="a batch was lost",
    ),
    Rule(
        14, dropped.drop_the_end_at_a_failure, scenarios.failing_epoch_ends, (2, 3), given=GROUPS,
    ),
    Rule(15, dropped.drop_turns_of_ranks, scenarios.ranks_end_well),
    Rule(21, dropped.drop_release_of_copied_rows, scenarios.exchange_ends_well, (12, 13)),
    Rule(16, dropped.drop_giving_up_a_chunk, scenarios.windows_end_well, (1, 2)),
    Rule(
        17, dropped.drop_giving_back_what_is_incomplete, scenarios.windows_end_well, (6, 7),
    ),
    Rule(17, dropped.drop_giving_back_for_an_older_window, whole_epochs, (31, 32)),
    Rule(
        18, dropped.drop_waiting_for_the_older_window, scenarios.windows_in_any_order,
        (19, 20),
    ),
    Rule(22, dropped.drop_graphs_of_its_own, whole_epochs, (39, 75), error=Deadlock),
    Rule(0, dropped.drop_commit_behind_the_scatter, scenarios.many_batches, **WRONG),
    Rule(0, dropped.drop_staging_behind_the_scatter, scenarios.many_batches, (1, 4), **WRONG),
    Rule(0, dropped.drop_release_behind_the_gathers_copy, scenarios.many_batches, (5, 9), **WRONG),
    Rule(
        0, dropped.drop_release_behind_the_gathers_copy, scenarios.many_batches, (0, 4),
        given=HOST_SLOTS, **WRONG,
    ),
    Rule(
        0, dropped.drop_pieces_behind_their_copies, scenarios.many_batches, (5, 11),
        given=HOST_SLOTS, **WRONG,
    ),
    Rule(0, dropped.drop_cleanup_behind_the_gathers_copy, scenarios.broken_off, (5, 23), **WRONG),
    Rule(
        0, dropped.drop_copy_out_before_the_scatter, scenarios.victims_of_few_slots,
        (17, 34), **WRONG,
    ),
    Rule(0, dropped.drop_copy_back_behind_the_copy_out, scenarios.victims_back_at_once, **WRONG),
    Rule(0, dropped.drop_valid_behind_the_copy_out, scenarios.victims_back_at_once, **WRONG),
    Rule(
        0, dropped.drop_places_behind_the_copy_back, scenarios.victims_of_few_slots,
        (12, 28), **WRONG,
    ),
    Rule(
        0, dropped.drop_reading_behind_the_writes, scenarios.copies_end_well, (0, 1), "wide",
        **WRONG,
    ),
    Rule(
        0, dropped.drop_blocks_behind_the_release, scenarios.copies_end_well, (1, 8), "wide",
        **WRONG,
    ),
    Rule(
        0, dropped.drop_blocks_behind_the_fetches, scenarios.a_block_is_read_to_its_end, (2, 13),
        **WRONG,
    ),
    Rule(
        0, dropped.drop_buffers_behind_the_write, scenarios.copies_end_well, (0, 1), "wide",
        **WRONG,
    ),
]  # fmt: skip


# Rules share scenarios. The last breaks with none of them.
FEW_BLOCKS = Rule(11, lambda patch: None, scenarios.few_staging_blocks_end_well, table="wide")
WHOLE = {(rule.scenario, rule.table, *rule.given.values()): rule for rule in [*RULES, FEW_BLOCKS]}


def whole(count: int, *chosen: Callable[..., None]) -> Callable[..., None]:
    """A test of `count` seeds of each case of these scenarios that no earlier test has."""
    taken = [WHOLE.pop(key) for key in list(WHOLE) if not chosen or key[0] in chosen]

    @pytest.mark.parametrize("rule", taken, ids=lambda rule: rule.scenario.__name__)
    def test(rule: Rule, request: pytest.FixtureRequest, seeds: Seeds) -> None:
        for seed in seeds(count):
            rule.scenario(request.getfixturevalue(rule.table), seed, **rule.given)

    return test


# Apart, because a soak runs each test as often as any other.
test_leases_with_all_rules_end_well = whole(
    8, scenarios.cancelled_leases_come_back, scenarios.cancelled_leases_among_many_slots,
    scenarios.granted_and_cancelled_in_one_turn, scenarios.leases_share_staging,
    scenarios.closing_waits_for_the_kernel,
)  # fmt: skip
test_windows_with_all_rules_end_well = whole(
    2, scenarios.windows_end_well, scenarios.windows_in_any_order
)
test_copies_with_all_waits_end_well = whole(
    4, scenarios.many_batches, scenarios.broken_off, scenarios.victims_of_few_slots,
    scenarios.victims_back_at_once, scenarios.copies_end_well, scenarios.a_block_is_read_to_its_end,
)  # fmt: skip
test_epochs_with_all_rules_end_well = whole(2)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.number}-{rule.drop.__name__}")
@pytest.mark.filterwarnings("ignore")  # of what a broken rule leaves behind
def test_without_the_rule_something_goes_wrong(rule, request, monkeypatch):
    rows = request.getfixturevalue(rule.table)
    reported: list[BaseException] = []

    def keep(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        reported.extend([context["exception"]] if "exception" in context else [])

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", keep)
    rule.drop(monkeypatch)
    errors: list[BaseException] = []
    for seed in rule.seeds:
        use_device_of(seed, monkeypatch)
        error = end_of(rule, rows, seed)
        errors.extend([] if error is None else [error])
        assert rule.error is not Deadlock or type(error) is Deadlock
    breaches = [e for e in errors if isinstance(e, rule.error) and rule.message in str(e)]
    assert breaches, f"rule {rule.number} can be dropped: {rule.drop.__doc__}"
    unfit = [each for error in [*errors, *reported] for each in chain(error) if misfit(each)]
    assert not unfit, f"the patch does not fit the code: {unfit[0]!r}"


def end_of(rule: Rule, rows: TableFile, seed: int) -> BaseException | None:
    """The error that the scenario ends in, or None."""
    try:
        rule.scenario(rows, seed, **rule.given)
    except (AssertionError, OSError, RuntimeError, BaseExceptionGroup) as error:
        return error
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the errors in it if it is a group, and those that led to it."""
    while error is not None:
        yield error
        for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from chain(each)
        error = error.__cause__ or error.__context__


def misfit(error: BaseException) -> bool:
    """Whether an error shows that a patch uses a name or signature that is no longer there."""
    return isinstance(error, AttributeError | NameError | TypeError | KeyError)


def test_every_way_to_drop_a_rule_is_tried():
    defined = {name for name in vars(dropped) if name.startswith("drop_")}
    assert defined == {rule.drop.__name__ for rule in RULES}

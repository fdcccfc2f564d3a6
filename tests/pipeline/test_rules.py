"""Each rule of the protocol (docs/architecture.md), with and without it.

Each case runs a scenario with many seeds. With the rule every seed ends well. Without it, taken out
by `drop_…`, at least one seed ends in a deadlock, a wrong row, a lost slot or a lost batch; where
the case names an error, every seed ends in that error.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import TableFile
from gnndrive.testing.loop import Deadlock, run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline import dropped, dropped_windows, scenarios

Patch = pytest.MonkeyPatch
Drop = Callable[[Patch], None]
Run = Callable[[TableFile, int], None]


@dataclass(frozen=True)
class Rule:
    number: int
    drop: Drop
    scenario: Run
    seeds: int = 60
    table: str = "rows"
    always: type[Exception] | None = None


RULES = [
    Rule(1, dropped.drop_order_of_tickets, scenarios.epoch_ends_well),
    Rule(1, dropped.drop_ticket_in_the_same_step, scenarios.epoch_ends_well),
    Rule(2, dropped.drop_windows, scenarios.narrow_queues_end_well),
    Rule(3, dropped.drop_all_or_none, scenarios.epoch_ends_well),
    Rule(3, dropped.drop_first_come_first_served, scenarios.epoch_ends_well),
    Rule(
        4, dropped.drop_retry_on_completion, scenarios.cancelled_leases_come_back, 300, table="wide"
    ),
    Rule(
        5,
        dropped.drop_reads_belong_to_the_buffer,
        scenarios.cancelled_leases_among_many_slots,
        table="wide",
    ),
    Rule(6, dropped.drop_orphans_wait, scenarios.cancelled_leases_come_back, table="wide"),
    Rule(7, dropped.drop_valid_after_commit, scenarios.epoch_ends_well),
    Rule(8, dropped.drop_failures_reach_waiters, scenarios.failing_epoch_ends),
    Rule(8, dropped.drop_failed_rows_stay_invalid, scenarios.failing_epoch_ends),
    Rule(9, dropped.drop_release_behind_the_gather, scenarios.epoch_ends_well),
    Rule(
        10, dropped.drop_cancelled_grants_come_back, scenarios.granted_and_cancelled_in_one_turn, 1
    ),
    Rule(11, dropped.drop_staging_after_slots, scenarios.leases_share_staging, 12, always=Deadlock),
    Rule(
        11,
        dropped.drop_a_portion_for_each_part,
        scenarios.leases_share_staging,
        12,
        always=Deadlock,
    ),
    Rule(12, dropped.drop_buffer_of_its_own, scenarios.two_epochs_in_one_task, 12, always=Deadlock),
    Rule(13, dropped.drop_drain_before_free, scenarios.closing_waits_for_the_kernel),
    Rule(14, dropped.drop_errors_in_turn, scenarios.failing_epoch_ends),
    Rule(15, dropped.drop_turns_of_ranks, scenarios.ranks_end_well, 20),
    Rule(16, dropped_windows.drop_giving_up_a_chunk, scenarios.windows_end_well, 20),
    Rule(17, dropped_windows.drop_giving_back_what_is_incomplete, scenarios.windows_end_well, 20),
    Rule(18, dropped_windows.drop_waiting_for_the_older_window, scenarios.windows_in_any_order, 60),
]


def ids(rules: list[Rule]) -> Iterator[str]:
    return (f"{rule.number}-{rule.drop.__name__}" for rule in rules)


# Rules share scenarios: each is run once with all rules in place, with the most seeds asked for.
WHOLE = {(rule.scenario, rule.table): rule for rule in sorted(RULES, key=lambda rule: rule.seeds)}


@pytest.mark.parametrize("rule", WHOLE.values(), ids=lambda rule: rule.scenario.__name__)
def test_with_all_rules_all_ends_well(rule: Rule, request: pytest.FixtureRequest) -> None:
    rows = request.getfixturevalue(rule.table)
    for seed in range(rule.seeds):
        rule.scenario(rows, seed)


@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
@pytest.mark.filterwarnings("ignore")
def test_without_the_rule_something_goes_wrong(
    rule: Rule, request: pytest.FixtureRequest, monkeypatch: Patch
) -> None:
    rows = request.getfixturevalue(rule.table)
    reported: list[BaseException] = []

    def keep(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        reported.extend([context["exception"]] if "exception" in context else [])

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", keep)
    rule.drop(monkeypatch)
    errors: list[BaseException] = []
    for seed in range(rule.seeds):
        error = end_of(rule.scenario, rows, seed)
        errors.extend([] if error is None else [error])
        if rule.always is not None:
            assert type(error) is rule.always
        elif error is not None:
            break
    assert errors, f"rule {rule.number} can be dropped: {rule.drop.__doc__}"
    unfit = [each for error in [*errors, *reported] for each in chain(error) if misfit(each)]
    assert not unfit, f"the patch does not fit the code: {unfit[0]!r}"


def end_of(scenario: Run, rows: TableFile, seed: int) -> BaseException | None:
    """The error that the scenario ends in, or None."""
    try:
        scenario(rows, seed)
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


def test_an_extent_larger_than_the_staging_is_refused(rows: TableFile) -> None:
    """11: no extent is larger than what staging can ever hold."""

    async def main() -> None:
        simulation = Simulation(Scenario(rows), 0)
        simulation.layout.extent_bytes_max = 1 << 20
        simulation.engine._settings = replace(simulation.engine._settings, block_bytes=512)
        with pytest.raises(ConfigError, match="block_bytes"):
            simulation.engine.read(
                simulation.layout.locate(
                    np.arange(64),
                    np.arange(64, dtype=np.int32) % 16,
                    simulation.table.memory.landing(np.zeros(16, np.int32)),
                )
            )

    run(main())

"""Each rule of the protocol, with and without it.

A rule is worth stating if something goes wrong without it. Each case below runs a scenario under
many seeds: with the rule in place all of them end well; with the rule taken out by `drop_…` at
least one ends in a deadlock, a wrong row, a lost slot or a lost batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import TableFile
from gnndrive.testing.loop import Deadlock, run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline import dropped, scenarios

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
    Rule(
        11, dropped.drop_staging_whole_and_last, scenarios.few_staging_blocks_end_well, table="wide"
    ),
    Rule(12, dropped.drop_buffer_of_its_own, scenarios.two_epochs_in_one_task),
    Rule(13, dropped.drop_drain_before_free, scenarios.closing_waits_for_the_kernel),
    Rule(14, dropped.drop_errors_in_turn, scenarios.failing_epoch_ends),
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
    rule.drop(monkeypatch)
    for seed in range(rule.seeds):
        try:
            rule.scenario(rows, seed)
        except (AssertionError, Deadlock, OSError, RuntimeError, BaseExceptionGroup):
            return
    pytest.fail(f"rule {rule.number} can be dropped: {rule.drop.__doc__}")


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

"""strategy="auto": which strategy is taken, and why."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.loader import strategy_choice
from gnndrive.plan.comparison import duration
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.strategies import STRATEGIES
from tests.loader.batches import assert_same
from tests.loader.conftest import Make
from tests.loader.strategy_choice.conftest import SAME


def costing(seconds: Mapping[str, float]) -> Any:
    """Stands for `predict`: a batch costs so much with each strategy; others are refused."""

    def predict(name: str, *args: Any, **more: Any) -> StrategyCost:
        if name not in seconds:
            raise ConfigError(f"{name} cannot run here\nand more")
        return StrategyCost(name, {"disk": seconds[name]}, 10, 0.5)

    return predict


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        ({"gnndrive": 1.0, "ginex": 0.94, "ali+pg": 1.1, "lsm-gnn": 1.0}, "ginex"),
        ({"gnndrive": 1.0, "ginex": 0.96, "ali+pg": 0.97, "lsm-gnn": 0.96}, "gnndrive"),
        ({"gnndrive": 1.0, "lsm-gnn": 0.5, "ali+pg": 0.49}, "ali+pg"),
        ({"gnndrive": 1.0, "ginex": 0.51, "ali+pg": 0.5}, "ali+pg"),
        ({"ginex": 2.0}, "ginex"),
        ({}, "gnndrive"),
    ],
)
def test_auto_takes_the_cheapest_that_changes_no_batch(
    make: Make, short: dict[str, Any], costs: dict[str, float], chosen: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(strategy_choice, "predict", costing(costs))
    cheap = StrategyCost("diskgnn", {"disk": 1e-9}, 10, 0.9, same_batches=False)
    monkeypatch.setattr(strategy_choice, "unpacked_cost", lambda *args: cheap)
    loader = make(**short, strategy="auto")
    loader._choose_strategy()
    assert loader._strategy is STRATEGIES[chosen]
    if costs:
        assert (
            f"because a batch costs about {duration(costs[chosen])}, bound by disk" in loader._why
        )
    refused = SAME - set(costs)
    assert not any(name in loader._why for name in refused)


def test_auto_has_the_batches_of_gnndrive(
    make: Make, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(strategy_choice, "predict", costing({"gnndrive": 1.0, "ginex": 0.1}))
    loader = make(**short, strategy="auto")
    expected = list(make(**short))
    for one, other in zip(loader, expected, strict=True):
        assert_same(one, other)
    assert loader._strategy is STRATEGIES["ginex"]
    state = loader.state_dict()
    for name in ("gnndrive", "auto"):
        other = make(**short, strategy=name)
        other.load_state_dict(state)
    assert "strategy: ginex, because" in str(make(**short, strategy="auto").plan())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"memory": "1GB"}, "because all rows fit into memory"),
        ({"sampler": [0, 1, 2] * 10, "shuffle": False}, "because"),
        ({"disjoint": True}, "because a batch costs"),
    ],
)
def test_auto_says_why(make: Make, short: dict[str, Any], more: dict[str, Any], why: str):
    loader = make(**short | more, strategy="auto")
    assert why in str(loader.plan())
    assert loader._strategy.name in SAME
    assert sum(1 for _ in loader) == len(loader)


def test_a_copy_chooses_too(make: Make, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strategy_choice, "predict", costing({"ginex": 0.1}))
    copied = pickle.loads(pickle.dumps(make(**short, strategy="auto")))
    assert "strategy: ginex, because" in str(copied.plan())


def test_auto_takes_no_argument_of_another_strategy(make: Make):
    with pytest.raises(ConfigError, match="give strategy='ginex'"):
        make(strategy="auto", superbatch=8)
    with pytest.raises(ConfigError, match="give strategy='diskgnn'"):
        make(strategy="auto", packed="there")

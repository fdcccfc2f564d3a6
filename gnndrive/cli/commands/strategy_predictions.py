"""What is predicted of each strategy that `gnndrive bench strategies` measures."""

from __future__ import annotations

from gnndrive.cli.commands.loading import StrategySource
from gnndrive.cli.commands.strategy_figures import Prediction
from gnndrive.cli.commands.strategy_runs import Comparison, Measured, loading_of
from gnndrive.common.errors import GNNDriveError
from gnndrive.store.reader import open as open_store


def predictions_of(asked: Comparison, measured: Measured) -> dict[str, Prediction]:
    """Predict a batch of each strategy that ran, in the memory that its loader had; batches are
    drawn, so call this after the measurement.

    Returns:
        By the texts of the choices; without a baseline, and those whose batches cannot be drawn.
    """
    store, found = open_store(asked.store), dict[str, Prediction]()
    seeds = None if asked.split is None else store.split(asked.split)
    for run in measured.runs:
        choice = run.choice
        if run.failed is not None:
            continue
        given, _ = loading_of(asked, choice, measured.loading_bytes)
        try:
            source = StrategySource(given, store, seeds)
            cost = source.predicted()
        except GNNDriveError:
            continue
        if cost is not None:
            found[choice.text] = Prediction(cost.batch_s, cost.bound_by)
    return found

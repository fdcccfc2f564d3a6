"""Predicted bytes: exact where the first batches say all, never below what comes."""

from __future__ import annotations

import numpy as np

from gnndrive.store.packed.predict import TableRows, predict


def zipf(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Distinct rows, low numbers most often."""
    weights = 1 / np.arange(1, rows + 1) ** 0.8
    return rng.choice(rows, count, replace=False, p=weights / weights.sum())


def test_without_hot_rows_each_batch_has_all_its_rows():
    ids = [np.arange(10), np.array([3, 3, 4])]
    found = predict([8192, 4096], {"nodes/x": TableRows(ids, 100, 512)}, 200)
    assert found.cold == (10 + 2) * 512 * 100
    assert found.hot == 0
    assert found.samples >= (8192 + 4096) * 100


def test_hot_rows_are_stored_once():
    table = TableRows([np.arange(10), np.arange(10)], 100, 512, hot_rows=10)
    found = predict([4096, 4096], {"nodes/x": table}, 200)
    assert (found.hot, found.cold) == (10 * 520, 0)
    everything = TableRows([np.arange(10)], 100, 512, hot_rows=1000)
    assert predict([4096], {"nodes/x": everything}, 9).cold == 0


def test_the_prediction_is_near_the_truth_and_not_below_it():
    rng, rows, batches, held = np.random.default_rng(0), 20_000, 60, 4_000
    drawn = [zipf(rng, rows, 3_000) for _ in range(batches)]
    counts = np.bincount(np.concatenate(drawn), minlength=rows)
    hottest = np.zeros(rows, bool)
    hottest[np.argsort(-counts, kind="stable")[:held]] = True
    truth = sum(int((~hottest[ids]).sum()) for ids in drawn) * 100
    scores = 1.0 / np.arange(1, rows + 1)
    for given, most in ((None, 1.4), (scores, 1.15)):
        table = TableRows(drawn[:5], rows, 100, held, given)
        found = predict([4096] * 5, {"nodes/x": table}, batches).cold
        assert truth <= found <= most * truth

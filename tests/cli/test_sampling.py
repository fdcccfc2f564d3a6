"""`gnndrive train`, `plan` and `pack` with --sampling and --batch-dependency."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.cli.test_packs import QUICK, SMALL, refusal

LABOR = ("--sampling", "labor", "--batch-dependency", "4")


def test_training_with_shared_numbers_has_fewer_rows(gnndrive: Command, planted: Path):
    words = ("train", planted, "--fanout", "4,4", "--batch-size", "100", *QUICK)
    apart, shared = gnndrive(*words).json, gnndrive(*words, *LABOR).json
    assert shared["batches"] == apart["batches"]
    assert shared["rows"] < 0.97 * apart["rows"]


def test_a_plan_draws_them(gnndrive: Command, store: Path):
    ended = gnndrive("plan", store, *SMALL, *LABOR, "--memory", "60MB")
    assert ended.code == 0
    assert "drawn from the store" in ended.out


def test_a_pack_is_found_by_the_line_at_its_end(gnndrive: Command, store: Path):
    made = gnndrive("pack", store, *SMALL, *LABOR)
    line = next(each for each in made.out.splitlines() if "gnndrive train" in each)
    assert "--sampling labor --batch-dependency 4" in line
    assert 'sampling="labor", batch_dependency=4' in made.out
    words = ("train", store, *SMALL, *QUICK, "--strategy", "diskgnn")
    assert gnndrive(*words, *LABOR).code == 0
    assert "sampling was 'labor, batch_dependency 4'" in refusal(gnndrive(*words))


def test_what_cannot_be_is_refused(gnndrive: Command, planted: Path):
    said = refusal(gnndrive("plan", planted, *SMALL, "--batch-dependency", "4"))
    assert "give sampling='labor', or leave it out" in said
    sketch = ("--nodes", "1M", "--edges", "20M", "--row-bytes", "512")
    assert "--sampling needs a STORE" in refusal(gnndrive("plan", *sketch, "--sampling", "labor"))

"""bench/gpu_all.py with fakes of its parts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _gpu_parts
import gpu_all
import pytest

from tests.bench.fake_parts import Fake


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def run(fake: Fake, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs --all with fakes and returns its results; the page is in "page"."""

    def make(*given: Any, **named: Any) -> _gpu_parts.Parts:
        return _gpu_parts.Parts(*given, **named, start=fake.start, clock=fake.clock)

    def run_all(*more: str) -> dict[str, Any]:
        words = [str(tmp_path / "out"), "--folder", str(tmp_path / "graphs"), *more]
        own = gpu_all.parse(words)
        found: dict[str, Any] = {"status": gpu_all.run(own, make)}
        found |= json.loads((own.out / "results.json").read_text())
        return found | {"page": (own.out / "gpu-results.md").read_text()}

    return run_all

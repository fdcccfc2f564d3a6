"""What holds for all tests: they run beside others, on a machine that may be busy."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import core, settings

from tests import forked, soak

# Each test computes with one thread, because there is one worker for each core: threads that wait
# for each other beside other work take up to ten times as long. OpenMP reads this when torch is
# imported; the processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores Ctrl-C for what it starts in the background, and so would the programs that tests
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` shows the same examples each time, a soak others in each of its runs.
settings.register_profile("project", deadline=None, database=None, derandomize=not soak.SOAKING)
settings.load_profile("project")
if soak.SOAKING:
    core.global_force_seed = int(os.environ[soak.DRAWN])


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of every later garbage collection: tests that look for
    leaks collect hundreds of times."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """End the process that programs are forked from."""
    forked.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes after the test what it has entered, such as loaders."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture(name="seeds")
def fixture_seeds() -> soak.Seeds:
    """`seeds(3)`: three fixed seeds, in a soak other ones in each run (tests/soak.py)."""
    return soak.seeds

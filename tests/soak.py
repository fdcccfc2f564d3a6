"""`make soak`: tests that draw seeds, examples or combinations, again and again with fresh ones.

A test of `make test` shows a behaviour with a few fixed seeds. The same test is soaked when it

- asks for the fixture `seeds`, and loops over `seeds(3)` instead of `range(3)`;
- is decorated with `product`, which takes each value once, and all combinations in a soak;
- is one of Hypothesis'.

Those that are marked `soak(times=N)` run N times, with other seeds each time. Then the soak picks
one of all at random, one of its combinations and a seed, runs it, and goes on until its time is
over. There is a process for each core; what it draws follows from SEED.
`GNNDRIVE_SOAK=N` in the environment runs chosen tests once as the soak does when it has drawn N.
"""

import argparse
import faulthandler
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.warnings import catch_warnings_for_item
from hypothesis import core

from tests.project_files import ROOT

DRAWN = "GNNDRIVE_SOAK"  # the number that a test's seeds and examples follow from
DROPPED = "GNNDRIVE_DROP"  # the rule that is taken out; the first test that fails has found it
MINUTES = "GNNDRIVE_SOAK_MINUTES"  # how long the soak runs tests, once they are collected
SOAKING = DRAWN in os.environ
RUNS = 3  # combinations and seeds of one test in a row: its module's fixtures are made once
HANG_S = 120  # a test that takes longer does not end
SEED_MAX = 1 << 31

Seeds = Callable[[int], Iterable[int]]


def seeds(count: int) -> Iterable[int]:
    """`count` seeds: 0, 1, 2, … in `make test`, others in each run of a soak."""
    start = int(os.environ.get(DRAWN, "0"))
    return range(start, start + count)


def product(names: str, *values: Sequence[Any], ids: Any = None) -> pytest.MarkDecorator:
    """Parameters of which each matters alone: `make test` has each value once, a soak all
    combinations.

    Args:
        names: as in `pytest.mark.parametrize`; one more sequence of values for each.
        values: of each name.
        ids: as in `pytest.mark.parametrize`.
    """
    most = max(map(len, values))
    cases = [tuple(each[i % len(each)] for each in values) for i in range(most)]
    if SOAKING:
        cases = list(itertools.product(*values))
    marked = [pytest.param(*case, marks=pytest.mark.soak) for case in cases]
    return pytest.mark.parametrize(names, marked, ids=ids)


# ---- a soak, in a process of pytest


def _function(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def is_soaked(item: pytest.Item) -> bool:
    """Whether other seeds, examples or combinations can show more of this test."""
    marks = {mark.name for mark in item.iter_markers()}
    return "seeds" in getattr(item, "fixturenames", ()) or bool(marks & {"soak", "hypothesis"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what no seed changes."""
    config.hook.pytest_deselected(items=[item for item in items if not is_soaked(item)])
    items[:] = [item for item in items if is_soaked(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the marked tests, this process's part of them, and then tests at random until the time is
    over; one that has failed is not drawn again."""
    if session.testsfailed:
        raise session.Interrupted("a file cannot be collected")
    rng = random.Random(os.environ[DRAWN])
    write = session.config.get_terminal_writer().line
    said = os.dup(1)  # while a test runs, pytest has another file there
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    marked: list[pytest.Item] = []
    for item in session.items:
        functions[_function(item)].append(item)
        for mark in item.iter_markers("soak"):
            marked += [item] * mark.kwargs.get("times", 0)
    cores = os.cpu_count() or 1
    marked = marked[int(os.environ[DRAWN]) % cores :: cores]  # the processes have numbers in a row
    runs, until = 0, time.monotonic() + 60 * float(os.environ[MINUTES])
    while functions and (marked or time.monotonic() < until):
        if marked:
            drawn = [marked.pop()]
        else:
            drawn = rng.choices(functions[rng.choice(list(functions))], k=RUNS)
        chosen = [copy(item) for item in drawn]  # pytest tears a test down only before another one
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            runs += 1
            if failure := _run(item, following, rng.randrange(SEED_MAX), said):
                write(failure)
                functions.pop(_function(item), None)
                marked = [each for each in marked if _function(each) in functions]
                session.testsfailed += 1
                session._setupstate.teardown_exact(None)
                if os.environ.get(DROPPED):
                    functions.clear()
                break
    write(f"{runs} runs of {len(functions)} tests")
    return True


def _run(item: pytest.Item, following: pytest.Item | None, drawn: int, said: int) -> str:
    """Run one test with what follows from `drawn`; returns what failed, and how to repeat it."""
    os.environ[DRAWN] = str(drawn)
    core.global_force_seed = drawn
    item._initrequest()  # type: ignore[attr-defined]  # its fixtures are made anew
    item._report_sections.clear()
    repeat = f"Repeat it:\n    {DRAWN}={drawn} .venv/bin/python -m pytest '{item.nodeid}'\n"
    hangs = threading.Timer(HANG_S, _give_up, [said, f"{item.nodeid} hangs. {repeat}"])
    hangs.start()
    try:
        with catch_warnings_for_item(item.config, item.ihook, "runtest", item, record=False):
            failed = [each for each in runtestprotocol(item, False, following) if each.failed]
    finally:
        hangs.cancel()
        hangs.join()
    if not failed:
        return ""
    told = "\n".join(f"{each.when}: {each.longreprtext}" for each in failed)
    return f"\n{told}\n{item.nodeid} failed in {failed[0].when}. {repeat}"


def _give_up(said: int, repeat: str) -> None:
    """End this process because of a test that does not end."""
    faulthandler.dump_traceback(said)
    os.write(said, repeat.encode())
    os._exit(1)


# ---- `make soak`


def main() -> int:
    """Soak in a process for each core; returns 1 if a test has failed."""
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(SEED_MAX))
    parser.add_argument("--drop", default="", help="take a rule out: a function in dropped.py")
    parser.add_argument("tests", nargs="*", help="files; all, or the pipeline's with --drop")
    given = parser.parse_args()
    if given.drop:
        from tests.pipeline import dropped

        rules = [name for name in vars(dropped) if name.startswith("drop_")]
        if given.drop not in rules:
            parser.error(f"no rule is called {given.drop}; there are: {', '.join(rules)}")
    tests = given.tests or ["tests/pipeline" if given.drop else "tests"]
    print(f"soak: {given.minutes:g} minutes, SEED={given.seed}", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.soak", "-p", "no:cacheprovider"]
    left = [
        subprocess.Popen(
            [*command, "-m", "not gpu", *tests], cwd=ROOT,
            env={**os.environ, DRAWN: f"{given.seed + number}", MINUTES: f"{given.minutes}",
                 DROPPED: given.drop},
        )
        for number in range(os.cpu_count() or 1)
    ]  # fmt: skip
    failed = False
    while left:
        ended, status = os.wait()
        failed = failed or status != 0
        left = [process for process in left if process.pid != ended]
        if failed and given.drop:  # it is found
            for process in left:
                process.terminate()
    print(f"soak: {'a test has failed' if failed else 'all passed'}, SEED={given.seed}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

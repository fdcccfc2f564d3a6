"""`measure`: strategies side by side on one store; `Comparison`: what is compared, and how.

Each strategy loads in a process of its own (`loading.py`), with cold files, and all take
turns, round after round, so that a disk that changes its speed changes it for all.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.loader_options import LoaderOptions, parse_tuning
from gnndrive.cli.commands.loading import (
    NOTHING,
    Loaded,
    Loading,
    LoadingFailed,
    drop_cached,
    loader_of,
    run_loading,
)
from gnndrive.cli.commands.options import SAMPLING
from gnndrive.cli.measure.memory_limit import Cgroup
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.memory import exact_text, format_size, given_size, least_text, parse_size
from gnndrive.common.names import did_you_mean
from gnndrive.common.progress import Progress
from gnndrive.loader.arguments import TUNING, Tuning
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.plan.choice import without_plan
from gnndrive.store.reader import Store
from gnndrive.strategies.base import UNPREPARED, Strategy, parts_of, strategies, value_of
from gnndrive.strategies.base import strategy as find_strategy
from gnndrive.strategies.superbatches.scheme import RAMP, SamplesAhead

WARM_UP, SECONDS = 10, 120.0
SPREAD = 1.02  # of what a process takes without loading, in another run
_OF_THE_COMPARISON = {
    "self", "data", "num_neighbors", "input_nodes", "strategy", "seed", "kwargs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy with further arguments of its loader.

    Attributes:
        text: as the user wrote it: "ginex", or "ginex:phases=apart,superbatch=64".
        strategy: the strategy, with those arguments behind the name that are its own.
        arguments: the others, which are the loader's.
    """

    text: str
    strategy: Strategy
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, and how.

    Attributes:
        choices: the strategies, in the order in which they take turns.
        options: what all loaders have in common; `memory` is that of a whole process.
        split, batches, warm_up, seconds: see `Loading`.
        limited: whether processes get a memory limit, where the machine allows it.
    """

    store: Path
    choices: tuple[Choice, ...]
    options: LoaderOptions
    split: str | None
    batches: int
    warm_up: int
    seconds: float
    rounds: int
    limited: bool

    @property
    def memory(self) -> int | None:
        """Bytes for a whole process."""
        return given_size(self.options.memory, "--memory")


@dataclass(frozen=True, slots=True)
class StrategyRuns:
    """The runs of one strategy.

    Attributes:
        rounds: what each round has measured.
        failed: why it cannot run, or has not ended; None: all went well.
        superbatch: the superbatch that was given in place of its own; None: none was.
    """

    choice: Choice
    rounds: tuple[Loaded, ...] = ()
    failed: str | None = None
    superbatch: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A comparison's result.

    Attributes:
        process_bytes: what Python, torch and the opened store take of a process's memory.
        loading_bytes: what loaders got as memory=; None: nothing was said.
        limit: the memory limit, or why there is none, in words.
        enforced: whether there is a limit.
    """

    runs: tuple[StrategyRuns, ...]
    process_bytes: int
    loading_bytes: int | None
    limit: str
    enforced: bool


# ---- what is asked for


def parse_choices(text: str | None) -> tuple[Choice, ...]:
    """Parse the value of --strategies; None: all strategies, a baseline first."""
    # A comma stands between strategies, and between the arguments of one.
    texts = _names() if text is None else re.split(r",(?![^,:=]+=)", text)
    choices = tuple(map(parse_choice, texts))
    for choice in choices:
        if [each.text for each in choices].count(choice.text) > 1:
            raise ConfigError(f"--strategies names {choice.text} twice: name it once")
    return choices


def _names() -> list[str]:
    """The names of all strategies, a baseline first."""
    return sorted(strategies(), key=lambda name: not strategies()[name].baseline)


def parse_choice(text: str, option: str = "--strategies") -> Choice:
    """Parse a strategy with arguments of its own and of its loader, such as
    "ginex:phases=apart:samplers=2". `option` is where it was given."""
    name, _, given = text.strip().partition(":")
    if name not in strategies():
        raise ConfigError(
            f"{option}: {name!r} is none of {', '.join(_names())}{did_you_mean(name, _names())}"
        )
    own = strategies()[name].arguments()
    allowed = inspect.signature(NeighborLoader).parameters.keys() - _OF_THE_COMPARISON
    of_strategy, arguments = [name], dict[str, Any]()
    for part in parts_of(given) if given else []:
        argument, equals, value = part.partition("=")
        if equals and argument in own:
            of_strategy.append(part)
        elif equals and argument in TUNING:
            arguments[argument] = value_of(Tuning(), argument, value)
        elif equals and argument in allowed:
            arguments[argument] = value
        else:
            meant = did_you_mean(argument, [*own, *TUNING, *allowed])
            raise ConfigError(
                f"{option} {text}: {part!r} is no argument of the strategy, and none of "
                f"NeighborLoader that may differ between strategies{meant}: write NAME or "
                "NAME:ARGUMENT=VALUE, as ginex:phases=apart"
            )
    return Choice(text.strip(), find_strategy(":".join(of_strategy)), arguments)


def aligned_warm_up(batches: int) -> int:
    """The least warm-up of at least `WARM_UP` batches behind which a superbatch of `batches`
    begins, so that a strategy that samples ahead samples as many batches as are timed."""
    at = sum(size for size in RAMP if size < batches)
    while at < WARM_UP:
        at += batches
    return at


def missing(store: Store, asked: Comparison) -> dict[str, str]:
    """Why strategies cannot run on a store yet, as far as is known before they run, with the
    command that changes that, by `Choice.text`."""
    found = dict[str, str]()
    for choice in asked.choices:
        if (lacks := choice.strategy.lacks(store)) is not None:
            found[choice.text] = f"{UNPREPARED}: {lacks}"
        elif not choice.strategy.whole_graph:
            given, _ = loading_of(asked, choice, asked.memory)
            try:
                loader_of(given, store).close()
            except GNNDriveError as error:  # it names the command that packs these batches
                found[choice.text] = str(error)
    return found


def command_of(asked: Comparison, choice: Choice) -> str:
    """The command that measures one strategy in the same way."""
    words = ["gnndrive", "bench", "strategies", str(asked.store), "--strategies", choice.text]
    words += ["--memory", exact_text(asked.memory)] if asked.memory is not None else []
    default = LoaderOptions()
    for name in ("fanout", "batch_size", "sampling", "seed", "tuning"):
        value = getattr(asked.options, name)
        if value != getattr(default, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--split", asked.split] if asked.split else []
    words += ["--batches", str(asked.batches), "--warm-up", str(asked.warm_up)]
    words += ["--rounds", str(asked.rounds), "--seconds", f"{asked.seconds:g}"]
    return shlex.join(words + ([] if asked.limited else ["--no-limit"]))


# ---- running


def measure(
    asked: Comparison, lacking: Mapping[str, str],
    limit: Cgroup | None, words: str, progress: Progress,
) -> Measured:  # fmt: skip
    """Run the strategies in turn; one that fails is left out of later rounds.

    Args:
        lacking: why a strategy cannot run, by `Choice.text`.
        limit, words: the limit of each process, and what it is, or why there is none.
    """
    # What a process takes that has imported everything, opened the store, and loads nothing.
    empty = "a process without a loader"
    progress(empty, 0, 1)
    own = run_loading(replace(_loading(asked), loader=NOTHING)).peak_bytes
    progress(empty, 1, 1)
    left = None if asked.memory is None else asked.memory - own
    if asked.memory is not None and asked.memory <= own:
        raise ConfigError(
            f"--memory {format_size(asked.memory)} is for a whole process, of which Python, torch "
            f"and the store take {format_size(own)}, so nothing is left for loading: give "
            f"{format_size(own)} more than a loader's memory=, which counts loading alone"
        )
    runs = {
        choice.text: StrategyRuns(choice, failed=lacking.get(choice.text))
        for choice in asked.choices
    }
    for number in range(1, asked.rounds + 1):
        for place, (text, each) in enumerate(runs.items()):
            if each.failed is not None:
                continue
            given, superbatch = loading_of(asked, each.choice, left)
            drop_cached([asked.store, *each.choice.strategy.folders()])
            what = f"round {number} of {asked.rounds}"

            def shown(done: int, total: int, what: str = what, place: int = place) -> None:
                progress(what, place * total + done, len(runs) * total)

            shown(0, given.warm_up + given.batches)
            try:
                loaded = run_loading(given, limit, shown)
            except LoadingFailed as error:
                again = "" if number == 1 else f"in round {number}: "
                failed = f"{again}{_for_a_process(str(error), own)}"
                runs[text] = replace(each, failed=failed)
                continue
            runs[text] = replace(each, rounds=(*each.rounds, loaded), superbatch=superbatch)
    return Measured(tuple(runs.values()), own, left, words, limit is not None)


def _for_a_process(refused: str, own: int) -> str:
    """Why a loader failed, with the --memory of a whole process for a refusal's `memory=`."""
    found = re.search(r'give at least memory="(.+?)"', refused)
    if found is None:
        return refused
    nbytes = parse_size(found[1], "memory") + int(SPREAD * own)
    return (
        f"{without_plan(refused)}. That is the loader's; for a whole process give --memory "
        f"{least_text(nbytes)}"
    )


def _loading(asked: Comparison) -> Loading:
    options = asked.options
    return Loading(
        str(asked.store), "", options.hops, options.batch_size, asked.batches, asked.warm_up,
        asked.seconds, asked.split, options.seed,
    )  # fmt: skip


def loading_of(asked: Comparison, choice: Choice, memory: int | None) -> tuple[Loading, int | None]:
    """What a strategy's process loads, and the superbatch that stands for the strategy's own.

    A longer superbatch than there are timed batches would be sampled during these, and its samples
    would be used later.
    """
    strategy, superbatch = choice.strategy, None
    if isinstance(strategy, SamplesAhead) and strategy.superbatch == type(strategy)().superbatch:
        own = strategy.superbatch
        if isinstance(own, str) or own > asked.batches:
            superbatch = asked.batches
            strategy = replace(strategy, superbatch=superbatch)
    arguments: dict[str, Any] = {} if memory is None else {"memory": memory}
    sampling = asked.options.sampling
    arguments |= {"sampling": sampling} if sampling != SAMPLING else {}
    arguments |= {**parse_tuning(asked.options.tuning), **choice.arguments}
    return replace(_loading(asked), loader=strategy.text, arguments=arguments), superbatch

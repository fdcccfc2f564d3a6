"""The commands that messages print are there, with their options, and those that they print whole
run as printed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

from gnndrive.cli.main import COMMANDS, _app
from tests.cli.conftest import SMALL, Command
from tests.project_files import files, named

COMMAND = re.compile(r"\bgnndrive (?P<words>[a-z][a-z-]*(?: [a-z][a-z-]*)?)(?P<rest>[^;:.,()`]*)")
PROSE = {
    "and", "cannot", "classes", "draw", "in", "is", "loader", "rank", "reads", "record", "runs",
    "store", "that",
}  # fmt: skip
"""Words that follow the name in sentences, and in names of threads and files."""


def texts(source: str) -> Iterator[str]:
    """The texts of a module but its docstrings; "…" stands for what an f-string fills in."""
    tree = ast.parse(source)
    kept = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
        for part in node.values
    } | {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(getattr(part, "value", "…") if isinstance(part, ast.Constant) else "…"
                          for part in node.values)  # fmt: skip
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in kept
        ):
            yield node.value


@pytest.fixture(scope="module")
def group() -> Any:
    """All commands as one group."""
    made = {name: typer.main.get_command(_app(name)).commands[name] for name in COMMANDS}
    return SimpleNamespace(commands=made)


def wrong_in(text: str, group: Any) -> list[str]:
    """What a text says of commands that are not there, or options that they do not have."""
    found = []
    for match in COMMAND.finditer(text):
        command, words = group, match["words"].split()
        if words[0] not in group.commands:
            found += [] if words[0] in PROSE else [match[0]]
            continue
        for word in words:
            if word in getattr(command, "commands", ()):
                command = command.commands[word]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        options = re.findall(r"(?<!\S)--[a-z][a-z-]*", match[0])
        found += [f"{match[0]}: {option}" for option in options if option not in known | {"--help"}]
    return found


def test_every_command_in_a_message_parses(group: Any) -> None:
    wrong = [
        f"{named(path)}: {each}"
        for path in files(".py")
        if named(path).startswith("gnndrive/")
        for text in texts(path.read_text("utf-8"))
        for each in wrong_in(text, group)
    ]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    ["run gnndrive unpackk FILE", "gnndrive pack --overwrites", "gnndrive bench disk --rowz 3"],
)
def test_one_that_is_not_there_is_found(text: str, group: Any) -> None:
    assert wrong_in(text, group)


WHOLE = re.compile(
    r"gnndrive ((?:pack|partition|bench disk|train) (?!-)(?:(?! to measure)[^`;\n])*)"
)


def test_commands_run_as_printed(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan, refusals, a comparison and then a pack print."""
    monkeypatch.chdir(store.parent)
    given, strategies = [store.name, *SMALL], ("diskgnn", "hierbatching", "marius")
    asked: list[list[object]] = [
        ["plan", *given, "--memory", "60MB", "-v"],
        *(["train", *given, "--strategy", each] for each in strategies),
        ["bench", "strategies", *given, "--batches", 1, "--rounds", 1, "--no-limit",
         "--strategies", ",".join(("gnndrive", *strategies))],
    ]  # fmt: skip
    ran = list[str]()

    def run_all(text: str) -> None:
        for command in WHOLE.findall(text):
            if command not in ran:
                ran.append(command)
                ended = gnndrive(*shlex.split(command))
                assert ended.code == 0, (command, ended.err)
                run_all(ended.out)

    for text in [each.out + each.err for each in [gnndrive(*each) for each in asked]]:
        run_all(text)
    assert {each.partition(" ")[0] for each in ran} == {"pack", "partition", "bench", "train"}, ran
    assert "--packing-memory" in next(each for each in ran if each.startswith("pack"))
    refused = gnndrive("train", *given, "--strategy", "diskgnn").refusal
    choices = re.findall(r"\b(diskgnn:\w+=[\w-]+)", refused)
    assert len(choices) == 2
    for each in [*choices, "hierbatching", "marius"]:
        assert gnndrive("train", *given, "--strategy", each, "--epochs", 1).code == 0


def test_a_pack_command_has_the_tuning_of_the_plan(gnndrive: Command, store: Path) -> None:
    planned = gnndrive("plan", store, *SMALL, "-v", "--memory", "6MB", "--tuning", "io_depth=4").out
    (command,) = (each for each in WHOLE.findall(planned) if each.startswith("pack "))
    assert "--memory 6MB --tuning io_depth=4" in command
    packed = gnndrive(*shlex.split(command))
    assert packed.code == 0, packed.err
    (train,) = (each for each in WHOLE.findall(packed.out) if each.startswith("train "))
    assert "--tuning io_depth=4" in train
    deep = command.replace("=4", "=128")
    assert "is too little" in gnndrive(*shlex.split(deep), "--overwrite").refusal

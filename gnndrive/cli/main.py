"""The commands `gnndrive demo | import | info | verify | clean | plan | pack | partition | …`.

A user's mistake or a failing disk gives one line on standard error and exit code 2, a damaged store
exit code 1 from `verify`, Ctrl-C exit code 130, and a pipe whose reader has ended exit code 141.
Results go to standard output (with `--json` one JSON object and nothing else), progress goes to
standard error. The commands are in gnndrive/cli/commands.
"""

from __future__ import annotations

import ast
import atexit
import gc
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from gnndrive.cli import streams
from gnndrive.cli.in_options import in_options
from gnndrive.cli.report.text import typed
from gnndrive.common.errors import ConfigError, GNNDriveError, StoreError
from gnndrive.common.imports import defer, import_quickly
from gnndrive.common.names import did_you_mean

_INTERRUPTED = 130
_READER_ENDED = 141  # the shell's code of a program that SIGPIPE ended
_debug = False


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gnndrive {version('gnndrive')}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option(help="Show a traceback with every error.")] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    global _debug
    _debug = debug


COMMANDS = {
    "import": "imports.import_",
    "verify": "stores.verify",
    "split-links": "stores.split_links",
    "info": "info.info",
    "clean": "clean.run",
    "remove": "stores.remove",
    "plan": "plans.plan",
    "pack": "packs.pack",
    "partition": "partitions.partition",
    "stripe": "stripes.stripe",
    "shard": "stores.shard",
    "serve": "serve.serve",
    "report": "page.report",
    "train": "train.train_command",
    "infer": "infer.infer_command",
    "demo": "demo.run",
    "bench": "bench.bench",
}
"""The function of each command, by its module in gnndrive/cli/commands."""
WITHOUT_TORCH = ("info", "clean", "report")


class Commands(typer.core.TyperGroup):
    """A group of commands. The error for one that is not there says which there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first word names."""
        if args[0] not in self.commands:
            meant = (
                did_you_mean(args[0], self.commands) or f": give one of {', '.join(self.commands)}"
            )
            raise ConfigError(f"there is no command {ctx.command_path} {args[0]}{meant}")
        return super().resolve_command(ctx, args)


@cache
def _app(name: str) -> typer.Typer:
    """The command line with the command `name` alone, because other commands import PyTorch and
    PyG. If there is no such command, all stand in it with the docstrings in their files, for the
    help and for guesses at what was meant."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train graph neural networks on graphs far larger than memory, from one SSD.",
    )
    app.callback()(_options)
    if name not in COMMANDS:
        for each, place in COMMANDS.items():
            app.command(each, help=_docstring(*place.split(".")))(lambda: None)
        return app
    module, function = COMMANDS[name].split(".")
    imported = import_quickly(f"gnndrive.cli.commands.{module}")
    if (group := getattr(imported, "app", None)) is not None:
        app.add_typer(group, name=name, cls=Commands)
    else:
        app.command(name)(getattr(imported, function))
    return app


def _docstring(module: str, function: str) -> str:
    tree = ast.parse((Path(__file__).parent / "commands" / f"{module}.py").read_bytes())
    found = (each for each in tree.body if isinstance(each, ast.FunctionDef))
    return next(ast.get_docstring(each) or "" for each in found if each.name == function)


def _name(words: Sequence[str]) -> str:
    """The command that is called; empty: none is, or an option before it ends `gnndrive`."""
    first = next((word for word in words if word not in ("--debug", "--no-debug", "--")), "")
    return "" if first.startswith("-") else first


def _prepare(words: Sequence[str]) -> None:
    """Do without PyTorch where that is possible; else say what is called before it is imported."""
    name = _name(words)
    if name in WITHOUT_TORCH:
        defer("torch")
    elif name in COMMANDS and "torch" not in sys.modules:
        behind = words[words.index(name) :]
        called = shlex.join(takewhile(lambda word: not word.startswith("-"), behind))
        print(f"gnndrive {called}: importing PyTorch", file=sys.stderr, flush=True)


def _freeze() -> None:
    if "duckdb" not in sys.modules:  # DuckDB complains about objects that were not collected
        gc.freeze()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program's name; None: those of sys.argv.

    Returns:
        The exit code.
    """
    # Without it, the interpreter's last collection looks at all of torch: 0.8 s of every Ctrl-C.
    atexit.register(_freeze)
    words = sys.argv[1:] if arguments is None else list(arguments)
    with streams.guarded(lambda text: _in_options(text, words)):
        return _run(words)


def _run(words: list[str]) -> int:
    """Run a command and return its exit code; print what went wrong in one line."""
    try:
        code = _call(words)
        streams.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except streams.OutputError as error:
        if error.reader_ended:
            return _READER_ENDED
        print(f"gnndrive: {error}", file=sys.stderr)
        return 2
    except (GNNDriveError, NotImplementedError) as error:
        if _debug:
            raise
        print(f"gnndrive: {_in_options(str(error), words)}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) and _name(words) == "verify" else 2
    if code == _INTERRUPTED:
        print("gnndrive: interrupted", file=sys.stderr)
    return code


def _in_options(message: str, words: list[str]) -> str:
    """A message with the options of the command that is called; see `in_options`."""
    name = _name(words)
    if name not in COMMANDS:
        return message
    command = typer.main.get_command(_app(name)).commands[name]  # type: ignore[attr-defined]
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return in_options(message, command)


OLD_OPTIONS = {
    "--packed": "--strategy diskgnn:packed=…",
    **{
        f"--{name}": f"--strategy hierbatching:{name}=… or marius:{name}=…"
        for name in ("partitioned", "megabatch", "passes", "static")
    },
    "--batch-dependency": "--sampling labor:dependency=…",
    **{
        f"--{name.replace('_', '-')}": f"--tuning {name}=…"
        for name in ("topology", "neighbour_cache", "samplers", "extractors", "engine")
    },
}
"""Options that commands with loader options had, and what stands for them now."""
OLD_COMMANDS = {
    "unpack": "a pack is a folder: rm -r removes it, the same gnndrive pack with --overwrite "
    "replaces it, and gnndrive clean removes what killed packers left",
}


def _refuse_old_words(words: list[str]) -> None:
    """Raise ConfigError for a command that there was once, or an option that a command had."""
    old = OLD_OPTIONS
    match [word for word in words if not word.startswith("-")]:  # after options of `gnndrive`
        case [name, *_] if name in OLD_COMMANDS:
            raise ConfigError(f"{name} is no command any more: {OLD_COMMANDS[name]}")
        case ["import", *_]:
            old = {"--overwrite": "--if-exists replace"}
        case ["bench", "strategies", *_]:
            old = {name: new.replace("--strategy ", "--strategies ") for name, new in old.items()}
        case ["train" | "plan", *_] | ["bench", "headroom", *_]:
            pass
        case _:
            return
    for word in words:
        if (new := old.get(word.partition("=")[0])) is not None:
            raise ConfigError(f"{word} is no option any more: give {new}")


def _call(words: list[str]) -> int:
    _refuse_old_words(words)
    _prepare(words)
    try:
        with typed(words):
            _app(_name(words))(args=words, prog_name="gnndrive")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

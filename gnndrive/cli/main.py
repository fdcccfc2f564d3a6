"""The commands `gnndrive demo | import | info | verify | clean | plan | pack | partition | …`.

A user's mistake or a failing disk gives one line on standard error and exit code 2, a damaged store
exit code 1 from `verify`, Ctrl-C exit code 130, and a pipe whose reader has ended exit code 141.
Results go to standard output (with `--json` one JSON object and nothing else), progress goes to
standard error. The commands are in gnndrive/cli/commands.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from gnndrive.cli import streams
from gnndrive.cli.commands import (
    bench,
    clean,
    demo,
    imports,
    infer,
    packs,
    page,
    partitions,
    plans,
    serve,
    stores,
    train,
)
from gnndrive.cli.commands.options import StoreOrPack
from gnndrive.cli.report.text import typed
from gnndrive.common.errors import ConfigError, GNNDriveError, StoreError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train graph neural networks on graphs far larger than memory, from one SSD.",
)

app.add_typer(bench.app, name="bench")

_INTERRUPTED = 130
_READER_ENDED = 141  # the shell's code of a program that SIGPIPE ended
_debug = False


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gnndrive {version('gnndrive')}")
        raise typer.Exit


@app.callback()
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


def verify(
    store: StoreOrPack,
    of: Annotated[
        Path | None, typer.Option(help="The store of a pack or partitions outside of it.")
    ] = None,
) -> None:
    """Read a store with its packs and partitions, or one of these, and check everything; exit code
    1 if damaged."""
    try:
        stores.verify(store, of)
    except StoreError as error:
        if _debug:
            raise
        print(f"gnndrive: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


COMMANDS: dict[str, Callable[..., None]] = {
    "import": imports.import_,
    "verify": verify,
    "split-links": stores.split_links,
    "info": stores.info,
    "clean": clean.run,
    "remove": stores.remove,
    "plan": plans.plan,
    "pack": packs.pack,
    "partition": partitions.partition,
    "serve": serve.serve,
    "report": page.report,
    "train": train.train_command,
    "infer": infer.infer_command,
    "demo": demo.run,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


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
    with streams.guarded():
        return _run(sys.argv[1:] if arguments is None else list(arguments))


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
        print(f"gnndrive: {error}", file=sys.stderr)
        return 2
    if code == _INTERRUPTED:
        print("gnndrive: interrupted", file=sys.stderr)
    return code


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
    try:
        with typed(words):
            app(args=words, prog_name="gnndrive")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

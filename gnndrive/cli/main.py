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
from gnndrive.cli.commands.options import IfExists, StoreOrPack
from gnndrive.cli.report.run_file import typed
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


@app.command("import")
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[DATASET] OUT",
            help="Path of the new store; before it, instead of --edges, an OGB folder, or a "
            "metadata.yaml of GraphBolt or its folder.",
        ),
    ],
    edges: Annotated[
        list[Path] | None,
        typer.Option(help="CSV or Parquet: source and target of one edge per row."),
    ] = None,
    features: Annotated[Path | None, typer.Option(help=".npy, .npz or SciPy CSR .npz.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV: one node id and its label per line.")
    ] = None,
    undirected: Annotated[bool, typer.Option(help="Add the reverse of each edge.")] = False,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Shares of train,val,test, drawn at random (default: 0.6,0.2,0.2); or "
            "NAME=FILE of node ids, once for each split; or none."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random split.")] = 0,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the features in the store; default: float32.")
    ] = None,
    if_exists: IfExists = "error",
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for DuckDB to sort edges larger than memory, such as 1GB."),
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option(min=0, help="Needed if no file gives it.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Column of sources; default: first.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of targets; default: second.")] = None,
    header: Annotated[
        bool | None, typer.Option(help="Whether CSV files begin with column names.")
    ] = None,
    edge_column: Annotated[
        list[str] | None, typer.Option(help="Column of numbers to keep; repeat for each.")
    ] = None,
    map_ids: Annotated[
        bool, typer.Option(help="Ids are text or sparse: number the nodes and keep the ids.")
    ] = False,
) -> None:
    """Make a store from a graph in plain files, or from an OGB or GraphBolt dataset."""
    imports.run(
        paths, edges, split, seed, features=features, labels=labels, undirected=undirected,
        dtype=dtype, if_exists=if_exists, memory=memory, num_nodes=num_nodes,
        source=source, target=target, header=header, edge_column=edge_column, map_ids=map_ids,
    )  # fmt: skip


@app.command()
def verify(
    store: StoreOrPack,
    of: Annotated[
        Path | None,
        typer.Option(help="The store of a pack or partitions outside of it."),
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
        return _run(None if arguments is None else list(arguments))


def _run(arguments: list[str] | None) -> int:
    """Run a command and return its exit code; print what went wrong in one line."""
    try:
        code = _call(arguments)
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
BENCHES = (["bench", "headroom"], ["bench", "strategies"])


OLD_COMMANDS = {
    "unpack": "a pack is a folder: rm -r removes it, the same gnndrive pack with --overwrite "
    "replaces it, and gnndrive clean removes what killed packers left",
}


def _refuse_old_words(words: list[str]) -> None:
    """Raise ConfigError for a command that there was once, or an option that a command had."""
    command = [word for word in words if not word.startswith("-")]  # after options of `gnndrive`
    if command and command[0] in OLD_COMMANDS:
        raise ConfigError(f"{command[0]} is no command any more: {OLD_COMMANDS[command[0]]}")
    old = OLD_OPTIONS
    if command[:1] == ["import"]:
        old = {"--overwrite": "--if-exists replace"}
    elif command[:1] not in (["train"], ["plan"]) and command[:2] not in BENCHES:
        return
    for word in words:
        if (new := old.get(word.partition("=")[0])) is not None:
            if command[1:2] == ["strategies"]:
                new = new.replace("--strategy ", "--strategies ")
            raise ConfigError(f"{word} is no option any more: give {new}")


def _call(arguments: list[str] | None) -> int:
    _refuse_old_words(sys.argv[1:] if arguments is None else arguments)
    try:
        with typed(arguments):
            app(args=arguments, prog_name="gnndrive")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

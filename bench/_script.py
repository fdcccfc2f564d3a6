"""The end of each script of this folder: print and write results, report errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnndrive.common.errors import GNNDriveError


def show(text: str, found: dict[str, Any], path: str | None) -> None:
    """Print a table, and write its figures as JSON to `path`, if given."""
    print(text)
    if path:
        write(found, path)


def write(found: dict[str, Any], path: str) -> None:
    """Write figures as JSON to `path`; an older file there stays whole until then."""
    unfinished = Path(f"{path}.new")
    unfinished.write_text(json.dumps(found, indent=2))
    unfinished.replace(path)


def run(main: Callable[[], None]) -> None:
    """Run a script; a gnndrive error ends it with its message, Ctrl-C with exit code 130."""
    try:
        main()
    except GNNDriveError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

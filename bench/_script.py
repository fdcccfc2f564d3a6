"""How each of these scripts ends: what it found, printed and written, and what went wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnndrive.common.errors import GNNDriveError


def show(text: str, found: dict[str, Any], path: str | None) -> None:
    """Print a table, and write what it was made of as JSON if asked to."""
    print(text)
    if path:
        Path(path).write_text(json.dumps(found, indent=2))


def run(main: Callable[[], None]) -> None:
    """Run a script; an error of ours is a message, Ctrl-C ends with 130."""
    try:
        main()
    except GNNDriveError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

"""The process of a host service: `python -m gnndrive.host LISTENER STORE`.

A rank starts it (`start.py`) with a listening socket; it ends when its last client has left.
`gnndrive serve` is the same for people.
"""

from __future__ import annotations

import sys

from gnndrive.common.imports import defer


def main() -> None:
    """Serve the store that the command line names."""
    defer("torch")
    from gnndrive.host.run import serve_folder  # numpy, the C core and much else

    sys.exit(serve_folder(int(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()

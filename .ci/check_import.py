"""Import the installed gnndrive and call its core; .ci/run runs this outside the source tree."""

from __future__ import annotations

import sys
from pathlib import Path

import gnndrive
from gnndrive.common.ffi import ffi, lib

if not Path(next(iter(gnndrive.__path__))).is_relative_to(sys.prefix):
    sys.exit(f"gnndrive was imported from {gnndrive.__path__}, not from {sys.prefix}")
standby = ffi.gc(lib.gd_standby_new(4), lib.gd_standby_free)
lib.gd_standby_push(standby, 3, 10)
lib.gd_standby_push(standby, 1, 5)
if lib.gd_standby_pop(standby) != 1:
    sys.exit("the core's standby list returned the wrong slot")
print(f"imported from {sys.prefix}, Python {sys.version.split()[0]}")

"""Check an sdist and the wheel built from it: their files, the wheel's tag, its libraries.

usage: check_packages.py SDIST WHEEL
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CORE = "gnndrive/_core.abi3.so"
ROOT = Path(__file__).resolve().parent.parent


def missing(held: set[str], named: set[str], pattern: str) -> str:
    """Of the files `named` and those of the tree that match `pattern` those that are not held."""
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    return ", ".join(sorted((named | found) - held))


def main(sdist: Path, wheel: Path) -> None:
    """Check both files and print their sizes; exit with a message at the first fault."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    built = {"build_ext.py", "setup.py", "pyproject.toml", "gnndrive/py.typed"}
    if lacks := missing(held, built, "native/*.[ch]"):
        sys.exit(f"{sdist.name} lacks {lacks}: see MANIFEST.in")
    if not re.search(r"-cp311-abi3-\w+\.whl$", wheel.name):
        sys.exit(f"{wheel.name} is not tagged cp311-abi3: see setup.py")
    held = set(zipfile.ZipFile(wheel).namelist())
    imported = {CORE, "gnndrive/py.typed", "gnndrive/_core.pyi"}
    if lacks := missing(held, imported, "gnndrive/**/*.py"):
        sys.exit(f"{wheel.name} lacks {lacks}: see pyproject.toml")
    stray = re.compile(r"\.[cho]$|^(tests|bench|native|build)")
    if strays := sorted(filter(stray.search, held)):
        sys.exit(f"{wheel.name} should not hold {', '.join(strays)}")
    with tempfile.TemporaryDirectory() as folder:
        core = zipfile.ZipFile(wheel).extract(CORE, folder)
        libraries = subprocess.run(["ldd", core], text=True, capture_output=True, check=True).stdout
    if "liburing" in libraries:
        sys.exit(f"{wheel.name} needs a shared liburing: install liburing.a and build again")
    sizes = [f"{file.name}: {file.stat().st_size // 1024} KiB" for file in (sdist, wheel)]
    print(f"{'; '.join(sizes)}, abi3, liburing linked statically")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

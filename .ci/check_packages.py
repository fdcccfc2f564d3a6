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


def missing_from_sdist(sdist: Path) -> list[str]:
    """Files that building needs and the sdist lacks: build scripts, every file of native/."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    native = [path.relative_to(ROOT).as_posix() for path in (ROOT / "native").glob("*.[ch]")]
    wanted = ["build_ext.py", "setup.py", "pyproject.toml", "gnndrive/py.typed", *native]
    return sorted(set(wanted) - held)


def missing_from_wheel(wheel: Path) -> list[str]:
    """Files that importing needs and the wheel lacks: the core, its types, every module."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "gnndrive").rglob("*.py")]
    return sorted({CORE, "gnndrive/py.typed", "gnndrive/_core.pyi", *modules} - held)


def strays_in_wheel(wheel: Path) -> list[str]:
    """Files that the wheel should not hold: sources of the core, tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [name for name in names if re.search(r"\.[cho]$|^(tests|bench|native|build)", name)]


def shared_libraries(wheel: Path) -> str:
    """The output of `ldd` for the wheel's core."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        core = archive.extract(CORE, folder)
        return subprocess.run(["ldd", core], text=True, capture_output=True, check=True).stdout


def main(sdist: Path, wheel: Path) -> None:
    """Check both files and print their sizes; exit with a message at the first fault."""
    if missing := missing_from_sdist(sdist):
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}: see MANIFEST.in")
    if not re.search(r"-cp311-abi3-\w+\.whl$", wheel.name):
        sys.exit(f"{wheel.name} is not tagged cp311-abi3: see setup.py")
    if missing := missing_from_wheel(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}: see pyproject.toml")
    if strays := strays_in_wheel(wheel):
        sys.exit(f"{wheel.name} should not hold {', '.join(strays)}")
    if "liburing" in shared_libraries(wheel):
        sys.exit(f"{wheel.name} needs a shared liburing: install liburing.a and build again")
    print(f"{sdist.name}: {sdist.stat().st_size // 1024} KiB; {wheel.name}: ", end="")
    print(f"{wheel.stat().st_size // 1024} KiB, abi3, liburing linked statically")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

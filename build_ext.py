"""Build the C core: native/*.c and liburing become gnndrive/_core.abi3.so.

cffi in API mode; the declarations are those of native/ that `INTERFACE` names, without their
preprocessor lines. liburing is linked statically where `liburing.a` is installed, so that the wheel
needs no shared library.
setup.py's only line of configuration names `ffibuilder`; `python build_ext.py` builds in place,
for development.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "native"
ABI3_VERSION = "0x030B0000"  # built on 3.11, loads on 3.12 and later
SOURCES = sorted(path.name for path in NATIVE.glob("*.c"))
INTERFACE = [  # what Python may call
    "gnndrive.h", "sampling.h", "packing.h", "assigning.h", "partition.h",
]  # fmt: skip
COMPILE_ARGS = [
    "-O3", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread",
    "-UNDEBUG",  # Python's own flags switch asserts off; the core's are cheap and stay on
]  # fmt: skip
LINUX_ONLY = (
    "gnndrive runs on Linux only, because it reads with io_uring and O_DIRECT, and this is {}: "
    "build it on Linux, in WSL 2 or in a Linux container."
)
MISSING_COMPILER = (
    "gnndrive needs a C compiler to build and found no `{}`: install it with `apt-get install gcc` "
    "(Debian, Ubuntu), `dnf install gcc` (Fedora) or `pacman -S gcc` (Arch), or name yours in CC; "
    "then build again."
)
MISSING_LIBURING = (
    "gnndrive needs liburing's header to build: install it with `apt-get install liburing-dev` "
    "(Debian, Ubuntu), `dnf install liburing-devel` (Fedora) or `pacman -S liburing` (Arch), "
    "then build again."
)


def declarations() -> str:
    """The interface as cffi takes it: without preprocessor lines."""
    texts = [(NATIVE / name).read_text(encoding="utf-8") for name in INTERFACE]
    lines = "\n".join(texts).splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def compiler() -> list[str]:
    """The C compiler's command line: $CC, or `cc`."""
    return os.environ.get("CC", "cc").split()


def has_liburing_header() -> bool:
    """Whether the compiler finds liburing.h."""
    probe = subprocess.run(
        [*compiler(), *os.environ.get("CFLAGS", "").split(), "-E", "-x", "c", "-"],
        input="#include <liburing.h>\n", text=True, capture_output=True, check=False,
    )  # fmt: skip
    return probe.returncode == 0


def static_liburing() -> str | None:
    """The path of liburing.a, or None where only the shared library is installed."""
    found = subprocess.run(
        [*compiler(), "-print-file-name=liburing.a"], text=True, capture_output=True, check=False
    ).stdout.strip()
    return found if os.path.isabs(found) and os.path.exists(found) else None


def make_builder() -> FFI:
    """The core as setuptools builds it; exits with the remedy on a system other than Linux, and
    where a package to build with is missing."""
    if not sys.platform.startswith("linux"):
        sys.exit(LINUX_ONLY.format(sys.platform))
    if shutil.which(compiler()[0]) is None:
        sys.exit(MISSING_COMPILER.format(compiler()[0]))
    if not has_liburing_header():
        sys.exit(MISSING_LIBURING)
    archive = static_liburing()
    builder = FFI()
    builder.cdef(declarations())
    builder.set_source(
        "gnndrive._core",
        '#include "gnndrive.h"',
        sources=[str(Path("native") / name) for name in SOURCES],
        depends=[*sorted(glob("native/*.h", root_dir=ROOT)), "build_ext.py", "setup.py"],
        include_dirs=["native"],
        define_macros=[("Py_LIMITED_API", ABI3_VERSION)],
        py_limited_api=True,
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=["-pthread"],
        extra_objects=[archive] if archive else [],
        libraries=[] if archive else ["uring"],
    )
    return builder


if __name__ == "__main__":
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
else:
    ffibuilder = make_builder()

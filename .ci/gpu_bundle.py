"""Make a folder that runs tests/gpu and bench/gpu.py on a machine without network or compiler.

usage: gpu_bundle.py [--python 3.12] [OUT]

OUT (build/gpu-bundle) holds our wheel, the wheels that it and its tests need beside what such a
machine has (`THERE`), tests/, bench/, a small graph, and run.sh. It is made in a temporary folder
and renamed: what is at OUT is always a whole bundle. Wheels have the versions that are installed
here, so the tests run there with what they run with here. Run by `make gpu-bundle`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import TypeAlias, cast

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PARTS = Path(__file__).resolve().parent / "gpu-bundle"
BYTES_MAX = 64_000_000
THERE = {"numpy", "torch", "torch-geometric", "scipy", "psutil"}
"""What is not brought: large, of one piece with the machine's CUDA, or needed by those."""
RUN = ("tests/gpu", "bench/gpu.py")
GLIBC_MINORS = range(34, 4, -1)  # 2.34 is what our own core asks for when Debian 12 builds it
MAKE_STORE = """
import sys
from gnndrive.store.generate import planted_communities
planted_communities(sys.argv[1], num_nodes=50_000)
"""  # 25.6 MB of rows, 3 MB of edges

Package: TypeAlias = tuple[str, list[str]]
"""A version, and the requirements as the package states them."""


# ---- which wheels


def asked_by_project() -> list[str]:
    """Requirements of pyproject.toml: the package's and its tests'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["test"]]


def installed(name: str) -> Package:
    """A package of this environment; exits where it is not installed."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        sys.exit(f"the bundle needs {name}, which {sys.executable} lacks: run `make build` first")
    return found.version, found.requires or []


def wheels_needed(
    asked: Iterable[str], python: str, look_up: Callable[[str], Package] = installed
) -> dict[str, str]:
    """Versions by name of all that is asked for, directly or not, and is not in `THERE`.

    Args:
        asked: requirements.
        python: the version there, such as "3.12", which decides on conditions.
        look_up: tells of a package by its canonical name.
    """
    environment = cast("dict[str, str]", default_environment()) | {
        "python_version": python, "python_full_version": f"{python}.0", "extra": "",
    }  # fmt: skip
    versions: dict[str, str] = {}
    waiting = [Requirement(line) for line in asked]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        unconditional = wanted.marker is None or wanted.marker.evaluate(environment)
        if name in THERE or name in versions or not unconditional:
            continue
        assert not wanted.extras, f"{wanted}: extras are not followed"
        versions[name], requires = look_up(name)
        waiting += map(Requirement, requires)
    return dict(sorted(versions.items()))


def platforms(machine: str) -> list[str]:
    """The tags of wheels that run there; pip matches them one by one."""
    names = [f"manylinux_2_{minor}" for minor in GLIBC_MINORS]
    names += ["manylinux2014", "manylinux2010", "manylinux1"]
    return [f"{name}_{machine}" for name in names]


# ---- what goes in


def download(versions: dict[str, str], python: str, folder: Path) -> None:
    """Fetch binary wheels for that Python; exits with pip's last words where they cannot be had."""
    tag = f"cp{python.replace('.', '')}"
    options = ["--python-version", python, "--implementation", "cp"]
    options += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    options += [f"--platform={name}" for name in platforms(platform.machine())]
    wheels = [f"{name}=={version}" for name, version in versions.items()]
    run(
        [
            *[sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"],
            *["--no-input", "--no-deps", "--only-binary=:all:", "--dest", str(folder)],
            *options,
            *wheels,
        ],
        f"pip could not fetch the wheels of {', '.join(wheels)}. Making a bundle needs a network, "
        "or a folder that holds them in PIP_FIND_LINKS; running one needs neither. pip said:",
    )


def build_wheel(folder: Path, scratch: Path) -> None:
    """Build our wheel from an sdist, check both as .ci/run does, and put the wheel in `folder`."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(scratch), str(ROOT)]
    run(command, "the wheel could not be built:")
    (sdist,), (wheel,) = scratch.glob("*.tar.gz"), scratch.glob("*.whl")
    check = ROOT / ".ci" / "check_packages.py"
    run([sys.executable, str(check), str(sdist), str(wheel)], "the wheel is not as it should be:")
    shutil.copy(wheel, folder)


def run(command: list[str], failure: str) -> None:
    """Run a command in the tree; exits with `failure` and the end of what it said if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        sys.exit("\n    ".join([failure, *lines[-20:]]))


def copy_tree(name: str, folder: Path) -> None:
    """Copy a folder of the tree, without what Python left in it."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ROOT / name, folder / name, ignore=ignored)


def fill(folder: Path, python: str, scratch: Path) -> None:
    """Make the bundle's parts in an empty folder, the quick and likely to fail first."""
    wheels = folder / "wheels"
    wheels.mkdir()
    download(wheels_needed(asked_by_project(), python), python, wheels)
    build_wheel(wheels, scratch)
    check_plain(wheels)
    run([sys.executable, "-c", MAKE_STORE, str(folder / "store")], "the graph could not be made:")
    for name in ("tests", "bench"):
        copy_tree(name, folder)
    for path in PARTS.iterdir():
        shutil.copy(path, folder)
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    (folder / "python-version").write_text(f"{python}\n", encoding="utf-8")


# ---- checks


def check_tree(root: Path) -> None:
    """Exit if the tree lacks what run.sh runs there."""
    if missing := [name for name in RUN if not (root / name).exists()]:
        sys.exit(f"a bundle is for running {' and '.join(RUN)}; the tree lacks {missing[0]}")


def check_target(out: Path) -> None:
    """Exit if something is at `out` that is no bundle."""
    if out.is_symlink() or (out.exists() and not (out / "run.sh").is_file()):
        sys.exit(f"{out} is there and is no bundle: remove it, or name another folder")


def check_plain(folder: Path) -> None:
    """Exit if unpacking, which is all that run.sh does with a wheel, would not install it."""
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            if any(name.split("/")[0].endswith(".data") for name in wheel.namelist()):
                sys.exit(f"{path.name} holds a .data folder: run.sh would have to install it")


def bytes_below(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def check_size(folder: Path, most: int = BYTES_MAX) -> str:
    """What the bundle's parts weigh, in words; exits with the same words if it is too much."""
    parts = {path.name: bytes_below(path) for path in folder.iterdir()}
    total = sum(parts.values())
    largest = sorted(parts.items(), key=lambda part: -part[1])[:4]
    words = f"{total / 1e6:.1f} MB of {most / 1e6:.0f}: " + ", ".join(
        f"{name} {size / 1e6:.1f}" for name, size in largest
    )
    if total > most:
        sys.exit(f"the bundle is too large: {words}")
    return words


# ---- the whole


def replace(made: Path, out: Path) -> None:
    """Let what was made stand at `out`; what stood there goes into the folder of `made`."""
    if out.exists():
        out.rename(made.parent / "old")
    made.rename(out)


def make(out: Path, python: str) -> str:
    """Make a bundle at `out`, replacing the one that is there; returns its sizes in words."""
    check_tree(ROOT)
    check_target(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        made, scratch = Path(folder) / "bundle", Path(folder) / "scratch"
        made.mkdir()
        scratch.mkdir()
        fill(made, python, scratch)
        words = check_size(made)
        replace(made, out)
    return words


def main() -> None:
    """Read the command line, make the bundle, say what it weighs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--python", default="3.12", help="the version there (3.12)")
    options = parser.parse_args()
    out = Path(os.path.abspath(options.out))  # not resolved: a link is refused, not followed
    words = make(out, options.python)
    print(f"{os.path.relpath(out)} for Python {options.python}: {words}")
    print("copy it to the machine with the GPU and start ./run.sh there")


if __name__ == "__main__":
    main()

"""Make a folder that runs tests/gpu and the measurements on a machine without network or compiler.

OUT (build/gpu-bundle) holds gnndrive's wheel, the wheels that it and its tests need except those
that such a machine has (`NOT_BUNDLED`), in the versions that are installed here, tests/, bench/,
the page that `run.sh --all` fills in, a small graph, the commit's name, and run.sh. It is made in a
temporary folder and renamed, so OUT is always a whole bundle. `make gpu-bundle` runs this script.
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
from typing import cast

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
BYTES_MAX = 64_000_000
NOT_BUNDLED = {"numpy", "torch", "torch-geometric", "scipy", "psutil"}
"""Packages that are too large, that must match the machine's CUDA, or that those need."""
PAGE = "docs/gpu-results.md"
GLIBC_MINORS = range(34, 4, -1)  # gnndrive's core needs 2.34 if Debian 12 builds it
MAKE_STORE = """
import sys
from gnndrive.store.generate import planted_communities
planted_communities(sys.argv[1], num_nodes=50_000)
"""  # 25.6 MB of rows, 3 MB of edges


def project_requirements() -> list[str]:
    """Requirements of the package and of its tests, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["test"]]


def installed(name: str) -> tuple[str, list[str]]:
    """The version of a package of this environment, and its requirements; exit without it."""
    try:
        return metadata.version(name), metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        sys.exit(f"the bundle needs {name}, which {sys.executable} lacks: run `make build` first")


def wheels_needed(
    asked: Iterable[str], python: str, look_up: Callable[[str], tuple[str, list[str]]] = installed
) -> dict[str, str]:
    """Versions by name of the packages that are required under a Python version, directly or not,
    without those of `NOT_BUNDLED` and what only they need."""
    environment = cast("dict[str, str]", default_environment()) | {
        "python_version": python, "python_full_version": f"{python}.0", "extra": "",
    }  # fmt: skip
    versions: dict[str, str] = {}
    waiting = [Requirement(line) for line in asked]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        unconditional = wanted.marker is None or wanted.marker.evaluate(environment)
        if name in NOT_BUNDLED or name in versions or not unconditional:
            continue
        assert not wanted.extras, f"{wanted}: extras are not followed"
        versions[name], requires = look_up(name)
        waiting += map(Requirement, requires)
    return dict(sorted(versions.items()))


def download(versions: dict[str, str], python: str, folder: Path) -> None:
    """Download binary wheels for a Python version; exit with pip's last lines if pip fails."""
    # pip matches these names one by one; only manylinux2014 stands for older ones, too.
    names = [*(f"manylinux_2_{minor}" for minor in GLIBC_MINORS), "manylinux2014"]
    options = ["--python-version", python, "--implementation", "cp"]
    options += [f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")]
    options += [f"--platform={name}_{platform.machine()}" for name in names]
    wheels = [f"{name}=={version}" for name, version in versions.items()]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-input", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]  # fmt: skip
    run(
        [*command, *options, *wheels],
        f"pip could not fetch the wheels of {', '.join(wheels)}. Making a bundle needs a network, "
        "or PIP_FIND_LINKS with a folder that holds them; running one needs neither. pip printed:",
    )


def build_wheel(folder: Path) -> None:
    """Build gnndrive's wheel from an sdist into `folder`; check both as .ci/run does."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", scratch, str(ROOT)]
        run(command, "the wheel could not be built:")
        (sdist,), (wheel,) = Path(scratch).glob("*.tar.gz"), Path(scratch).glob("*.whl")
        check = [sys.executable, ".ci/check_packages.py", str(sdist), str(wheel)]
        run(check, "the wheel failed its check:")
        shutil.copy(wheel, folder)


def check_plain(folder: Path) -> None:
    """Exit if unpacking a wheel does not install it, because run.sh only unpacks wheels."""
    for path in sorted(folder.glob("*.whl")):
        if any(name.split("/")[0].endswith(".data") for name in zipfile.ZipFile(path).namelist()):
            sys.exit(f"{path.name} holds a .data folder, which run.sh cannot install by unpacking")


def run(command: list[str], failure: str) -> None:
    """Run a command in the tree; if it fails, exit with `failure` and the end of its output."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        sys.exit("\n    ".join([failure, *lines[-20:]]))


def fill(folder: Path, python: str) -> None:
    """Make the bundle's parts in an empty folder; the quick ones that may fail come first."""
    wheels = folder / "wheels"
    wheels.mkdir()
    download(wheels_needed(project_requirements(), python), python, wheels)
    build_wheel(wheels)
    check_plain(wheels)
    run([sys.executable, "-c", MAKE_STORE, str(folder / "store")], "the graph could not be made:")
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("tests", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copytree(ROOT / ".ci" / "gpu-bundle", folder, ignore=ignored, dirs_exist_ok=True)
    (folder / PAGE).parent.mkdir()
    shutil.copy(ROOT / PAGE, folder / PAGE)
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    (folder / "commit").write_text(f"{commit()}\n", encoding="utf-8")
    (folder / "python-version").write_text(f"{python}\n", encoding="utf-8")


def commit() -> str:
    """Name the commit of the tree, and say if it has changed since."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("-dirty", ", with uncommitted changes") or "unknown"


def check_size(folder: Path, most: int = BYTES_MAX) -> str:
    """The sizes of the bundle's largest parts; exit with that text if all are too large."""
    parts = {
        path.name: sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
        for path in folder.iterdir()
    }
    total = sum(parts.values())
    largest = sorted(parts.items(), key=lambda part: -part[1])[:4]
    named = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in largest)
    words = f"{total / 1e6:.1f} MB of {most / 1e6:.0f}: {named}"
    if total > most:
        sys.exit(f"the bundle is too large: {words}")
    return words


def make(out: Path, python: str) -> str:
    """Make a bundle at `out`, replace an older one, and return a description of its sizes."""
    if out.is_symlink() or (out.exists() and not (out / "run.sh").is_file()):
        sys.exit(f"{out} exists and is no bundle: remove it, or give another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        made = Path(folder) / "bundle"
        made.mkdir()
        fill(made, python)
        words = check_size(made)
        if out.exists():
            out.rename(Path(folder) / "old")
        made.rename(out)
    return words


def main() -> None:
    """Make the bundle, and print its sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--python", default="3.12", help="Python version there (3.12)")
    options = parser.parse_args()
    out = Path(os.path.abspath(options.out))  # not resolved: a link is refused, not followed
    words = make(out, options.python)
    print(f"{os.path.relpath(out)} for Python {options.python}: {words}")
    print("copy it to the machine with the GPU and start ./run.sh --all OUT there")


if __name__ == "__main__":
    main()

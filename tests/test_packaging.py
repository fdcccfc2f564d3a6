"""The build script names a missing system package, and builds every source file."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_build_script(compiler: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Import build_ext.py as setup.py does, with another C compiler, then run `code`."""
    return subprocess.run(
        [sys.executable, "-c", f"import build_ext\n{code}"],
        cwd=ROOT, env=os.environ | {"CC": compiler}, text=True, capture_output=True, check=False,
    )  # fmt: skip


def test_without_liburing_it_names_the_package(tmp_path: Path):
    blind = tmp_path / "cc"
    blind.write_text('#!/bin/sh\nexec cc -nostdinc "$@"\n')  # finds no header at all
    blind.chmod(0o755)
    tried = load_build_script(str(blind))
    assert tried.returncode != 0
    assert "apt-get install liburing-dev" in tried.stderr
    assert "Traceback" not in tried.stderr


@pytest.mark.parametrize("module", ["build_ext", "gnndrive"])
def test_on_another_system_it_says_that_it_needs_linux(module: str):
    code = f"import shutil, subprocess, sys, cffi; sys.platform = 'darwin'; import {module}"
    tried = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert tried.returncode != 0
    last = tried.stderr.splitlines()[-1]
    assert "gnndrive runs on Linux only" in last
    assert "this is darwin: " in last
    assert "WSL 2 or in a Linux container" in last


def test_without_a_compiler_it_names_the_package():
    tried = load_build_script("no-such-compiler")
    assert tried.returncode != 0
    assert "no `no-such-compiler`" in tried.stderr
    assert "apt-get install gcc" in tried.stderr
    assert "Traceback" not in tried.stderr


def test_every_source_is_built_and_asserts_stay_on():
    code = "print(*build_ext.SOURCES, *build_ext.COMPILE_ARGS)"
    built = load_build_script("cc", code).stdout.split()
    assert {path.name for path in (ROOT / "native").glob("*.c")} <= set(built)
    assert "-UNDEBUG" in built


def test_the_core_is_abi3_and_holds_liburing():
    core = Path(importlib.import_module("gnndrive._core").__file__ or "")
    assert core.name == "_core.abi3.so"
    needed = subprocess.run(["ldd", core], text=True, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["cc", "-print-file-name=liburing.a"], text=True, capture_output=True, check=True
    ).stdout.strip()
    if os.path.isabs(archive):  # else it was linked with the shared library, on purpose
        assert "liburing" not in needed


def test_make_lists_its_targets():
    output = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    names = {line.split()[0] for line in output.splitlines()}
    assert names >= {"demo", "test", "soak", "build", "lint", "gpu-bundle"}

"""The build script, and `make gpu-bundle`: what is built, fetched and refused; its run.sh."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.project_files import ROOT, ci_script


def load_build_script(compiler: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Import build_ext.py as setup.py does, with another C compiler, then run `code`."""
    return subprocess.run(
        [sys.executable, "-c", f"import build_ext\n{code}"],
        cwd=ROOT, env=os.environ | {"CC": compiler}, text=True, capture_output=True, check=False,
    )  # fmt: skip


def test_without_liburing_or_a_compiler_it_names_the_package(tmp_path: Path):
    blind = tmp_path / "cc"
    blind.write_text('#!/bin/sh\nexec cc -nostdinc "$@"\n')  # finds no header at all
    blind.chmod(0o755)
    for compiler, package in ((str(blind), "liburing-dev"), ("no-such-compiler", "gcc")):
        tried = load_build_script(compiler)
        assert tried.returncode != 0
        assert f"apt-get install {package}" in tried.stderr
        assert "Traceback" not in tried.stderr


@pytest.mark.parametrize("module", ["build_ext", "gnndrive"])
def test_on_another_system_it_says_that_it_needs_linux(module: str):
    code = f"import shutil, subprocess, sys, cffi; sys.platform = 'darwin'; import {module}"
    run = [sys.executable, "-c", code]
    tried = subprocess.run(run, cwd=ROOT, text=True, capture_output=True, check=False)
    assert tried.returncode != 0
    last = tried.stderr.splitlines()[-1]
    assert "gnndrive runs on Linux only" in last
    assert "WSL 2 or in a Linux container" in last


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
    output = subprocess.check_output(["make", "--no-print-directory"], cwd=ROOT, text=True)
    names = {line.split()[0] for line in output.splitlines()}
    assert names >= {"demo", "test", "soak", "build", "lint", "gpu-bundle"}


# ---- `make gpu-bundle`: nothing is built or downloaded, and run.sh runs fakes


gpu_bundle = ci_script("gpu_bundle.py")


def test_requirements_are_followed_for_the_given_python():
    packages = {
        "a": ("1.0", ["B_b>=2", "numpy", "old; python_version < '3.12'", "docs; extra == 'docs'"]),
        "b-b": ("2.1", ["a", "new; python_version >= '3.12'"]),
        "new": ("3.0", []),
        "old": ("4.0", []),
    }
    asked = ["A", "torch>=2", "torch_geometric"]
    found = gpu_bundle.wheels_needed(asked, "3.12", packages.__getitem__)
    assert found == {"a": "1.0", "b-b": "2.1", "new": "3.0"}
    found = gpu_bundle.wheels_needed(asked, "3.11", packages.__getitem__)
    assert found == {"a": "1.0", "b-b": "2.1", "old": "4.0"}
    with pytest.raises(SystemExit, match=r"needs no-such-package, which .* `make build`"):
        gpu_bundle.wheels_needed(["no-such-package"], "3.12")


def test_this_trees_bundle_has_small_packages_only():
    found = gpu_bundle.wheels_needed(gpu_bundle.project_requirements(), "3.12")
    assert {"cffi", "pycparser", "rich", "typer", "pytest", "pluggy", "iniconfig"} <= set(found)
    assert {"torch", "numpy", "scipy", "torch-geometric", "triton"}.isdisjoint(found)
    for name in found:
        beside = [
            f for f in metadata.files(name) or () if f.parts[0] == ".." and "bin" not in f.parts
        ]
        assert not beside, f"{name} has files that run.sh does not install: add it to NOT_BUNDLED"


def test_what_the_bundle_lacks_is_checked_and_named():
    lacks = {name.replace("-", "_") for name in gpu_bundle.NOT_BUNDLED}
    assert set(ci_script("gpu-bundle/check.py").NEEDED) == lacks
    for page in (".ci/gpu-bundle/README.txt", "docs/tasks/gpu.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert all(name in text for name in lacks), page
    section = text.partition("## A machine without network")[2].partition("\n## ")[0]
    assert all(name in section for name in lacks)
    assert "`./run.sh --all OUT`" in section


def test_without_a_network_the_message_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said = r"the wheels of gnndrive-wanted==1\.0\..* needs a network(.|\n)*No matching"
    with pytest.raises(SystemExit, match=said):
        gpu_bundle.download({"gnndrive-wanted": "1.0"}, "3.12", tmp_path / "wheels")


def test_a_bundle_that_is_too_large_or_cannot_be_unpacked_is_refused(tmp_path):
    (tmp_path / "run.sh").write_bytes(bytes(1_000_000))
    assert gpu_bundle.check_size(tmp_path, 1_000_000).startswith("1.0 MB of 1: ")
    with pytest.raises(SystemExit, match=r"too large: 1\.0 MB of 1: .*run\.sh 1\.0"):
        gpu_bundle.check_size(tmp_path, 999_999)
    _wheel(tmp_path, "spread", {"spread-1.data/scripts/spread": ""})
    with pytest.raises(SystemExit, match=r"spread-1.*\.data folder"):
        gpu_bundle.check_plain(tmp_path)


def test_an_older_bundle_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "run.sh").write_text("old")

    def fill(folder: Path, python: str) -> None:
        (folder / "run.sh").write_text("new")
        if python == "2.7":
            sys.exit("no network")

    monkeypatch.setattr(gpu_bundle, "fill", fill)
    with pytest.raises(SystemExit, match="no network"):
        gpu_bundle.make(out, "2.7")
    assert (out / "run.sh").read_text() == "old"
    gpu_bundle.make(out, "3.12")
    assert (out / "run.sh").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]
    (out / "run.sh").rename(out / "chapter")
    with pytest.raises(SystemExit, match="is no bundle"):
        gpu_bundle.make(out, "3.12")


def _wheel(folder: Path, name: str, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def bundle(tmp_path) -> Path:
    """A bundle with a fake pytest that prints and exits with $TESTS, and a bench with $BENCH."""
    folder = tmp_path / "a bundle"
    for name in ("tests/gpu", "bench"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "gpu-bundle" / "run.sh", folder)
    (folder / "python-version").write_text(f"{sys.version_info.major}.{sys.version_info.minor}\n")
    body = "import os, sys\nprint('{0} ran', sys.argv[1:])\nsys.exit(int(os.environ['{1}']))\n"
    _wheel(folder / "wheels", "pytest", {"pytest.py": body.format("pytest", "TESTS")})
    (folder / "bench" / "gpu.py").write_text(body.format("bench", "BENCH"))
    where = "print('in', os.getcwd(), os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'])\n"
    where += "assert int(os.environ['GPU_ALL_BEGAN']) > 0\n"
    (folder / "bench" / "gpu_all.py").write_text(
        "import os\n" + where + body.format("all", "BENCH")
    )
    (folder / "check.py").write_text("import pytest_free, sys\nprint('check', sys.argv[1:])\n")
    _wheel(folder / "wheels", "pytest_free", {"pytest_free.py": ""})
    return folder


def run(
    bundle: Path, *arguments: str, tests: int = 0, bench: int = 0
) -> subprocess.CompletedProcess[str]:
    """Start the bundle's run.sh from another folder."""
    environment = {"PYTHON": sys.executable, "TESTS": str(tests), "BENCH": str(bench)}
    return subprocess.run(
        [bundle / "run.sh", *arguments],
        cwd="/", env=os.environ | environment, text=True, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("tests", "bench", "status"), [(0, 0, 0), (0, 3, 3), (2, 3, 2)])
def test_both_run_and_the_first_failure_is_the_status(bundle, tests, bench, status):
    done = run(bundle, "--nodes", "a b", tests=tests, bench=bench)
    assert done.returncode == status, done.stderr
    for said in ("check []", "pytest ran", "bench ran ['--nodes', 'a b']",
                 f"tests/gpu {tests}, bench/gpu.py {bench}"):  # fmt: skip
        assert said in done.stdout


def test_all_runs_one_script_from_the_callers_folder_and_another_python_nothing(bundle):
    done = run(bundle, "--all", "results", "--rehearse", bench=3)
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["check []", "in / 1", "all ran ['results', '--rehearse']"]
    (bundle / "python-version").write_text("2.7\n")
    done = run(bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this bundle is for Python 2.7" in done.stderr


def test_a_check_runs_neither_and_new_wheels_are_unpacked(bundle):
    done = run(bundle, "--check")
    assert (done.returncode, done.stdout) == (0, "check ['--epoch']\n"), done.stderr
    (bundle / "site" / "kept").touch()
    run(bundle, "--check")
    assert (bundle / "site" / "kept").exists()
    _wheel(bundle / "wheels", "another", {"another.py": ""})
    run(bundle, "--check")
    assert (bundle / "site" / "another.py").exists()

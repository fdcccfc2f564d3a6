"""`make gpu-bundle`: the wheels of a bundle, the refusals, and the work of its run.sh.

These tests build and download nothing; run.sh runs fakes.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / ".ci" / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_bundle = _load("gpu_bundle.py")

# ---- which wheels ----


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
    assert "matplotlib" not in found
    for name in found:
        beside = [
            f for f in metadata.files(name) or () if f.parts[0] == ".." and "bin" not in f.parts
        ]
        assert not beside, f"{name} has files that run.sh does not install: add it to NOT_USED"


def test_what_the_bundle_lacks_is_checked_and_named():
    lacks = {name.replace("-", "_") for name in gpu_bundle.NOT_BUNDLED}
    assert set(_load("gpu-bundle/check.py").NEEDED) == lacks
    for page in (".ci/gpu-bundle/README.txt", "docs/tasks/gpu.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert all(name in text for name in lacks), page
    section = text.partition("## A machine without network")[2].partition("\n## ")[0]
    assert all(name in section for name in lacks)
    assert "`./run.sh --all OUT`" in section


def test_without_a_network_the_message_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        gpu_bundle.download({"gnndrive-wanted": "1.0"}, "3.12", tmp_path / "wheels")
    message = str(stopped.value)
    assert "could not fetch the wheels of gnndrive-wanted==1.0" in message
    assert "needs a network" in message
    assert "No matching distribution" in message


def test_a_wheel_that_must_be_installed_is_refused(tmp_path: Path):
    _wheel(tmp_path, "plain", {"plain.py": ""})
    gpu_bundle.check_plain(tmp_path)
    _wheel(tmp_path, "spread", {"spread-1.data/scripts/spread": ""})
    with pytest.raises(SystemExit, match=r"spread-1.*\.data folder"):
        gpu_bundle.check_plain(tmp_path)


# ---- the folder ----


def test_a_bundle_that_is_too_large_or_of_another_tree_is_refused(tmp_path):
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "run.sh").write_bytes(bytes(1_000_000))
    assert gpu_bundle.check_size(tmp_path, 1_000_000).startswith("1.0 MB of 1: ")
    with pytest.raises(SystemExit, match=r"too large: 1\.0 MB of 1: .*run\.sh 1\.0"):
        gpu_bundle.check_size(tmp_path, 999_999)
    with pytest.raises(SystemExit, match=r"the tree lacks bench/gpu\.py"):
        gpu_bundle.check_tree(tmp_path)
    gpu_bundle.check_tree(ROOT)


def test_a_bundle_names_its_commit(tmp_path: Path):
    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    assert gpu_bundle.commit(tmp_path) == "unknown"
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    named = gpu_bundle.commit(tmp_path)
    assert len(named) == 40
    (tmp_path / "new").touch()
    assert gpu_bundle.commit(tmp_path) == f"{named}, with uncommitted changes"


def test_an_older_bundle_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "run.sh").write_text("old")

    def fill(folder: Path, python: str, scratch: Path) -> None:
        (folder / "run.sh").write_text("new")

    def fail(folder: Path, python: str, scratch: Path) -> NoReturn:
        (folder / "run.sh").write_text("half")
        sys.exit("no network")

    monkeypatch.setattr(gpu_bundle, "check_tree", lambda root: None)
    monkeypatch.setattr(gpu_bundle, "fill", fail)
    with pytest.raises(SystemExit, match="no network"):
        gpu_bundle.make(out, "3.12")
    assert (out / "run.sh").read_text() == "old"
    monkeypatch.setattr(gpu_bundle, "fill", fill)
    gpu_bundle.make(out, "3.12")
    assert (out / "run.sh").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("mine")
    with pytest.raises(SystemExit, match="is no bundle"):
        gpu_bundle.check_target(tmp_path / "thesis")


# ---- run.sh ----


def _wheel(folder: Path, name: str, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
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
def test_both_run_and_the_first_failure_is_the_status(
    bundle: Path, tests: int, bench: int, status: int
):
    done = run(bundle, "--nodes", "a b", tests=tests, bench=bench)
    assert done.returncode == status, done.stderr
    assert "check []" in done.stdout
    assert "pytest ran" in done.stdout
    assert "bench ran ['--nodes', 'a b']" in done.stdout
    assert f"tests/gpu {tests}, bench/gpu.py {bench}" in done.stdout


def test_all_runs_one_script_from_the_callers_folder(bundle: Path):
    done = run(bundle, "--all", "results", "--rehearse", bench=3)
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["check []", "in / 1", "all ran ['results', '--rehearse']"]


def test_a_check_runs_neither_and_new_wheels_are_unpacked(bundle: Path):
    done = run(bundle, "--check")
    assert (done.returncode, done.stdout) == (0, "check ['--epoch']\n"), done.stderr
    made = (bundle / "site" / ".made").read_text()
    (bundle / "site" / "kept").touch()
    run(bundle, "--check")
    assert (bundle / "site" / "kept").exists()
    _wheel(bundle / "wheels", "another", {"another.py": ""})
    run(bundle, "--check")
    assert (bundle / "site" / "another.py").exists()
    assert (bundle / "site" / ".made").read_text() != made


def test_another_python_is_refused(bundle: Path):
    (bundle / "python-version").write_text("2.7\n")
    done = run(bundle)
    assert done.returncode == 1
    assert "this bundle is for Python 2.7" in done.stderr
    assert not (bundle / "site").exists()

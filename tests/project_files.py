"""The project's own files, for the tests that look at all of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def ci_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / ".ci" / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(*suffixes: str) -> list[Path]:
    """The project's own files: what is built, installed or hidden left out, .ci kept."""
    tops = ["gnndrive", "native", "tests", "bench", "docs", ".ci"]
    found = [path for top in tops for path in sorted((ROOT / top).rglob("*")) if path.is_file()]
    found += [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    made = {"_core.c"}
    return [path for path in found if path.suffix in suffixes and path.name not in made]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()

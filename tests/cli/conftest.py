"""A small store with communities that a model can learn, and the command line in this process."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from gnndrive.cli.main import main
from gnndrive.store.generate import planted_communities

NODES, DIM, CLASSES = 2_000, 16, 4
FRACTIONS = {"train": 0.4, "val": 0.1, "test": 0.2}
SMALL = ("--fanout", "3,2", "--batch-size", "100")  # 8 batches an epoch
QUICK = ("--epochs", "1", "--hidden", "8", "--json")
RANDOM = ("--method", "random", "--parts", "8")
SKETCH = ("--nodes", "1M", "--edges", "20M", "--row-bytes", "512", "--batch-nodes", "50K")
PROGRAM = "import sys; from gnndrive.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes."""
    path = tmp_path_factory.mktemp("planted") / "small.gnn"
    planted_communities(path, NODES, DIM, CLASSES, degree=8, fractions=FRACTIONS)
    return path


@pytest.fixture
def store(planted: Path, tmp_path: Path) -> Path:
    """A store of the test's own, whose files are those of `planted`; its path has a space."""
    path = tmp_path / "a b" / "own.gnn"
    for file in sorted(planted.rglob("*")):
        place = path / file.relative_to(planted)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            place.hardlink_to(file)
    return path


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """64 blocks of 4,096 bytes, and 100 bytes more."""
    path = tmp_path / "blocks.bin"
    path.write_bytes(bytes(64 * 4096 + 100))
    return path


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Use one torch thread: on a busy machine, two threads that spin slow down tiny batches."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Build the parser of the command line once: it takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one complaint of a command that refuses, and prints nothing else."""
        assert (self.code, self.out) == (2, "")
        assert "Traceback" not in self.err
        assert self.err.count("gnndrive: ") == 1
        return self.err


Command = Callable[..., Ended]


@pytest.fixture
def gnndrive(capsys: pytest.CaptureFixture[str]) -> Command:
    """gnndrive("info", path) runs the command line."""

    def run(*words: object) -> Ended:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run

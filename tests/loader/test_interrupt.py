"""Ctrl-C in the middle of an epoch, and the end of the program: in a process of its own.

The process says when it is where the signal shall meet it.
"""

import signal

import pytest

from gnndrive import Store
from tests import forked

BEGIN = """
import os, signal, sys
import torch
import gnndrive
from gnndrive.sampling.samplers.uniform import Uniform

def ready():
    print("ready", flush=True)

def compute_for_ever():
    ready()
    while True:  # a wait might begin just after the signal has come, and never hear of it
        pass

def loader(**arguments):
    given = {"batch_size": 4, "buffer": "40KB", "io_depth": 16} | arguments
    return gnndrive.NeighborLoader(gnndrive.open(sys.argv[1]), [4, 3], **given)
"""

WAITING = """
def work(batch):  # some ten milliseconds, so that the loop mostly waits
    torch.linalg.svd(torch.rand(200, 200))
    if batch.input_id[0] == 40:
        ready()
    return batch

while True:
    for batch in loader(transform=work):
        pass
"""

CONSUMING = """
for number, batch in enumerate(loader()):
    if number == 3:
        compute_for_ever()
"""

SAMPLING = """
sample = Uniform.sample

def for_ever(*arguments):
    ready()
    while True:  # until it is stopped
        sample(*arguments)

Uniform.sample = for_ever
for batch in loader(samplers=1, extracting_queue=1):
    pass
"""

KEPT = """
kept = iter(loader())
for number, batch in enumerate(kept):
    if number == 3:
        compute_for_ever()
"""

NOTEBOOK = """
mine = loader(memory=loader().plan().total_bytes)  # no second iterator fits
for number in range(3):
    try:
        for batch in mine:
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
assert sum(batch.batch_size for batch in mine) == 400
print("ended well")
"""

LEAVING = """
kept = loader(engine=sys.argv[2], batch_size=2)
iterator = iter(kept)
next(iterator)
print("ended well")
"""


@pytest.mark.parametrize(
    "script", [WAITING, CONSUMING, SAMPLING, KEPT], ids=["waiting", "consuming", "sampling", "kept"]
)
def test_ctrl_c_ends_with_one_traceback(script: str, store: Store) -> None:
    check_ctrl_c(script, store)


def check_ctrl_c(script: str, store: Store) -> None:
    """Send Ctrl-C to a script once it says that it is ready; it must end with one traceback."""
    with forked.Program(BEGIN + script, str(store.path)) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    assert running.returncode == -signal.SIGINT, errors
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert "Exception ignored" not in errors


@pytest.mark.parametrize(
    ("script", "arguments"),
    [(NOTEBOOK, ()), (LEAVING, ("threads",)), (LEAVING, ("uring",))],
    ids=["notebook", "leaving-threads", "leaving-uring"],
)
def test_the_process_ends_well(script: str, arguments: tuple[str, ...], store: Store) -> None:
    ended = forked.run(BEGIN + script, str(store.path), *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "ended well\n"

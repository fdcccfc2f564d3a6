"""Ctrl-C in an epoch, the end of the program, and forks: in processes of their own."""

import signal

import pytest

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
    given = {"batch_size": 4, "buffer": "40KB"} | arguments
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
kept = iter(loader())
for number, batch in enumerate(kept):
    if number == 3:
        compute_for_ever()
"""

SAMPLING = """
samples = Uniform.samples

def for_ever(*arguments):
    ready()
    while True:  # until it is stopped
        list(samples(*arguments))

Uniform.samples = for_ever
for batch in loader(tuning=gnndrive.Tuning(samplers=1, extracting_queue=1)):
    pass
"""

NOTEBOOK = """
mine = gnndrive.Tuning(engine=sys.argv[2])
memory = loader(tuning=mine).plan().total_bytes
mine = loader(tuning=gnndrive.Tuning(engine=sys.argv[2]), memory=memory)  # no second iterator fits
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
kept = loader(tuning=gnndrive.Tuning(engine=sys.argv[2]), batch_size=2)
iterator = iter(kept)
next(iterator)  # on the host no module for a GPU is imported
assert not any("cupy" in name or name.endswith("devices.cuda") for name in sys.modules)
print("ended well")
"""


@pytest.mark.parametrize(
    "script", [WAITING, CONSUMING, SAMPLING], ids=["waiting", "consuming", "sampling"]
)
def test_ctrl_c_ends_with_one_traceback(script, store):
    with forked.Program(BEGIN + script, str(store.path)) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    assert running.returncode == -signal.SIGINT, errors
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert "Exception ignored" not in errors


@pytest.mark.parametrize("script", [NOTEBOOK, LEAVING], ids=["notebook", "leaving"])
@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_the_process_ends_well(script, engine, store):
    ended = forked.run(BEGIN + script, str(store.path), engine)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "ended well\n"


# Each child gets ten seconds; then SIGALRM ends it, and its status says so.
SCRIPT = """
    import asyncio, gc, os, signal, sys, warnings
    import torch
    import gnndrive
    from gnndrive import ConfigError, NeighborLoader

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = gnndrive.open(sys.argv[1])
    waiting = NeighborLoader(store, [4, 3], batch_size=16, buffer="40KB", seed=0)
    loader = NeighborLoader(
        store, [4, 3], batch_size=16, buffer="40KB", seed=0,
        tuning=gnndrive.Tuning(topology=sys.argv[2], engine=sys.argv[3]),
    )
    iterator = iter(loader)
    first = next(iterator)

    def refused(call):
        try:
            call()
        except ConfigError as error:
            assert "in the child process" in str(error), error
        else:
            raise AssertionError("no error")

    def each():
        for _ in loader:
            pass

    async def awaited():
        async for _ in loader:
            pass

    def epoch():
        assert torch.equal(next(iter(waiting)).n_id, first.n_id)
        waiting.close()

    def ended_in_block():
        with loader:
            sys.exit(0)

    def dropped():
        global loader, iterator
        del loader, iterator
        gc.collect()

    refusals = [loader.close, each, lambda: asyncio.run(awaited()), lambda: next(iterator)]
    works = [epoch, ended_in_block, dropped, loader.plan, loader.state_dict, lambda: loader([1])]
    for work in [lambda call=call: refused(call) for call in refusals] + works:
        child = os.fork()
        if not child:
            signal.alarm(10)
            try:
                work()
            except Exception:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            if work is dropped:  # a second's work of torch
                sys.exit(0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    assert sum(1 for _ in iterator) == len(loader) - 1
    loader.close()
    print("all passed")
"""


@pytest.mark.parametrize(("topology", "engine"), [("direct", "uring"), ("resident", "threads")])
def test_a_forked_child_is_refused_and_silent(store, topology, engine):
    ran = forked.run(SCRIPT, str(store.path), topology, engine)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("all passed\n")

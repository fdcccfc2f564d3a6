"""A started loader in a forked child: an error that names the remedy, never a hang or a report."""

import pytest

from gnndrive import Store
from tests import forked

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
        store, [4, 3], batch_size=16, buffer="40KB", seed=0, topology=sys.argv[2],
        engine=sys.argv[3],
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

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return next(iter(loader)).num_nodes

    def ended_in_block():
        with loader:
            sys.exit(0)

    def dropped():
        global loader, iterator
        del loader, iterator
        gc.collect()

    refusals = [
        loader.close, loader.stats, each, lambda: asyncio.run(awaited()), lambda: next(iterator),
        iterator.close,
    ]
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
    refused(lambda: list(torch.utils.data.DataLoader(Dataset(), num_workers=1)))
    context = torch.multiprocessing.get_context("fork")
    child = context.Process(target=refused, args=(loader.close,))
    child.start()
    child.join(20)
    assert child.exitcode == 0, child.exitcode
    assert sum(1 for _ in iterator) == len(loader) - 1
    loader.close()
    print("all passed")
"""


@pytest.mark.parametrize(("topology", "engine"), [("direct", "uring"), ("resident", "threads")])
def test_a_forked_child_is_refused_and_silent(store: Store, topology: str, engine: str) -> None:
    ran = forked.run(SCRIPT, str(store.path), topology, engine)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("all passed\n")

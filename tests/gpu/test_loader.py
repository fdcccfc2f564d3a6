"""The whole loader on a GPU: the batches that the CPU gets, as tensors on the GPU."""

import gc
import shutil
import threading
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models import GraphSAGE

from gnndrive import ClosedError, ConfigError, NeighborLoader
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.buffer.devices.cuda import Cuda
from gnndrive.testing.fake_cuda import NAME
from gnndrive.testing.faults import NOISE
from tests.loader.batches import assert_same, check, simulate
from tests.loader.conftest import NODES, Make
from tests.loader.test_same_batches import victim

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
CAPTURED = 1000  # launches in a graph
INPUTS = ("x", "edge_index", "y")  # of a training step
Batch = Data | HeteroData


@pytest.fixture(autouse=True)
def the_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loaders move rows in one of the ways."""

    def make(kind: type[Cuda], context: DeviceContext) -> Cuda:
        return kind(context.where, way)

    monkeypatch.setattr(Cuda, "make", classmethod(make))


def on_host(batch: Batch) -> Batch:
    """A copy in host memory of a batch, all of whose tensors are on the GPU."""
    tensors = [value for store in batch.stores for value in store.values()]
    assert {each.device.type for each in tensors if isinstance(each, torch.Tensor)} == {
        torch.device(DEVICE).type
    }
    return batch.clone().apply(lambda tensor: tensor.cpu())


def same(expected: Iterable[Batch], found: Iterable[Batch]) -> None:
    """Hold batches on the GPU against those of the CPU."""
    for one, other in zip(expected, map(on_host, found), strict=True):
        for left, right in zip(one.stores, other.stores, strict=True):
            assert_same(left, right)


def shuffled(make: Make, **given: Any) -> NeighborLoader:
    return make(**({"shuffle": True, "seed": 3, "engine": "threads"} | given))


@pytest.mark.parametrize(
    ("engine", "staging"), [("auto", None), ("threads", (1, 4096)), ("simulated", (2, 600))]
)
def test_batches_are_those_of_the_cpu(make, monkeypatch, engine, staging) -> None:
    simulate(monkeypatch, seed=5, faults=NOISE)
    if staging is not None:
        monkeypatch.setattr(Cuda, "options", MoveOptions(portions=staging[0]))
        monkeypatch.setattr(Cuda, "portion_bytes", staging[1])
    here, there = shuffled(make), shuffled(make, device=DEVICE, engine=engine)
    assert len(there) == NODES // 16
    for _ in range(2):
        same(here, there)


@pytest.mark.parametrize("rule", ["victim", "victim-queues"])
def test_rows_that_leave_come_back_from_host_memory(make: Make, rule: str) -> None:
    """Without a read, and the same; in the middle of an epoch too."""
    keeping = victim(rule)
    given = {"device": DEVICE, "strategy": keeping, "buffer": "30KB", "sweep": 1}
    here, there = shuffled(make), shuffled(make, **given)
    for _ in range(2):
        same(here, there)
    loader = make(shuffle=True, seed=3, **given)
    for number, _ in enumerate(loader):
        if number == NODES // 32:
            break
    assert float(loader.stats()["rows_taken_back"]) > 0
    loader.close()


def test_graphs_are_captured_beside_the_loader(make: Make, data: Data) -> None:
    loader, counted = make(shuffle=True, seed=3, device=DEVICE), torch.zeros(4, device=DEVICE)
    iterator = iter(loader)
    for _ in range(3):
        batch, graph = next(iterator), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # in its default mode, which forbids much in all threads
            for _ in range(CAPTURED):  # meanwhile the next batches are loaded
                counted.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        check(on_host(batch), data)
    for batch in iterator:
        check(on_host(batch), data)
    assert counted.tolist() == [3.0 * CAPTURED] * 4


class Stepping:
    """Steps of a small GraphSAGE, whose weights are always the same at first, on full batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GraphSAGE(33, 16, num_layers=2, out_channels=7).to(DEVICE)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Any) -> torch.Tensor:
        """One step; the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        out = self.model(batch.x, batch.edge_index)[:16]
        loss = torch.nn.functional.cross_entropy(out, batch.y[:16])
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def captured(self, batch: Any, pool: Any) -> tuple[Data, torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of a step, its batch and its loss; the weights stay as they are."""
        own = Data(**{name: batch[name].clone() for name in INPUTS})
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(3):  # what is allocated at first use is allocated
                self.step(own)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            loss = self.step(own)
        torch.cuda.synchronize()  # a fake GPU has carried out what a real one only captures
        self.model.load_state_dict(before)
        return own, graph, loss


def test_a_step_is_captured_once_for_each_shape_of_padded_batches(make: Make) -> None:
    """Beside the loader, which goes on to load; the losses are those of steps without graphs."""
    given = {"shuffle": True, "seed": 3, "device": DEVICE, "pad": "power-of-two"}
    eager, graphed = Stepping(), Stepping()
    expected = [eager.step(batch) for batch in make(**given)]
    graphs, found = dict[Any, Any](), []
    for batch in make(**given):
        shape = batch.x.shape, batch.edge_index.shape
        if shape not in graphs:
            pool = next((graph.pool() for _, graph, _ in graphs.values()), None)
            graphs[shape] = graphed.captured(batch, pool)
        own, graph, loss = graphs[shape]
        for name in INPUTS:
            own[name].copy_(batch[name])
        graph.replay()
        found.append(loss.clone())
    torch.cuda.synchronize()
    assert len(graphs) < 4 < len(found) == len(expected)
    if torch.cuda.get_device_name() != NAME:  # whose graphs do nothing when they are replayed
        # Sums over neighbours are made in any order on a GPU, so the last bits may differ.
        losses = torch.stack(found).tolist()
        assert losses == pytest.approx(torch.stack(expected).tolist(), rel=2e-3)


def test_a_compiled_model_trains_like_one_that_is_not(make: Make) -> None:
    """Inductor captures graphs of its own beside the loader, one for each shape."""
    pytest.importorskip("triton", reason="inductor needs it for a GPU")
    if shutil.which("cc") is None:
        pytest.skip("Triton needs a C compiler")
    given = {"shuffle": True, "seed": 3, "device": DEVICE, "pad": 16}
    eager, compiled = Stepping(), Stepping()
    expected = torch.stack([eager.step(batch) for batch in make(**given)]).tolist()
    torch._dynamo.reset()
    compiled.model = torch.compile(compiled.model, dynamic=False, mode="reduce-overhead")
    found = []
    for batch in make(**given):
        torch.compiler.cudagraph_mark_step_begin()
        found.append(compiled.step(batch))
    # Sums over neighbours are made in any order on a GPU, so the last bits may differ.
    assert torch.stack(found).tolist() == pytest.approx(expected, rel=2e-3)


def test_a_transform_sees_the_tensors_on_the_gpu(make: Make, data: Data) -> None:
    def doubled(batch: Data) -> Data:
        batch.twice = batch.x[: batch.batch_size] * 2
        batch.degree = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        return batch

    for batch in make(device=DEVICE, transform=doubled):
        host = on_host(batch)
        assert torch.equal(host.twice, 2 * data.x[host.n_id[: host.batch_size]])
        assert host.degree.sum() == host.num_edges


def test_closing_leaves_delivered_batches_and_nothing_else(make: Make, data: Data) -> None:
    """In the middle of an epoch, beside another iterator."""

    def names() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate())

    for _ in make(device=DEVICE):  # what torch keeps for good is made
        pass
    gc.collect()
    before = torch.cuda.memory_allocated()
    kept = names()
    loader = make(shuffle=True, seed=3, device=DEVICE)
    for one, other in zip(loader, loader, strict=True):
        check(on_host(one), data)
        check(on_host(other), data)
    iterator = iter(loader)
    batches = [next(iterator), next(iterator)]
    loader.close()
    with pytest.raises(ClosedError):
        list(iterator)
    assert names() == kept
    for batch in batches:
        check(on_host(batch), data)
    del one, other, batch, batches, iterator
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


def test_too_little_device_memory_is_an_error_with_numbers(make: Make) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    loader = make(device=DEVICE, buffer="40KB")
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(
            ConfigError, match=r" \w?B asked for, [\d.]+ \wB of [\d.]+ \wB are free"
        ):
            iter(loader)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    with pytest.raises(ConfigError, match="device_memory"):
        iter(make(device=DEVICE, device_memory="1KB"))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_loading_never_synchronizes(make: Make, data: Data, monkeypatch) -> None:
    """Neither the whole device nor, as far as torch can detect, a stream."""
    loader = make(shuffle=True, seed=3, device=DEVICE)
    for _ in loader:  # what is made at first use is made
        pass
    refuse = Mock(side_effect=AssertionError("the whole device was waited for"))
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    try:
        torch.cuda.set_sync_debug_mode("error")
        batches = list(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for batch in batches:
        check(on_host(batch), data)


def losses(batches: Callable[[], Any], classes: int) -> list[float]:
    """The losses of two epochs with a small GraphSAGE, its weights drawn from one seed."""
    torch.manual_seed(0)
    model = GraphSAGE(33, 16, num_layers=2, out_channels=classes).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(2):
        for batch in batches():
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
    return [loss.item() for loss in found]


def test_losses_equal_those_of_training_from_memory(make: Make, data: Data) -> None:
    given = {"shuffle": True, "seed": 3}
    from_store, reference = make(device=DEVICE, **given), make(**given)

    def from_memory() -> Any:
        for batch in reference:
            x, y = data.x[batch.n_id].to(DEVICE), data.y[batch.n_id].to(DEVICE)
            edge_index = batch.edge_index.to(DEVICE)
            yield Data(x=x, y=y, edge_index=edge_index, batch_size=batch.batch_size)

    expected = losses(from_memory, classes=7)
    # Sums over neighbours are made in any order on a GPU, so the last bits may differ.
    assert losses(lambda: from_store, classes=7) == pytest.approx(expected, rel=2e-3)
    assert expected[-1] < expected[0]

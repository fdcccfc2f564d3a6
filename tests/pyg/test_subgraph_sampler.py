"""What `SubgraphSampler` does beside the samples that it makes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.records import Seeds
from gnndrive.pyg import sampler, subgraph_sampler
from gnndrive.pyg.subgraph_sampler import SubgraphSampler, SubgraphSampling
from gnndrive.sampling.graph import mapped

NODES, EDGES, BATCH = 200, 1_000, 40


def test_what_large_bidirectional_samples_free_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two samples are of one size, so holes of freed copies would add up."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES), generator=draw)
    store = gnndrive.from_data(Data(x=torch.zeros(NODES, 1), edge_index=edges), tmp_path / "s.gnn")
    returned = list[None]()
    monkeypatch.setattr(subgraph_sampler, "return_free_memory", lambda: returned.append(None))

    def run(kind: str) -> list[int]:
        """The edges of each batch of an epoch."""
        returned.clear()
        with NeighborLoader(
            store, [3, 3], batch_size=BATCH, subgraph_type=kind, seed=0, shuffle=False
        ) as loader:
            return [batch.edge_index.size(1) for batch in loader]

    sizes = run("bidirectional")
    assert len(set(sizes)) > 1
    assert not returned  # these are small
    least = sampler.BIDIRECTIONAL_BYTES * max(sizes)
    monkeypatch.setattr(subgraph_sampler, "HOLES_BYTES_MIN", least)
    assert run("bidirectional") == sizes
    assert len(returned) == sizes.count(max(sizes))
    monkeypatch.setattr(subgraph_sampler, "HOLES_BYTES_MIN", 1)
    run("induced")
    assert not returned  # it makes no such copies
    run("bidirectional")
    assert len(returned) == len(sizes)


CITES, HAS = ("paper", "cites", "paper"), ("venue", "has", "paper")


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("type", ["paper", CITES, HAS], ids=str)
def test_the_samples_of_a_group_are_those_of_its_batches(
    tmp_path: Path, type: str | tuple[str, str, str], disjoint: bool
) -> None:
    """Where one call samples them, and where it cannot; and so is the error of one of them."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    data["paper"].num_nodes, data["venue"].num_nodes = NODES, NODES // 2
    for source, name, target in (CITES, HAS):
        ends = [data[each].num_nodes for each in (source, target)]
        data[source, name, target].edge_index = torch.stack(
            [torch.randint(count, (EDGES,), generator=draw) for count in ends]
        )
    store = gnndrive.from_data(data, tmp_path / "s.gnn")
    topologies = [mapped(edges) for edges in store.all_edges()]
    own, of_edges = sampler.NeighborSampler(store, [3, 2], disjoint=disjoint), type != "paper"
    negatives = NegativeSampling("binary") if of_edges else None
    made = SubgraphSampler(SubgraphSampling(own, negatives=negatives), of_edges, type)

    def batch(number: int, ids: torch.Tensor) -> Seeds:
        one = EdgeSamplerInput(ids, ids, ids.flip(0), None, None, type)
        given = one if of_edges else NodeSamplerInput(ids, ids, None, type)
        return Seeds(number, ids.numpy(), ids.numpy(), lambda: given)

    keys, seeds = [7, 8, 9], [batch(number, torch.arange(5) + number) for number in range(3)]
    alone = [made.sample(one, key, topologies) for one, key in zip(seeds, keys, strict=True)]
    together = list(made.samples(seeds, keys, topologies))
    assert [str(each.output) for each in together] == [str(each.output) for each in alone]
    for one, other in zip(together, alone, strict=True):
        assert (one.ends is None) == (of_edges and disjoint)
        for kind, ends in (one.ends or {}).items():
            assert ends.tolist() == [
                other.output.row[kind].tolist(),
                other.output.col[kind].tolist(),
            ]
    seeds[1] = batch(1, torch.tensor([NODES]))
    samples = made.samples(seeds, keys, topologies)
    assert str(next(samples).output) == str(alone[0].output)
    with pytest.raises(ConfigError, match=f"seed {NODES} is not a node"):
        next(samples)
    if not of_edges:  # PyG's code fails behind the sampling
        late = SimpleNamespace(node=torch.arange(3), time=None, input_type=type)
        seeds[1] = Seeds(1, seeds[1].node, seeds[1].node, lambda: late)
        samples = made.samples(seeds, keys, topologies)
        assert str(next(samples).output) == str(alone[0].output)
        with pytest.raises(AttributeError, match="input_id"):
            next(samples)
    made.stop()
    with pytest.raises(ClosedError):
        next(made.samples(seeds, keys, topologies))
    seeds[0] = Seeds(0, seeds[0].node, seeds[0].node, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        next(made.samples(seeds, keys, topologies))

"""A graph of several types, and checks of its batches."""

import torch
from torch_geometric.data import HeteroData

NODES = {"paper": 200, "author": 90, "venue": 7, "topic": 3}
WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
CITES, HOSTS = ("paper", "cites", "paper"), ("venue", "hosts", "paper")
EDGES = {WRITES: 600, WRITTEN: 600, CITES: 900, HOSTS: 200}
WIDTHS = {"paper": 8, "author": 20, "venue": 3}
CLASSES = 4


def make_data() -> HeteroData:
    """Rows of three widths and dtypes, types without features, edges with features."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    data["paper"].x = torch.randn(NODES["paper"], 8, generator=draw)
    data["paper"].y = torch.randint(0, CLASSES, (NODES["paper"],), generator=draw)
    data["paper"].year = torch.randint(1990, 2020, (NODES["paper"],), generator=draw)
    data["paper"].train_mask = torch.rand(NODES["paper"], generator=draw) < 0.6
    data["author"].x = torch.randn(NODES["author"], 20, generator=draw).half()
    data["author"].y = torch.randint(0, 3, (NODES["author"],), generator=draw)
    data["author"].year = torch.randint(1990, 2020, (NODES["author"],), generator=draw)
    data["venue"].x = torch.randint(-9, 9, (NODES["venue"], 3), generator=draw).to(torch.int8)
    data["topic"].num_nodes = NODES["topic"]
    for (source, relation, target), count in EDGES.items():
        ends = [torch.randint(0, NODES[end], (count,), generator=draw) for end in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    data[WRITTEN].edge_index = data[WRITES].edge_index.flip(0)
    data[WRITES].edge_attr = torch.randn(EDGES[WRITES], 32, generator=draw)
    data[CITES].edge_attr = torch.randn(EDGES[CITES], 2, generator=draw)
    data[CITES].weight = torch.rand(EDGES[CITES], generator=draw)
    data[CITES].time = torch.randint(0, 50, (EDGES[CITES],), generator=draw)
    return data


def check(batch: HeteroData, data: HeteroData) -> None:
    """Each row and each edge of a batch is the graph's."""
    assert set(batch.node_types) == set(data.node_types)
    assert set(batch.edge_types) == set(data.edge_types)
    for name in data.node_types:
        nodes = batch[name]
        for attribute in set(data[name].keys()) - {"num_nodes"}:
            assert torch.equal(nodes[attribute], data[name][attribute][nodes.n_id])
            assert nodes[attribute].dtype == data[name][attribute].dtype
        assert nodes.num_nodes == len(nodes.n_id)
    for edge_type in data.edge_types:
        source, _, target = edge_type
        edges = batch[edge_type]
        ends = torch.stack(
            [batch[source].n_id[edges.edge_index[0]], batch[target].n_id[edges.edge_index[1]]]
        )
        if "e_id" not in edges:  # some of a both-way subgraph's are none of the graph's
            continue
        assert torch.equal(ends, data[edge_type].edge_index[:, edges.e_id])
        for attribute in set(data[edge_type].keys()) - {"edge_index"}:
            assert torch.equal(edges[attribute], data[edge_type][attribute][edges.e_id])

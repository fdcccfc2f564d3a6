"""Arguments of loaders for every kind of sample: of the graph of one type of
tests/store/packed/packs.py, and of the graph of several of tests/loader/hetero/graph.py."""

from typing import Any

import torch

from tests.loader.hetero.graph import CITES, WRITES

NODE = {"num_neighbors": [4, 3], "batch_size": 60}
LINK = {"num_neighbors": [3, 2], "batch_size": 900, "edge_label_index": None}
SOME = torch.arange(0, 200, 3)
# Nodes within a hop come in another order, and so do edges.
PLAIN: dict[str, dict[str, Any]] = {
    "all nodes": NODE,
    "some nodes": NODE | {"input_nodes": SOME, "drop_last": True, "batch_size": 20},
    "three hops": NODE | {"num_neighbors": [3, 2, 2], "input_nodes": SOME, "batch_size": 25},
    "all neighbours": NODE | {"num_neighbors": [-1, 2], "batch_size": 9, "input_nodes": SOME},
    "with replacement": NODE | {"replace": True},
    "no hops": NODE | {"num_neighbors": []},
}
# Samples in the form of PyG are equal in every respect.
OTHERS: dict[str, dict[str, Any]] = {
    "disjoint": NODE | {"disjoint": True},
    "temporal": NODE | {"time_attr": "time", "input_nodes": SOME, "input_time": SOME % 50},
    "weighted": NODE | {"weight_attr": "weight"},
    "induced": NODE | {"subgraph_type": "induced"},
    "bidirectional": NODE | {"subgraph_type": "bidirectional"},
    "disjoint, no hops": NODE | {"disjoint": True, "num_neighbors": []},
    "links": LINK,
    "binary links": LINK | {"neg_sampling": "binary"},
    "triplets": LINK | {"neg_sampling": {"mode": "triplet", "amount": 2}},
    "temporal links": LINK | {"time_attr": "edge_time", "edge_label_time": torch.arange(2500) % 50},
}  # fmt: skip
TYPED: dict[str, dict[str, Any]] = {
    "papers": NODE | {"input_nodes": "paper"},
    "other fanouts": NODE | {"input_nodes": ("author", torch.arange(0, 90, 2)),
                             "num_neighbors": {WRITES: [2, 1], CITES: [3, 3],
                                               ("paper", "rev_writes", "author"): [4, 2],
                                               ("venue", "hosts", "paper"): [1, 1]}},
    "disjoint": NODE | {"input_nodes": "paper", "disjoint": True},
    "induced, no hops": NODE | {"input_nodes": "paper", "num_neighbors": [],
                                "subgraph_type": "induced"},
    "links": LINK | {"edge_label_index": WRITES, "neg_sampling": "binary"},
    "triplets": LINK | {"edge_label_index": CITES, "neg_sampling": "triplet"},
}  # fmt: skip

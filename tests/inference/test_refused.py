"""What inference cannot do is said before anything is computed, with what would work."""

import copy
import errno
import fcntl
import functools
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GCN,
    ChebConv,
    DirGNNConv,
    GATConv,
    GCNConv,
    GPSConv,
    GraphSAGE,
    HeteroConv,
    LayerNorm,
    MessagePassing,
    SAGEConv,
)
from torch_geometric.utils import degree, scatter

import gnndrive
from gnndrive import ConfigError, ReadError, Store
from gnndrive.common.memory import parse_size
from gnndrive.inference import batch_call
from gnndrive.inference.identity import Identity
from gnndrive.inference.infer import infer
from gnndrive.inference.layers import Layers
from gnndrive.inference.self_check import Given
from gnndrive.testing.faults import Faults, Simulated, simulated
from tests import forked
from tests.inference.conftest import COLUMNS, NODES, doubled

BATCH = 50
Layer = Callable[[Any, Any], Any]


class Plain(torch.nn.Module):
    """A model that does not say what its layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = SAGEConv(COLUMNS, 3)


SAGE = GraphSAGE(COLUMNS, 4, 1, 3)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Plain(), {}, "layers=layers"),
        ([], {}, "layers="),
        ([3], {}, "layers="),
        (GraphSAGE(COLUMNS, 4, 2, 3, jk="cat"), {}, "jk="),
        (GraphSAGE(COLUMNS, 4, 2, 3, norm="GraphNorm"), {}, "GraphNorm.*BatchNorm"),
        ([SAGEConv(COLUMNS, 4), LayerNorm(4)], {}, "mode='node'"),
        ([ChebConv(COLUMNS, 4, 2)], {}, "ChebConv.*use GCNConv"),
        ([DirGNNConv(SAGEConv(COLUMNS, 4))], {}, "DirGNNConv needs more"),
        ([GPSConv(COLUMNS, SAGEConv(COLUMNS, COLUMNS), heads=2)], {}, "GPSConv needs more"),
        ([SAGEConv(COLUMNS, 4, flow="target_to_source")], {}, "SAGEConv has flow=.*reverse"),
        (SAGE, {"memory": "1.5XB"}, "memory="),
        (SAGE, {"memory": "100KB"}, "give memory="),
        (SAGE, {"batch_size": 0}, "batch_size"),
        (SAGE, {"name": "x"}, "of its own"),
        (SAGE, {"name": "n_id"}, "another part"),
        (SAGE, {"name": "../h"}, "not a name"),
        (SAGE, {"features": "z"}, "have no 'z'"),
        (SAGE, {"edge_attr": "nothing"}, "no attribute 'nothing'.*weight"),
        (SAGE, {"dtype": "complex64"}, "cannot hold"),
        (SAGE, {"engine": "tape"}, "tape"),
        (SAGE, {"device": "oven"}, "device"),
        ([lambda x, edge_index: x[:1]], {}, "layer 1 returned Tensor of shape"),
        ([lambda x, edge_index: None], {}, "layer 1 returned NoneType"),
        ([lambda x, edge_index: x[:, : 2 + int(x[0, 0] > 0)]], {}, "of one shape"),
    ],
)  # fmt: skip
def test_refused(model: Any, given: dict[str, Any], message: str, store: Store):
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        infer(model, store, **({"batch_size": BATCH} | given))
    assert "h" not in gnndrive.open(store.path).node_names
    made = any(store.path.glob("derived/**/*.npy"))
    assert made == (message == "of one shape")
    assert made or not (store.path / "derived").exists(), "nothing is left of the call"


def test_a_gcn_conv_that_is_given_other_edges(store: Store):
    conv = GCNConv(COLUMNS, 3)
    with pytest.raises(ConfigError, match="edge_index as it is"):
        infer([lambda x, edge_index: conv(x, edge_index.clone())], store)
    assert conv.normalize
    assert not conv._forward_pre_hooks


def test_types_without_rows(hetero: HeteroData, tmp_path: Path):
    data = hetero.clone()
    count = data["venue"].num_nodes
    del data["venue"].x
    data["venue"].num_nodes = count
    store = gnndrive.from_data(data, tmp_path / "types.gnn")
    with pytest.raises(ConfigError, match=r"'venue'.*have no 'x'"):
        infer([lambda x, edge_index: x], store)
    with pytest.raises(ConfigError, match="returned rows of none"):
        infer([lambda x, edge_index: {}], gnndrive.from_data(hetero, tmp_path / "all.gnn"))


def test_a_folder_that_cannot_be_written(store: Store, monkeypatch: pytest.MonkeyPatch):
    def refused(*given: Any, **named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(ConfigError, match="out="):
            infer(SAGE, store)


def test_a_failing_disk(store: Store):
    class Failing(Simulated):
        """A disk on which every read fails."""

        def __init__(self, settings: Any) -> None:
            super().__init__(simulated(0, Faults(eio=1.0), settings.depth, settings.block_bytes))

    with pytest.raises(ReadError, match="check the disk"):
        infer(SAGE, store, engine=Failing)


def test_what_is_set_on_the_store_is_not_passed_over(store: Store, hetero_store: Store):
    model = GCN(COLUMNS, 8, 2, 3)
    store.other = store.tensor("x")[:, 0]
    infer(model, store, edge_weight="weight")
    for change in (
        lambda of: setattr(of, "x", of.x * 2),
        lambda of: delattr(of, "x"),
        lambda of: setattr(of, "weight", of.weight * 2),
    ):
        changed = copy.copy(store)
        change(changed)
        with pytest.raises(ConfigError, match=r"was set or deleted.*gnndrive\.open\(.*from_data"):
            infer(model, changed, edge_weight="weight", name="g")
    assert store.node_names[-1] == "h"
    hetero_store["paper"].x = hetero_store["paper"].x * 2
    with pytest.raises(ConfigError, match="'x' of 'paper' was set"):
        infer([lambda x, edge_index: x], hetero_store)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOLCK, "has no locks.*out="),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "cannot be written to"),
    ],
)
def test_a_lock_that_fails_says_why(store, monkeypatch, code, words):
    def refused(*given: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(ConfigError, match=words):
            infer(SAGE, store)


# ---- layers that use more of the graph than a batch has


def degrees_of_sources(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """As the conv of PyG's tutorial: it counts degrees in the edges that it is given."""
    source, target = edge_index
    root = degree(target, len(x)).clamp(min=1).pow(-0.5)
    return scatter(x[source] * (root[source] * root[target])[:, None], target, dim_size=len(x))


def centred(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def two_hops(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    source, target = edge_index
    once = scatter(x[source], target, dim_size=len(x))
    return scatter(once[source], target, dim_size=len(x))


class IntoOneBuffer(torch.nn.Module):
    """Returns the same memory each time."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "out"):
            self.out = torch.empty(NODES * 20, COLUMNS)
        return self.out[: len(x)].copy_(x - x.mean(0))


def halved_in_place(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x.mul_(0.5) - x.mean(0)


@pytest.mark.parametrize("layer", [degrees_of_sources, centred, two_hops, IntoOneBuffer(),
                                   halved_in_place])  # fmt: skip
def test_it_is_refused(layer: Layer, store: Store):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=r"layer 1 computes other rows.*edge_weight="):
        infer([layer], store, batch_size=BATCH)
    assert "h" not in gnndrive.open(store.path).node_names


def of_sources(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """Of the ends of in-edges, whatever is asked for is there."""
    source, target = edge_index
    joined = torch.cat([x[source], x[target]], dim=1)
    return scatter(joined.relu(), target, dim_size=len(x), reduce="max")


def degrees_of_targets(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """A target's own in-degree is that of the whole graph."""
    return x * degree(edge_index[1], len(x)).view(-1, 1)


def doubled_in_place(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    "layer", [of_sources, doubled_in_place, degrees_of_targets, SAGEConv(COLUMNS, 4, aggr="median")]
)
def test_what_inference_can_do_is_not_refused(layer: Layer, store: Store, data: Data):
    infer([layer], store, batch_size=BATCH)
    edges = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    with torch.inference_mode():
        wanted = layer(data.x.clone(), edges)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-3)  # test_equal.py is stricter
    infer([lambda x, edge_index: x + torch.rand_like(x)], store, batch_size=BATCH, name="drawn")


def test_what_is_checked_takes_little_memory(store: Store, monkeypatch: pytest.MonkeyPatch):
    """One copy of a batch is made: the second time, what is added is joined to the batch itself.
    Free memory is returned once it was checked, and not taken beside what later batches take."""
    calls, copied = list[str](), Given.copy
    monkeypatch.setattr(Given, "copy", lambda given: calls.append("copy") or copied(given))
    monkeypatch.setattr(batch_call, "return_free_memory", lambda: calls.append("return"))
    infer([lambda x, edge_index: calls.append("layer") or x * 2], store, batch_size=BATCH)
    checked = ["copy", "layer", "return", "layer", "return"]
    assert calls == checked + ["layer"] * (NODES // BATCH - 1)


def test_batches_without_edges_to_others(tmp_path: Path):
    ends = torch.arange(200)
    graph = Data(x=torch.randn(200, 3), edge_index=torch.stack([ends, ends ^ 1]))
    store = gnndrive.from_data(graph, tmp_path / "pairs.gnn")
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([centred], store, batch_size=BATCH)


def test_padding_that_is_read_is_said(store: Store):
    with pytest.warns(UserWarning, match=r"LSTMAggregation pads.*mean"):
        infer([SAGEConv(COLUMNS, 4, aggr="lstm")], store, batch_size=BATCH)
    assert "h" in store.node_names


def test_what_is_added_has_rows_that_there_are(tmp_path: Path):
    graph = Data(x=torch.arange(200), edge_index=torch.randint(0, 200, (2, 900)), num_nodes=200)
    store = gnndrive.from_data(graph, tmp_path / "ids.gnn")
    embedding = torch.nn.Embedding(200, 3)
    infer([lambda x, edge_index: embedding(x.long())], store, batch_size=BATCH)
    assert torch.equal(store.tensor("h"), embedding.weight)
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([lambda x, edge_index: x - x.sum()], store, name="w", batch_size=BATCH)


class LeavesOut(torch.nn.Module):
    """A model that gives its conv the targets alone, which takes no edges into other nodes."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv((COLUMNS, COLUMNS), 3)

    def inference_per_layer(self, layer: int, x: Any, edge_index: Any, batch_size: int) -> Any:
        return self.conv((x, x[:batch_size]), edge_index)


def test_targets_alone(store: Store, data: Data):
    """On a GPU such a model is not tried. A compiled model has the methods of the one inside."""
    model, plain, compiled = LeavesOut(), GraphSAGE(8, 8, 2, 4), torch.nn.Module()
    infer(model, store, batch_size=BATCH)
    with torch.inference_mode():
        wanted = model.conv((data.x, data.x), data.edge_index)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)
    compiled.num_layers, compiled.inference_per_layer = 2, plain.inference_per_layer
    may = [Layers(each, None).may_leave_out for each in (model, plain, compiled)]
    assert may == [True, False, False]


@pytest.mark.filterwarnings("ignore:There exist node types")  # venues have no in-edges
def test_layers_of_several_types_are_checked(hetero_store: Store, hetero: HeteroData):
    right = HeteroConv({key: SAGEConv((-1, -1), 4) for key in hetero.edge_types})
    with torch.no_grad():  # it makes the parameters
        right(hetero.x_dict, hetero.edge_index_dict)

    def wrong(x: Any, edge_index: Any) -> Any:
        made = right(x, edge_index)
        return made | {"paper": made["paper"] - x["author"].mean()}

    infer([right], hetero_store, batch_size=BATCH)
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([wrong], hetero_store, name="w", batch_size=BATCH)


SCALE = 2.0


class Conv(MessagePassing):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__(aggr="add")
        self.scale, self.functions = torch.tensor(scale), [torch.nn.Dropout()]

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x) * self.scale * SCALE


class Holder:
    """An object of a user's that has a module."""

    def __init__(self, module: torch.nn.Module, factor: float = 1.0) -> None:
        self.by_name, self.factor = {"module": module}, factor

    def __call__(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.by_name["module"](x) * self.factor


def plain(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def uses_plain(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return next(plain(each, edge_index) for each in [x])


def scaled(factor: Any) -> Callable[..., Any]:
    return lambda x, edge_index: x * factor


def text(*layers: Any) -> str:
    found = Identity(layers)
    assert not found.unnamed
    return found.text


def partial(*given: Any, **named: Any) -> Any:
    return functools.partial(plain, *given, **named)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x, e: x * 2.0, lambda x, e: x * 3.0),
        (lambda x, e: x.sin(), lambda x, e: x.cos()),
        (lambda x, e: (lambda y: y + 1)(x), lambda x, e: (lambda y: y + 2)(x)),
        (lambda x, e, by=2: x * by, lambda x, e, by=3: x * by),
        (lambda x, e, *, by=2: x * by, lambda x, e, *, by=3: x * by),
        (scaled(torch.ones(2)), scaled(torch.zeros(2))),
        (scaled(torch.ones(2)), scaled(torch.ones(2, dtype=torch.float64))),
        (scaled(np.ones(2)), scaled(np.zeros(2))),
        (scaled({"a": [1]}), scaled({"a": [2]})),
        (scaled(plain), scaled(uses_plain)),
        (partial(2), partial(3)),
        (partial(by=torch.ones(2)), partial(by=torch.zeros(2))),
        (Holder(torch.nn.ReLU()), Holder(torch.nn.Tanh())),
        (Holder(torch.nn.ReLU(), 2), Holder(torch.nn.ReLU(), 3)),
        (Conv(2.0), Conv(3.0)),
        (Conv(2.0).forward, Conv(3.0).forward),
        (GraphSAGE(4, 4, 1, act="relu"), GraphSAGE(4, 4, 1, act="tanh")),
    ],
)
def test_another_result_is_another_identity(first: Any, second: Any):
    assert text(first) == text(first)
    assert text(first) != text(second)


def test_an_attribute_is_no_global_of_the_same_name(monkeypatch: pytest.MonkeyPatch):
    before = text(of_object := lambda x, e: x.SCALE)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert text(of_object) == before


@pytest.mark.parametrize("function", [plain, uses_plain, Conv(), Holder(torch.nn.ReLU())])
def test_global_values_and_the_code_of_classes(function: Any, monkeypatch: pytest.MonkeyPatch):
    before = text(function)
    if isinstance(function, Holder):
        other = types.FunctionType((lambda self, x, e: x).__code__, {})
        monkeypatch.setattr(Holder, "__call__", other)
    else:
        monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert text(function) != before


MODULE = torch.nn.Dropout()


def helped(x: torch.Tensor, edge_index: torch.Tensor) -> Any:
    return MODULE(x)


@pytest.mark.parametrize(
    "layer",
    [
        MODULE,
        lambda x, e, module=MODULE: module(x),
        lambda x, e: helped(x, e),
        scaled({"key": (MODULE,)}),
        Holder(MODULE).__call__,
        functools.partial(helped, module=[MODULE]),
        lambda x, e: [MODULE(each) for each in x],
    ],
)
def test_modules_are_found(layer: Any):
    assert Identity([layer]).modules == [MODULE]
    conv = Conv()  # has a list of modules
    assert Identity([conv]).modules == [conv, conv.functions[0]]


def of_all_kinds() -> list[Any]:
    torch.manual_seed(0)
    cycle: list[Any] = []
    cycle.append(cycle)
    among = scaled(set("abcdefgh")), lambda x, e: x if x in {"a", "b", "c"} else e, scaled(cycle)
    return [Conv(), uses_plain, Holder(torch.nn.ReLU()), GraphSAGE(4, 4, 2), *among]


def test_it_is_the_same_in_every_process():
    """Also where sets have another order."""
    code = "from tests.inference.test_refused import *; print(text(*of_all_kinds()))"
    ended = forked.run(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{text(*of_all_kinds())}\n"


def test_a_module_in_a_closure_is_put_in_eval_mode(store: Store, data: Data):
    """And is part of the identity."""
    model = torch.nn.ModuleList([torch.nn.Dropout(0.5), GATConv(COLUMNS, 3)])
    layers = [lambda x, edge_index: model[1](model[0](x), edge_index)]
    infer(layers, store)
    assert model[0].training
    assert model[1].training
    with torch.no_grad():
        wanted = model.eval()[1](data.x, data.edge_index)
        assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)
        model[1].bias += 1
    with pytest.raises(ConfigError, match="another model"):
        infer(layers, store)


def test_what_cannot_be_named_is_computed_anew(store: Store):
    draw, done = torch.Generator(), list[int]()
    layers = [lambda x, e: x if draw is None else x + 1]
    with pytest.warns(RuntimeWarning, match="Generator"):
        infer(layers, store)
    with (
        pytest.warns(RuntimeWarning, match="Generator"),
        pytest.raises(ConfigError, match="overwrite=True"),
    ):
        infer(layers, store)
    with pytest.warns(RuntimeWarning, match="Generator"):
        infer(layers, store, overwrite=True, progress=lambda what, *of: done.append(of[0]))
    assert done


def test_too_little_memory_names_what_is_enough_for_all_layers(store: Store):
    def wide(x: Any, edge_index: Any) -> Any:
        return x.repeat(1, 30)

    def run(**given: Any) -> None:
        infer([wide, wide, wide], store, io_depth=4, **{"batch_size": 4096, **given})

    with pytest.raises(ConfigError, match="give memory=") as refused:
        run(memory="10KB")
    (least,) = re.findall('give memory="(.*?)" or more$', str(refused.value))
    below = parse_size(least, "memory") - 200_000
    with pytest.raises(ConfigError, match=f'"{least}" or more, or batch_size=') as refused:
        run(memory=below)
    (fewer,) = re.findall(r"or batch_size=(\d+)$", str(refused.value))
    run(memory=below, batch_size=int(fewer), name="fewer")
    run(memory=least)


def test_a_layer_that_needs_edges_is_refused_once_the_width_of_its_rows_is_known(store: Store):
    def wide(x: Any, edge_index: Any) -> Any:
        assert edge_index.numel()
        return x.repeat(1, 30)

    computed: list[int] = []

    def run(memory: str) -> None:
        computed.clear()
        infer(
            [wide, wide, lambda x, edge_index: x[:, :1]], store, memory=memory, batch_size=BATCH,
            progress=lambda what, done, total: computed.append(done),
        )  # fmt: skip

    least, entries = "10KB", store.num_nodes + store.num_edges
    for begun in (0, 0, 1):  # each width is known from the first batch of its layer on
        with pytest.raises(ConfigError, match="give memory=") as refused:
            run(least)
        assert max(computed, default=0) == begun * entries
        (found,) = re.findall('give memory="(.*?)"', str(refused.value))
        assert parse_size(found, "memory") > parse_size(least, "memory")
        least = found
    run(least)


def test_rows_that_are_not_finite_are_said_once_with_layer_and_node(data: Data, tmp_path: Path):
    x = data.x.clone()
    x[77] = float("nan")
    with pytest.warns(UserWarning, match="nodes/x: 1 of"):
        store = gnndrive.from_data(Data(x=x, edge_index=data.edge_index), tmp_path / "s")
    given: dict[str, Any] = {"batch_size": BATCH}
    with pytest.warns(RuntimeWarning, match=r"^layer 1 .* 1 of the 50 nodes .* node 77, ") as said:
        infer([doubled, doubled], store, **given)
    assert len(said) == 1
    with pytest.warns(UserWarning, match="rows hold nan") as said:
        store.verify()
    names = [str(each.message).split(" of its 600 rows")[0] for each in said]
    assert names == ["nodes/x: 1", "nodes/h: 1"]
    store = gnndrive.from_data(data, tmp_path / "t")
    with pytest.warns(RuntimeWarning, match=r"^layer 2 .* the dtype"):
        infer([doubled, lambda x, edge_index: x * 3e38 * 10], store, **given)

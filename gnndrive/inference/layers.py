"""What the layers of a model are: how `infer` calls them one at a time.

A model is one of
- a module with `num_layers` and `inference_per_layer(layer, x, edge_index, batch_size)`: PyG's
  GraphSAGE, GCN, GAT, GIN, PNA and all of its `BasicGNN`, or yours;
- a sequence of callables, one a layer: `f(x, edge_index)`, with dicts for heterogeneous graphs.

A layer may look at its targets' in-edges and the rows at their ends, and at nothing else: what it
computes of a whole graph, such as GraphNorm, it would compute of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch_geometric.nn import HeteroConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from gnndrive.common.errors import ConfigError
from gnndrive.inference.identity import Identity

OF_WHOLE_GRAPHS = (
    "GraphNorm", "InstanceNorm", "PairNorm", "MeanSubtractionNorm", "GraphSizeNorm",
    "DiffGroupNorm",
)  # fmt: skip
REMEDY = """give its layers as a list of functions, one a layer:
    layers = [lambda x, edge_index: model.conv1(x, edge_index).relu(),
              lambda x, edge_index: model.conv2(x, edge_index)]
    gnndrive.infer(model, store, layers=layers)"""


class Layers:
    """The layers of a model, called one at a time. `layers` has them if `model` does not say
    itself; ConfigError: it cannot be run layer by layer, and what to give. `modules` are the model,
    or the modules among the layers and all that they use."""

    def __init__(self, model: Any, layers: Sequence[Any] | None) -> None:
        if layers is None and isinstance(model, list | tuple | torch.nn.ModuleList):
            model, layers = None, list(model)
        self._model: Any = model
        self._functions = None if layers is None else list(layers)
        if self._functions is None:
            self._check_model(model)
        elif not self._functions or not all(map(callable, self._functions)):
            raise ConfigError("layers= is no list of functions: " + REMEDY)
        named = [] if self._functions is None else self._functions
        self._identity = Identity([model, *named])
        self.modules = self._identity.modules
        self._check_norms()

    def __len__(self) -> int:
        if self._functions is not None:
            return len(self._functions)
        return int(self._model.num_layers)

    def call(self, layer: int, x: Any, edge_index: Any, count: int, values: dict[str, Any]) -> Any:
        """Call layer number `layer` with a tensor each, or dicts by type; `values` has
        `edge_weight` and `edge_attr`. Returns rows of the `count` targets, which are the first of
        `x`, and perhaps of other nodes behind them."""
        if self._functions is None:
            return self._model.inference_per_layer(layer, x, edge_index, count)
        function = self._functions[layer]
        if isinstance(function, HeteroConv):
            values = {f"{name}_dict": value for name, value in values.items()}
        return function(x, edge_index, **values)

    def takes_values(self, layer: int) -> Any:
        """The conv that must be given edge weights and attributes, because the model's
        `inference_per_layer` does not pass them on; None: `call` gives them."""
        if self._functions is not None:
            return None
        convs = getattr(self._model, "convs", None)
        if convs is None:
            raise ConfigError(
                f"{type(self._model).__name__} has no convs to give edge weights or attributes to: "
                + REMEDY
            )
        return convs[layer]

    @property
    def may_leave_out(self) -> bool:
        """Whether a layer is told how many targets there are, and may leave out other nodes."""
        if self._functions is not None:
            return False
        method = getattr(self._model.inference_per_layer, "__func__", None)
        return method is not BasicGNN.inference_per_layer

    @property
    def identity(self) -> str:
        """A text that stands for the layers: their code, and all values that they use."""
        if self._identity.unnamed:
            warnings.warn(
                f"the layers use a {self._identity.unnamed[0]}, which cannot be compared with that "
                "of an earlier call: what is computed now does not go on after a kill, and to "
                "compute it again takes overwrite=True",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._identity.text

    @property
    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters of all modules."""
        return (each for module in self.modules for each in module.parameters())

    @contextmanager
    def evaluated(self, device: torch.device | None) -> Iterator[torch.device]:
        """Put all modules in eval mode, and on a device, which is yielded; None: where the
        parameters are. Both are restored."""
        first = next(self.parameters, None)
        home = torch.device("cpu") if first is None else first.device
        where = home if device is None else device
        training = [each for module in self.modules for each in module.modules() if each.training]
        try:
            for module in self.modules:
                module.eval()
                if where != home:
                    module.to(where)
            yield where
        finally:
            for each in training:
                each.training = True
            if where != home:
                for module in self.modules:
                    module.to(home)

    def _check_model(self, model: Any) -> None:
        count = getattr(model, "num_layers", None)
        if not isinstance(count, int) or not callable(getattr(model, "inference_per_layer", None)):
            raise ConfigError(
                f"{type(model).__name__} does not say what its layers are: it has no num_layers "
                f"and inference_per_layer(layer, x, edge_index, batch_size); {REMEDY}"
            )
        mode = getattr(model, "jk_mode", None)
        if mode not in (None, "last"):
            raise ConfigError(
                f"jk={mode!r} joins the rows of all layers, and inference has one layer at a time: "
                "train with jk=None or jk='last', or run infer for each layer's rows"
            )

    def _check_norms(self) -> None:
        for module in self.modules:
            for each in module.modules():
                name = type(each).__name__
                of_torch = type(each).__module__.startswith("torch.nn")
                of_graph = name == "LayerNorm" and getattr(each, "mode", "") == "graph"
                if of_graph or (name in OF_WHOLE_GRAPHS and not of_torch):
                    raise ConfigError(
                        f"{name} averages over all nodes of a graph, and inference sees one batch "
                        "at a time: train with BatchNorm, or LayerNorm(mode='node')"
                    )

"""`LightningNodeData` and `LightningLinkData`: PyG's datamodules of PyTorch Lightning on a store.

If `data` is a store, their loaders are gnndrive's, and `memory=` is divided among the loaders that
live at once. If it is in memory, they are PyG's datamodules with gnndrive's sampler. `gnndrive`
imports this module when one of the two names is used, because importing Lightning takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch_geometric.data.lightning import LightningLinkData as PyGLinkData
from torch_geometric.data.lightning import LightningNodeData as PyGNodeData

from gnndrive.common.errors import ConfigError
from gnndrive.host.connect import connected_if_named
from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
from gnndrive.loader.store_datamodule import STAGES, InTrainer, StoreDataModule
from gnndrive.loader.store_loader import StoreLoader
from gnndrive.store.link_split import LinkSplit, PartStore
from gnndrive.store.reader import Store


class _NeighborLoader(InTrainer, NeighborLoader):
    pass


class _LinkNeighborLoader(InTrainer, LinkNeighborLoader):
    pass


class LightningNodeData(StoreDataModule, PyGNodeData):  # type: ignore[misc]
    """PyG's datamodule for training on nodes, on a store.

    Args:
        data: a store from `gnndrive.open`; or the name of a service, "gnndrive://papers100M"; or
            data in memory, for which this is PyG's class with gnndrive's sampler.
        input_train_nodes, input_val_nodes, input_test_nodes, input_pred_nodes: the seeds of each
            stage, as `input_nodes` of `NeighborLoader`. None: the split train, val (or valid), test
            or pred of the store; a mask that was set on it counts instead of its split. If there is
            no such split, training and prediction take all nodes, and validation and tests are left
            out.
        input_train_time, …: the times of the seeds.
        loader: "neighbor"; the others of PyG's need data in memory.
        node_sampler: a PyG `BaseSampler` to use instead of gnndrive's.
        eval_loader_kwargs: arguments that replace those in `kwargs` in validation, tests and
            prediction.
        **kwargs: arguments of `NeighborLoader`: num_neighbors, batch_size, and gnndrive's own.
            `memory` and `device_memory` are for all loaders that live at once: training takes three
            quarters and validation a quarter, or what `eval_loader_kwargs` has for it; training
            without validation, tests and prediction take all. `buffer` is that of each loader. With
            several ranks, `memory` and `buffer` are for all of a host, `device_memory` for one GPU.

    Raises:
        ConfigError: an argument cannot work on a store.
        ModuleNotFoundError: neither pytorch_lightning nor lightning is installed.
    """

    _kind = "nodes"

    def __init__(
        self,
        data: Any,
        input_train_nodes: Any = None,
        input_train_time: Any = None,
        input_val_nodes: Any = None,
        input_val_time: Any = None,
        input_test_nodes: Any = None,
        input_test_time: Any = None,
        input_pred_nodes: Any = None,
        input_pred_time: Any = None,
        loader: str = "neighbor",
        node_sampler: Any = None,
        eval_loader_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        inputs = {name: given[name] for name in given if name.startswith("input_")}
        if not isinstance(data := connected_if_named(data), Store):
            self._open_memory(
                PyGNodeData, data, kwargs, "node_sampler", node_sampler=node_sampler, loader=loader,
                eval_loader_kwargs=eval_loader_kwargs, **inputs,
            )  # fmt: skip
            return
        for stage in STAGES:
            if inputs[self._input(stage)] is None:
                inputs[self._input(stage)] = _split(data, stage)
        self._open_store(data, inputs, loader, node_sampler, eval_loader_kwargs, kwargs)

    def _loader(self, stage: str, **arguments: Any) -> StoreLoader:
        nodes, time = (getattr(self, self._input(stage, what)) for what in ("nodes", "time"))
        return _NeighborLoader(self.data, input_nodes=nodes, input_time=time, **arguments)


class LightningLinkData(StoreDataModule, PyGLinkData):  # type: ignore[misc]
    """PyG's datamodule for training on edges, on a store.

    Args:
        data: as for `LightningNodeData`; or what `gnndrive.split_links` returns: then each stage
            has its part's store and labels, unless inputs are given, and prediction the test part.
        input_train_edges, input_val_edges, input_test_edges, input_pred_edges: the seed edges of
            each stage, as `edge_label_index` of `LinkNeighborLoader`. None: all edges in training
            and prediction, no validation, no tests.
        input_train_labels, …: the labels of the seed edges.
        input_train_time, …: the times of the seed edges.
        loader, eval_loader_kwargs: as for `LightningNodeData`.
        link_sampler: a PyG `BaseSampler` to use instead of gnndrive's.
        **kwargs: arguments of `LinkNeighborLoader`; `memory`, `device_memory` and `buffer` are as
            for `LightningNodeData`.

    Raises:
        ConfigError, ModuleNotFoundError: as for `LightningNodeData`.
    """

    _kind = "edges"

    def __init__(
        self,
        data: Any,
        input_train_edges: Any = None,
        input_train_labels: Any = None,
        input_train_time: Any = None,
        input_val_edges: Any = None,
        input_val_labels: Any = None,
        input_val_time: Any = None,
        input_test_edges: Any = None,
        input_test_labels: Any = None,
        input_test_time: Any = None,
        input_pred_edges: Any = None,
        input_pred_labels: Any = None,
        input_pred_time: Any = None,
        loader: str = "neighbor",
        link_sampler: Any = None,
        eval_loader_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        inputs = {name: given[name] for name in given if name.startswith("input_")}
        if isinstance(data, LinkSplit):
            self._parts = {**data._asdict(), "pred": data.test}
            for stage, part in data._asdict().items():
                if inputs[self._input(stage)] is None:
                    inputs[self._input(stage)] = _labelled_edges(part, stage)
                    inputs[self._input(stage, "labels")] = part.edge_label
            data = data.train
        if not isinstance(data := connected_if_named(data), Store):
            self._open_memory(
                PyGLinkData, data, kwargs, "link_sampler", link_sampler=link_sampler, loader=loader,
                eval_loader_kwargs=eval_loader_kwargs, **inputs,
            )  # fmt: skip
            return
        self._open_store(data, inputs, loader, link_sampler, eval_loader_kwargs, kwargs)

    def _loader(self, stage: str, **arguments: Any) -> StoreLoader:
        edges, labels, time = (
            getattr(self, self._input(stage, what)) for what in ("edges", "labels", "time")
        )
        return _LinkNeighborLoader(
            self._store(stage),
            edge_label_index=edges,
            edge_label=labels,
            edge_label_time=time,
            **arguments,
        )


def _labelled_edges(part: PartStore, stage: str) -> Any:
    """The labelled edges of a part, as `edge_label_index` of a loader.

    Raises:
        ConfigError: several edge types have labels.
    """
    types = part.labelled_types
    if len(types) > 1:
        raise ConfigError(
            f"the types {', '.join(map(str, types))} have labels: give input_{stage}_edges=(TYPE, "
            "edges) and the labels"
        )
    return part.edge_label_index if types[0] is None else (types[0], part.edge_label_index)


def _split(store: Store, stage: str) -> Any:
    """A store's split for a stage, as `input_nodes`; None if there is none.

    Raises:
        ConfigError: several node types have one.
    """
    for name in (stage, "valid") if stage == "val" else (stage,):
        found = [nodes for nodes in store.all_nodes() if name in nodes.split_names]
        if len(found) > 1:
            kinds = ", ".join(str(nodes.type) for nodes in found)
            raise ConfigError(
                f"the types {kinds} have a split {name!r}: give input_{stage}_nodes=(TYPE, ids)"
            )
        if found:
            ids = found[0].split(name)
            return ids if found[0].type is None else (found[0].type, ids)
    return None

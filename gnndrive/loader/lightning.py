"""`LightningNodeData` and `LightningLinkData`: PyG's datamodules of PyTorch Lightning on a store.

If `data` is a store, their loaders are gnndrive's: `StoreDataModule` makes the loaders of all
stages, divides `memory=` among those that live at once, and closes them when their stage ends. If
it is in memory, they are PyG's datamodules with gnndrive's sampler. `gnndrive` imports this module
when one of the two names is used, because importing Lightning takes seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch_geometric.data.lightning import LightningLinkData as PyGLinkData
from torch_geometric.data.lightning import LightningNodeData as PyGNodeData
from torch_geometric.data.lightning.datamodule import LightningDataModule

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, parse_size, size_or_none
from gnndrive.host.connect import opened
from gnndrive.loader.arguments import OWN_ARGUMENTS, refuse_old_names, refuse_own
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
from gnndrive.loader.store_loader import StoreLoader
from gnndrive.loader.tracing import check_trace, named_apart
from gnndrive.pyg.conversions import with_edge_index_in_memory
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.store.link_split import LinkSplit, PartStore
from gnndrive.store.reader import Store

STAGES = ("train", "val", "test", "pred")
_ENDED = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("pred",)}
_HELD_BY_TRAINER = {
    "train": "train_dataloader", "val": "val_dataloaders", "test": "test_dataloaders",
    "pred": "predict_dataloaders",
}  # fmt: skip
_DIVIDED = ("memory", "device_memory")
_VAL_SHARE = 4  # without a memory= of its own, validation has one part in so many


class InTrainer(StoreLoader):
    """A loader as Lightning's Trainer wants it to resume."""

    def state_dict(self) -> dict[str, Any]:
        """See `StoreLoader.state_dict`; but an epoch without batches left is finished, because the
        Trainer counts batches instead of asking for one more. {} if batches come in any order."""
        bare = self._bare()
        if not bare.in_order:
            return {}
        assembly = self._assembly(bare)
        state = self._state_of(assembly)
        left = _none_left(assembly, state["batches"], state["seed"], state["epoch"])
        return state | {"finished": state["finished"] or left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `StoreLoader.load_state_dict`; an epoch without batches left is finished here too,
        because earlier versions saved it otherwise."""
        if state == {}:
            return
        super().load_state_dict(state)
        found = self._resumed
        if found is not None and _none_left(
            self._assembly(), found.batches, found.seed, found.epoch
        ):
            self.epoch = found.epoch + 1
            self._resumed = None

    def __repr__(self) -> str:
        return f"{type(self).__name__.removeprefix('_')}()"


class StoreDataModule:
    """What both datamodules do if their data is a store, with attributes of PyG's names."""

    _from_store = False
    _parts: Mapping[str, Store] = MappingProxyType({})  # stores of stages that differ from `data`
    _kind: str  # "nodes" or "edges"
    _role: str  # the name of the argument that is a sampler
    data: Any
    trainer: Any
    kwargs: dict[str, Any]
    loader_kwargs: dict[str, Any]
    eval_loader_kwargs: dict[str, Any]
    train_shuffle: bool
    loader: str

    def _open_memory(self, data: Any, kwargs: dict[str, Any], **arguments: Any) -> None:
        """Do what PyG's class does with its own arguments and those of sampler and loaders, with
        gnndrive's sampler where PyG would need pyg-lib."""
        own = {name: kwargs.pop(name, default) for name, default in OWN_ARGUMENTS.items()}
        refuse_own(data, own)
        if kwargs.pop("exclude_seed_edges", False):
            raise ConfigError(
                "exclude_seed_edges= of a datamodule needs a store: gnndrive.from_data"
            )
        loader, names = arguments["loader"], inspect.signature(NeighborSampler).parameters
        if arguments[self._role] is not None or loader not in ("neighbor", "link_neighbor"):
            super().__init__(data, **arguments, **kwargs)  # type: ignore[call-arg]
            return
        sampling = {name: value for name, value in kwargs.items() if name in names}
        sampling.setdefault("share_memory", kwargs.get("num_workers", 0) > 0)
        arguments[self._role] = NeighborSampler(data, **sampling)
        loading = {name: value for name, value in kwargs.items() if name not in names}
        super().__init__(data, **arguments, **loading)  # type: ignore[call-arg]
        self.loader, self.kwargs = loader, kwargs | self.kwargs

    def _open(
        self, data: Any, inputs: dict[str, Any], sampler: Any, loader: str,
        eval_loader_kwargs: dict[str, Any] | None, kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        """What `__init__` of both does, with the inputs of all stages by their arguments' names. On
        a store it sets the attributes that PyG's classes set."""
        refuse_old_names(kwargs, kwargs.get("strategy"))
        if not isinstance(data, Store):
            role = {self._role: sampler, "eval_loader_kwargs": eval_loader_kwargs}
            data = with_edge_index_in_memory(data)
            self._open_memory(data, kwargs, loader=loader, **role, **inputs)
            return
        if loader not in ("neighbor", "link_neighbor", "custom"):
            raise ConfigError(
                f'loader={loader!r} does not work on a store: give loader="neighbor", which '
                "samples from disk"
            )
        if sampler is None and "num_neighbors" not in kwargs:
            raise ConfigError("num_neighbors= is not given: give a number for each hop")
        on_host = str(kwargs.get("device", "cpu")) == "cpu"
        kwargs.setdefault("pin_memory", on_host and torch.cuda.is_available())
        if sampler is not None:
            loader, kwargs["neighbor_sampler"] = "custom", sampler
            kwargs.setdefault("num_neighbors", getattr(sampler, "num_neighbors", [-1]))
        val, test = (inputs[self._input(stage)] for stage in ("val", "test"))
        LightningDataModule.__init__(self, val is not None, test is not None, **kwargs)
        ids = {self._input(stage, "id"): None for stage in STAGES}
        self.__dict__.update(inputs | ids, data=data, loader=loader, _from_store=True)
        given = dict(eval_loader_kwargs or {})
        self.loader_kwargs = dict(self.kwargs)
        self.eval_loader_kwargs = self.loader_kwargs | given
        for name in ("sampler", "batch_sampler"):
            self.eval_loader_kwargs.pop(name, None)
        if "batch_sampler" in self.loader_kwargs:
            self.loader_kwargs.pop("batch_size")
        self._shares = {
            name: _divide(name, self.kwargs.get(name), given.get(name)) for name in _DIVIDED
        }

    def train_dataloader(self) -> Any:
        """A loader for training; shuffled, unless the user gave a sampler."""
        return self._make("train") if self._from_store else super().train_dataloader()  # type: ignore[misc]

    def val_dataloader(self) -> Any:
        """A loader for validation."""
        return self._make("val") if self._from_store else super().val_dataloader()  # type: ignore[misc]

    def test_dataloader(self) -> Any:
        """A loader for tests."""
        return self._make("test") if self._from_store else super().test_dataloader()  # type: ignore[misc]

    def predict_dataloader(self) -> Any:
        """A loader for prediction."""
        return self._make("pred") if self._from_store else super().predict_dataloader()  # type: ignore[misc]

    def _input(self, stage: str, what: str = "") -> str:
        return f"input_{stage}_{what or self._kind}"

    def _make(self, stage: str) -> StoreLoader:
        arguments = dict(self.loader_kwargs if stage == "train" else self.eval_loader_kwargs)
        if (input_id := getattr(self, self._input(stage, "id"))) is not None:
            arguments["input_id"] = input_id
        if arguments.get("trace") is not None:  # the loaders of several stages live at once
            check_trace(arguments)
            arguments["trace"] = named_apart(arguments["trace"], stage)
        shared = stage in ("train", "val") and self._validates()
        if shared:
            arguments |= {name: pair[stage == "val"] for name, pair in self._shares.items()}
        shuffle = stage == "train" and self.train_shuffle
        loader = self._loader(stage, shuffle=shuffle, **arguments)
        if shared and arguments["memory"] is not None:
            try:
                loader.plan()
            except ConfigError as error:
                raise ConfigError(
                    f"the {stage} loader has {format_size(arguments['memory'])} of the memory= "
                    "that training and validation share; validation has a quarter of it, or what "
                    f'eval_loader_kwargs={{"memory": …}} says: {error}'
                ) from error
        self._loaders()[stage] = loader
        return loader

    def _loader(self, stage: str, **arguments: Any) -> StoreLoader:
        """A loader around the inputs of a stage."""
        raise NotImplementedError

    def _store(self, stage: str) -> Store:
        store: Store = self._parts.get(stage, self.data)
        return store

    def _validates(self) -> bool:
        """Whether training and validation have loaders at once; True before a trainer says."""
        if getattr(self, "val_dataloader", None) is None:
            return False
        trainer = getattr(self, "trainer", None)
        if trainer is None or trainer.state.fn is None:
            return True
        return trainer.state.fn == "fit" and bool(trainer.enable_validation)

    # ---- closing ----

    def _loaders(self) -> dict[str, StoreLoader]:
        """The newest loader of each stage."""
        found: dict[str, StoreLoader] = self.__dict__.setdefault("_made", {})
        return found

    def teardown(self, stage: str) -> None:
        """Close the loaders of what has ended; Lightning calls this."""
        super().teardown(stage)  # type: ignore[misc]
        self._close(_ENDED.get(stage, STAGES))

    def on_exception(self, exception: BaseException) -> None:
        """Close all loaders after an error; Lightning calls this."""
        super().on_exception(exception)  # type: ignore[misc]
        self._close(STAGES)

    def _close(self, stages: tuple[str, ...]) -> None:
        found: list[Any] = [self._loaders().pop(stage, None) for stage in stages]
        if (trainer := getattr(self, "trainer", None)) is not None:
            # Lightning may have made copies of them, with a DistributedSampler.
            for stage in stages:
                held = getattr(trainer, _HELD_BY_TRAINER[stage])
                found += held if isinstance(held, list) else [held]
        for loader in found:
            stores = [self._store(stage) for stage in STAGES]
            if isinstance(loader, StoreLoader) and any(loader.data is store for store in stores):
                loader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}


def _none_left(assembly: Assembly, done: int, seed: int | None, epoch: int) -> bool:
    """Whether an epoch has no batches left, as far as the user's batch sampler has a length."""
    try:
        return not assembly.steps(done, seed, 0 if assembly.seed is None else epoch)
    except TypeError:
        return False


def _divide(name: str, total: Any, for_val: Any) -> tuple[int | None, int | None]:
    """Bytes for training and for validation, which run side by side: of `total`, the argument of
    that name, and validation's in `eval_loader_kwargs`; None: not given."""
    val = None if for_val is None else size_or_none(for_val, name)
    if total in (None, 0, "0"):
        return total, total if val is None else val
    whole = parse_size(total, name)
    val = whole // _VAL_SHARE if val is None else val
    if val >= whole:
        raise ConfigError(
            f"eval_loader_kwargs has {name}={for_val!r}, and {name}={total!r} is for training and "
            "validation together: give validation less"
        )
    return whole - val, val


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

    _kind, _role = "nodes", "node_sampler"

    def __init__(
        self, data: Any,
        input_train_nodes: Any = None, input_train_time: Any = None,
        input_val_nodes: Any = None, input_val_time: Any = None,
        input_test_nodes: Any = None, input_test_time: Any = None,
        input_pred_nodes: Any = None, input_pred_time: Any = None,
        loader: str = "neighbor", node_sampler: Any = None,
        eval_loader_kwargs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        given = dict(locals())
        inputs = {name: given[name] for name in given if name.startswith("input_")}
        if isinstance(data := opened(data), Store):
            for stage in STAGES:
                if inputs[self._input(stage)] is None:
                    inputs[self._input(stage)] = _split(data, stage)
        self._open(data, inputs, node_sampler, loader, eval_loader_kwargs, kwargs)

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

    _kind, _role = "edges", "link_sampler"

    def __init__(
        self, data: Any,
        input_train_edges: Any = None, input_train_labels: Any = None, input_train_time: Any = None,
        input_val_edges: Any = None, input_val_labels: Any = None, input_val_time: Any = None,
        input_test_edges: Any = None, input_test_labels: Any = None, input_test_time: Any = None,
        input_pred_edges: Any = None, input_pred_labels: Any = None, input_pred_time: Any = None,
        loader: str = "neighbor", link_sampler: Any = None,
        eval_loader_kwargs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        given = dict(locals())
        inputs = {name: given[name] for name in given if name.startswith("input_")}
        if isinstance(data, LinkSplit):
            self._parts = {**data._asdict(), "pred": data.test}
            for stage, part in data._asdict().items():
                if inputs[self._input(stage)] is None:
                    inputs[self._input(stage)] = _labelled_edges(part, stage)
                    inputs[self._input(stage, "labels")] = part.edge_label
            data = data.train
        self._open(opened(data), inputs, link_sampler, loader, eval_loader_kwargs, kwargs)

    def _loader(self, stage: str, **arguments: Any) -> StoreLoader:
        edges, labels, time = (
            getattr(self, self._input(stage, what)) for what in ("edges", "labels", "time")
        )
        return _LinkNeighborLoader(
            self._store(stage), edge_label_index=edges, edge_label=labels, edge_label_time=time,
            **arguments,
        )  # fmt: skip


def _labelled_edges(part: PartStore, stage: str) -> Any:
    """The labelled edges of a part, as `edge_label_index` of a loader."""
    types = part.labelled_types
    if len(types) > 1:
        raise ConfigError(
            f"the types {', '.join(map(str, types))} have labels: give input_{stage}_edges=(TYPE, "
            "edges) and the labels"
        )
    return part.edge_label_index if types[0] is None else (types[0], part.edge_label_index)


def _split(store: Store, stage: str) -> Any:
    """A store's split for a stage, as `input_nodes`; None if there is none."""
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

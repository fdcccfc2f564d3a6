"""`gnndrive infer`: a model's rows for all nodes of a store."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gnndrive.cli.commands.options import (
    Device,
    Engine,
    Out,
    Overwrite,
    OwnMemory,
    StorePath,
    Threads,
)
from gnndrive.cli.report import Bars
from gnndrive.cli.training import ModelSettings, read_tensors
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.inference.infer import infer
from gnndrive.store.reader import open as open_store

STATES = ("model", "state_dict", "model_state_dict")  # names of the weights in a checkpoint
WEIGHTS = (
    "checkpoint: give a file that gnndrive train --checkpoint or torch.save(model.state_dict()) "
    "wrote"
)


def infer_command(
    store: StorePath,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The weights: of gnndrive train, or a state_dict.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="MODULE:FUNCTION that returns the model; default: the checkpoint's."),
    ] = None,
    name: Annotated[str, typer.Option(help="The attribute to add to the store.")] = "h",
    out: Out = None,
    memory: OwnMemory = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Nodes computed at once.")] = None,
    device: Device = None,
    features: Annotated[str, typer.Option(help="The attribute that the first layer gets.")] = "x",
    edge_weight: Annotated[str | None, typer.Option(help="Attribute of edges.")] = None,
    edge_attr: Annotated[str | None, typer.Option(help="Attribute of edges.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype of the rows, such as bfloat16.")] = None,
    overwrite: Overwrite = False,
    engine: Engine = None,
    threads: Threads = None,
) -> None:
    """Compute a model's rows for all nodes, layer by layer; goes on after an interruption."""
    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_store(store)
    made = load_model(model, checkpoint)
    with Bars(kept="computed") as bars:
        infer(
            made, opened, name=name, out=out, memory=memory, batch_size=batch_size,
            device=device, features=features, edge_weight=edge_weight, edge_attr=edge_attr,
            dtype=dtype, overwrite=overwrite, engine=engine or "auto", progress=bars,
        )  # fmt: skip
    if out is not None:
        print(f"{out} holds the rows of all nodes")
        return
    print(f"{opened.path} has")
    for each in opened.info.arrays.values():
        if each.folder and each.name.endswith(f"/{name}"):
            size = format_size(each.nbytes)
            print(f"  {each.name}: {each.dtype} {list(each.shape)}, {size}")


def load_model(model: str | None, checkpoint: Path | None) -> Any:
    """The model that `--model` and `--checkpoint` name."""
    if model is None and checkpoint is None:
        raise ConfigError(
            "there is no model: give --checkpoint of gnndrive train, or --model MODULE:FUNCTION, "
            "or both"
        )
    content = None if checkpoint is None else read_tensors(checkpoint, WEIGHTS)
    if model is not None:
        made = _call(model)
    else:
        settings = content.get("model_settings") if isinstance(content, Mapping) else None
        if not isinstance(settings, Mapping) or set(settings) != {
            each.name for each in fields(ModelSettings)
        }:
            raise ConfigError(
                f"{checkpoint} is no checkpoint of gnndrive train, so it does not say which model "
                "it is of: give --model MODULE:FUNCTION too"
            )
        made = ModelSettings(**settings).build()
    if content is not None:
        _fill(made, content, str(checkpoint))
    return made


def _call(name: str) -> Any:
    """What the function of a text such as "mine.models:make" returns."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"--model {name}: write it as MODULE:FUNCTION, such as models:make")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--model {name}: {error}; give a module that Python finds from this folder, and a "
            "function in it that returns the model"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    try:
        return found()
    except TypeError as error:
        raise ConfigError(
            f"--model {name}: {error}; give a function without arguments that returns the model"
        ) from error


def _fill(model: Any, content: Any, path: str) -> None:
    """Give a model the weights of a checkpoint."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"--checkpoint {path} is for a torch module, and --model returned "
            f"{type(model).__name__}: load the weights in the function"
        )
    weights = content
    if isinstance(content, Mapping):
        weights = next((content[name] for name in STATES if name in content), content)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} does not hold the weights of this model ({str(error).splitlines()[0]}): give "
            "the checkpoint of the model that --model makes"
        ) from error

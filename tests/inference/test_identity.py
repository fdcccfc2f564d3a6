"""The checksum of layers differs whenever their results may, and is the same in every process."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE, MessagePassing, SAGEConv

from gnndrive import ConfigError, Store
from gnndrive.inference import infer
from gnndrive.inference.identity import Identity
from tests import forked

SCALE = 2.0


class Conv(MessagePassing):
    """A conv of a user's."""

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
        (scaled(2.0), scaled(3.0)),
        (scaled(torch.ones(2)), scaled(torch.zeros(2))),
        (scaled(torch.ones(2)), scaled(torch.ones(2, dtype=torch.float64))),
        (scaled(np.ones(2)), scaled(np.zeros(2))),
        (scaled({"a": [1]}), scaled({"a": [2]})),
        (scaled(plain), scaled(uses_plain)),
        (partial(2), partial(3)),
        (partial(by=2), partial(by=3)),
        (partial(by=torch.ones(2)), partial(by=torch.zeros(2))),
        (Holder(torch.nn.ReLU()), Holder(torch.nn.Tanh())),
        (Holder(torch.nn.ReLU(), 2), Holder(torch.nn.ReLU(), 3)),
        (Conv(2.0), Conv(3.0)),
        (Conv(2.0).forward, Conv(3.0).forward),
        (GraphSAGE(4, 4, 1, act="relu"), GraphSAGE(4, 4, 1, act="tanh")),
    ],
)  # fmt: skip
def test_another_result_is_another_identity(first: Any, second: Any):
    assert text(first) == text(first)
    assert text(first) != text(second)


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
        Holder(MODULE),
        Holder(MODULE).__call__,
        functools.partial(helped, module=[MODULE]),
        lambda x, e: [MODULE(each) for each in x],
    ],
)
def test_modules_are_found(layer: Any):
    assert Identity([layer]).modules == [MODULE]
    conv = Conv()  # has a list of modules
    assert Identity([conv]).modules == [conv, conv.functions[0]]


def test_a_cycle_ends():
    held: list[Any] = []
    held.append(held)
    assert text(scaled(held)) == text(scaled(held))


def of_all_kinds() -> list[Any]:
    torch.manual_seed(0)
    among = scaled(set("abcdefgh")), lambda x, e: x if x in {"a", "b", "c"} else e
    return [Conv(), uses_plain, Holder(torch.nn.ReLU()), GraphSAGE(4, 4, 2), *among]


def test_it_is_the_same_in_every_process():
    """Also where sets have another order."""
    code = "from tests.inference.test_identity import *; print(text(*of_all_kinds()))"
    ended = forked.run(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{text(*of_all_kinds())}\n"


def test_default_arguments_are_put_in_eval_mode(store: Store):
    convs = [SAGEConv(20, 8), SAGEConv(8, 4)]
    layers = [
        lambda x, e, conv=conv: torch.nn.functional.dropout(conv(x, e), 0.9, conv.training)
        for conv in convs
    ]
    infer(layers, store)
    first = store.tensor("h").clone()
    assert (first != 0).all()
    with torch.no_grad():
        convs[1].lin_l.bias.add_(1)
    with pytest.raises(ConfigError, match="another model"):
        infer(layers, store)


def test_what_cannot_be_named_is_computed_anew(store: Store):
    draw = torch.Generator()
    layers = [lambda x, e: x if draw is None else x + 1]
    with pytest.warns(RuntimeWarning, match="Generator"):
        infer(layers, store)
    with (
        pytest.warns(RuntimeWarning, match="Generator"),
        pytest.raises(ConfigError, match="overwrite=True"),
    ):
        infer(layers, store)
    done: list[int] = []
    with pytest.warns(RuntimeWarning, match="Generator"):
        infer(layers, store, overwrite=True, progress=lambda what, *of: done.append(of[0]))
    assert done

"""What a layer's result depends on: a checksum of its code and of all values that it uses.

A model is its state_dict, and the names, extra_repr, attributes and classes of its modules. A
function is its code, its default arguments, and the values of its closure and of the global names
that it reads: these are followed to the modules, tensors and numbers at their ends. Code is
compared as compiled, because `inspect.getsource` cuts lambdas of several lines, and has no source
for a class of a notebook. Functions and classes of installed packages are their names. What can be
neither followed nor named, such as a random generator, makes the checksum a new one every time: a
result that was made before is never taken for this one's.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import secrets
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive.store.reader import Store

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice, Enum,
    torch.dtype, torch.device, torch.Size, torch.layout, np.dtype, np.generic,
)  # fmt: skip
FOLLOWED = (
    *PLAIN, torch.nn.Module, torch.Tensor, np.ndarray, list, tuple, dict, functools.partial,
    types.FunctionType, types.MethodType,
)  # fmt: skip
HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class Identity:
    """Follows what models and functions are made of.

    Attributes:
        modules: the modules among them and among what they use, each once.
        unnamed: the classes of what could not be named.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self.modules: list[torch.nn.Module] = []
        self.unnamed: list[str] = []
        self._digest = hashlib.sha256()
        self._known: dict[int, tuple[int, Any]] = {}
        try:
            for each in layers:
                self._follow(each)
        except RecursionError:
            self.unnamed.append("long chain of objects")

    @functools.cached_property
    def text(self) -> str:
        """The checksum."""
        return secrets.token_hex(32) if self.unnamed else self._digest.hexdigest()

    def _say(self, *parts: Any) -> None:
        self._digest.update(repr(parts).encode(errors="backslashreplace"))

    def _follow(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self._say(type(value).__qualname__, value)
        elif id(value) in self._known:
            self._say("again", self._known[id(value)][0])
        else:
            self._known[id(value)] = len(self._known), value  # the value, so that its id stays
            self._follow_new(value)

    def _follow_new(self, value: Any) -> None:
        self._say(type(value).__qualname__)
        if isinstance(value, torch.nn.Module):
            self._module(value)
        elif isinstance(value, torch.Tensor | np.ndarray):
            self._tensor(value)
        elif isinstance(value, type | types.ModuleType):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, Store):
            self._say(value.identity)
        elif isinstance(value, os.PathLike):
            self._say(os.fspath(value))
        elif (parts := _parts_of(value)) is not None:
            for each in parts:
                self._follow(each)
        else:
            self.unnamed.append(type(value).__qualname__)

    def _module(self, module: torch.nn.Module) -> None:
        known = {part for each in self.modules for part in each.modules()}
        if module not in known:
            self.modules.append(module)
        for name, part in module.named_modules():
            self._known.setdefault(id(part), (len(self._known), part))
            self._say(name, type(part).__qualname__, part.extra_repr())
            self._follow(type(part))
            for attribute, value in sorted(vars(part).items()):
                if attribute in HOOKS:
                    self._attribute(list(value.values()))
                elif attribute[0] != "_" and attribute != "training":
                    self._say(attribute)
                    self._attribute(value)
        for name, value in sorted(module.state_dict().items()):
            self._say(name)
            self._follow(value)

    def _attribute(self, value: Any) -> None:
        """Follow a module's attribute; what cannot be named there is its class alone."""
        if isinstance(value, FOLLOWED) or not _is_installed(type(value)):
            count = len(self.unnamed)
            self._follow(value)
            del self.unnamed[count:]
        else:
            self._say(type(value).__qualname__)

    def _tensor(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            self._follow(value.tolist())
            return
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type == "meta":
                self.unnamed.append(type(value).__qualname__)
                return
            flat = value.detach().cpu().contiguous().reshape(-1)
            content = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        else:
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self._say(str(value.dtype), list(value.shape))
        self._digest.update(content.data)

    def _class(self, value: Any) -> None:
        """A class is its name, and one of the user's also the code of its functions."""
        self._say(getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__))
        if isinstance(value, type) and not _is_installed(value):
            for name, part in sorted(vars(value).items()):
                inner = getattr(part, "__func__", getattr(part, "fget", part))
                plain = isinstance(inner, PLAIN) and not name.startswith("__")
                if plain or isinstance(inner, types.FunctionType):
                    self._say(name)
                    self._attribute(inner)
            for base in value.__bases__:
                self._follow(base)

    def _function(self, function: types.FunctionType) -> None:
        self._say(function.__module__, function.__qualname__)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._follow(value)
        for cell in function.__closure__ or ():
            try:
                self._follow(cell.cell_contents)
            except ValueError:  # it is empty
                self._say("empty")
        if _is_installed(function):
            return
        self._follow(function.__code__)
        names = _names_of(function.__code__)
        for name in sorted(_globals_of(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            self._say(name)
            self._follow(value)
            if isinstance(value, types.ModuleType) and not _is_installed(value):
                for used in sorted(names & vars(value).keys()):
                    self._say(used)
                    self._follow(vars(value)[used])

    def _code(self, code: types.CodeType) -> None:
        self._say(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for value in code.co_consts:
            self._follow(value)


def _parts_of(value: Any) -> Iterable[Any] | None:
    """What a value consists of; None: unknown."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return [value.__qualname__, value.__self__]
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType | np.ufunc):
        return [value.__name__]
    if isinstance(value, set | frozenset):
        plain = all(isinstance(each, PLAIN) for each in value)
        return sorted(map(repr, value)) if plain else None
    held = getattr(value, "__dict__", None)
    if not isinstance(value, dict | list | tuple) and not isinstance(held, dict):
        return None
    inside: Iterable[Any] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list | tuple):
        inside = value
    return [type(value), *inside, *sorted((held or {}).items())]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and the code inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _globals_of(code: types.CodeType) -> set[str]:
    """The names of globals that a function's code reads; an attribute may have the name of one that
    it does not use."""
    return {
        each.argval
        for part in _codes(code)
        for each in dis.get_instructions(part)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _names_of(code: types.CodeType) -> set[str]:
    """The names of globals and attributes that a function's code mentions."""
    return {name for part in _codes(code) for name in part.co_names}


def _is_installed(value: Any) -> bool:
    """Whether a function, class or module is Python's, an installed package's or ours."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if name is None or name.partition(".")[0] in ("gnndrive", *sys.stdlib_module_names):
        return name != "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return name in sys.builtin_module_names
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or path.is_relative_to(sysconfig.get_path("stdlib"))

"""Small values of a whole graph, or of a type, as JSON in store.json: `data.name = "Cora"`.

Values that JSON has are there as they are. All others are objects with one key that says what they
are: {"tuple": […]}, {"dict": [[key, value], …]}, {"text": "…"} (text that may not be printed),
{"float": "nan"}, {"tensor": [dtype, shape, base64]}, {"numpy": [dtype, shape, base64]}.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gnndrive.common.checked_json import is_plain_text
from gnndrive.common.errors import ConfigError
from gnndrive.store.convert import as_rows, is_sparse, to_storage
from gnndrive.store.format import dtype_name, storage_dtype

VALUE_BYTES_MAX = 64 << 10


def encode(value: Any) -> Any:
    """A value as JSON: None, a number, text, a dense tensor, a numpy array or number, or a list,
    tuple or dict of such values.

    Raises:
        ConfigError: it is of another kind, or its JSON takes more than `VALUE_BYTES_MAX`.
    """
    try:
        found = _encode(value)
        size = len(json.dumps(found))
    except (ValueError, RuntimeError) as error:  # ConfigError; endless lists; tensors without data
        raise ConfigError(f"a store cannot hold the value ({error}): leave it out") from None
    if size > VALUE_BYTES_MAX:
        raise ConfigError(f"the value takes {size:,} bytes: a store holds {VALUE_BYTES_MAX:,}")
    return found


def _encode(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"float": str(value)}
    if kind is str:
        return value if is_plain_text(value) else {"text": json.dumps(value)}
    if kind is list:
        return [_encode(each) for each in value]
    if kind is tuple:
        return {"tuple": [_encode(each) for each in value]}
    if kind is dict:
        return {"dict": [[_encode(key), _encode(each)] for key, each in value.items()]}
    if isinstance(value, torch.Tensor) and not is_sparse(value):
        return {"tensor": _array(value.detach().cpu())}
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.name == "bfloat16":  # which numpy does not have itself
            raise ConfigError("it is a numpy array of bfloat16")
        return {"numpy": _array(np.asarray(value))}
    raise ConfigError(f"it is a {kind.__name__}")


def _array(array: Any) -> list[Any]:
    if array.nbytes > VALUE_BYTES_MAX:
        raise ConfigError(f"it takes {array.nbytes:,} bytes")
    dtype = dtype_name(array.dtype)
    stored = to_storage(as_rows(array.reshape(-1), "it"), dtype, "it")
    content = stored.astype(stored.dtype.newbyteorder("<"), copy=False).tobytes()
    return [dtype, list(array.shape), base64.b64encode(content).decode("ascii")]


def decode(found: Any) -> Any:
    """The value that `encode` turned into JSON, perhaps a stranger's; ValueError: it is none."""
    try:
        return _decode(found)
    except (TypeError, ConfigError, RuntimeError) as error:
        raise ValueError(f"is no value of a graph ({error})") from None


def _decode(found: Any) -> Any:
    if isinstance(found, list):
        return [_decode(each) for each in found]
    if not isinstance(found, Mapping):
        return found
    ((kind, content),) = found.items()
    if kind == "float":
        return float(content)
    if kind == "text":
        return str(json.loads(content))
    if kind == "tuple":
        return tuple(_decode(each) for each in content)
    if kind == "dict":
        return {_decode(key): _decode(value) for key, value in content}
    if kind not in ("tensor", "numpy"):
        raise ValueError(f"has the kind {kind!r}")
    name, shape, text = content
    flat = np.frombuffer(base64.b64decode(text, validate=True), storage_dtype(name)).copy()
    if kind == "numpy":
        return flat.reshape(shape) if shape else flat.reshape(())[()]
    tensor = torch.from_numpy(flat)
    return (tensor.view(torch.bfloat16) if name == "bfloat16" else tensor).reshape(shape)

"""Tensors on the fake GPUs: host tensors behind `__torch_dispatch__`.

To torch's C++ they are on the host, so autograd and all operations work. To Python they are on
"cuda:N". Each operation is carried out at once, counted as a launch on the thread's current stream
of the tensors' device, and its result lands in memory of that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from gnndrive.testing.fake_cuda.machine import FakeCuda
from gnndrive.testing.fake_cuda.memory import Block

SYNCHRONIZES = {
    "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2",
    "unique_dim", "unique_consecutive",
}  # fmt: skip
TAKES_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
BY_ROWS = {"index_select", "index_copy_"}
LAUNCH_S, HOST_BYTES_PER_S, DEVICE_BYTES_PER_S = 3e-6, 25e9, 1e12
CREATE = (
    "empty", "zeros", "ones", "full", "tensor", "arange", "rand", "randn", "randint", "randperm",
    "eye", "linspace", "as_tensor", "scalar_tensor", "empty_strided", "empty_like", "zeros_like",
    "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
)  # fmt: skip
_machine: FakeCuda  # the fake in use
_moves_parsed: Any = torch._C._nn._parse_to


def use_machine(machine: FakeCuda) -> None:
    """Have tensors belong to this fake."""
    global _machine
    _machine = machine


class CudaTensor(torch.Tensor):
    """A tensor on a fake GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", block_of(self).device))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})

    def get_device(self) -> int:
        """The device's number."""
        return block_of(self).device

    def cpu(self, memory_format: Any = None) -> torch.Tensor:
        """A copy in host memory."""
        return to_host(self)

    def numpy(self, *, force: bool = False) -> Any:
        """Refused, as torch refuses it."""
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a tensor of the host, which `map_location="cpu"` makes of a GPU's."""
        return plain(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __array__(self, *given: Any, **named: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        """Its values."""
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """Keep its memory until the stream's work up to its end has ended."""
        block_of(self).recorded.add(stream)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<tensor {list(self.shape)} {self.dtype} on {self.device}>"


def block_of(tensor: torch.Tensor) -> Block:
    """The memory of a tensor on a fake GPU."""
    block = _machine.memory.find(tensor.untyped_storage().data_ptr())
    assert block is not None, "a tensor of a fake GPU that is gone"
    return block


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as a host tensor."""
    with torch._C._DisableTorchDispatch():
        return tensor.detach().as_subclass(torch.Tensor)


def allocate(like: torch.Tensor, device: int) -> torch.Tensor:
    """A tensor with the storage size and strides of a host or meta tensor, not yet written."""
    with torch._C._DisableTorchDispatch():
        nbytes = like.untyped_storage().nbytes()
        base = torch.from_numpy(_machine.allocate(nbytes, device))
        out = torch.empty(0, dtype=like.dtype)
        out.set_(base.untyped_storage(), like.storage_offset(), like.shape, like.stride())
        made: torch.Tensor = torch.Tensor._make_subclass(CudaTensor, out)
        return made


def adopt(result: torch.Tensor, device: int) -> torch.Tensor:
    """A result on the host, moved to memory of the device."""
    out = allocate(result, device)
    with torch._C._DisableTorchDispatch():
        nbytes = result.untyped_storage().nbytes()
        into, source = (
            torch.empty(0, dtype=torch.uint8).set_(each.untyped_storage(), 0, (nbytes,), (1,))
            for each in (out, result)
        )
        into.copy_(source)
    return out


# ---- operations


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out an operation on tensors of which one at least is on a fake GPU."""
    name = func._schema.name.removeprefix("aten::")
    if name == "copy_":
        return copy(*args[:2], *args[2:3], **kwargs)
    given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    device = _check_devices(given, name)
    with torch._C._DisableTorchDispatch():
        results = func(*args, **kwargs)
    storages = [each.untyped_storage() for each in given]
    inputs = {storage.data_ptr() for storage in storages if storage.nbytes()}
    made = [
        each
        for each in tree_flatten(results)[0]
        if type(each) is torch.Tensor and each.untyped_storage().data_ptr() not in inputs
    ]
    written = list(_written(func, args, kwargs))
    stream = _machine.current_stream(device)
    moved = {id(each): adopt(each, device) for each in made}
    if not name.startswith(("empty", "new_empty")) and (made or written or name in SYNCHRONIZES):
        reads = [
            (block_of(each), _rows(name, args, each))
            for each in given
            if isinstance(each, CudaTensor)
        ]
        writes = [(block_of(each), _rows(name, args, each)) for each in written]
        writes += [(block_of(each), None) for each in moved.values()]
        nbytes = sum(each.numel() * each.itemsize for each in (*given, *made))
        _machine.launch(name, stream, reads, writes, LAUNCH_S + nbytes / DEVICE_BYTES_PER_S, nbytes)
    if name in SYNCHRONIZES:
        stream.synchronize()

    def wrap(each: Any) -> Any:
        if type(each) is not torch.Tensor:
            return each
        if id(each) in moved:
            return moved[id(each)]
        return torch.Tensor._make_subclass(CudaTensor, each)  # a view of an input

    return tree_map(wrap, results)


def _check_devices(given: list[torch.Tensor], name: str) -> int:
    devices = {block_of(each).device for each in given if isinstance(each, CudaTensor)}
    hosts = [each for each in given if not isinstance(each, CudaTensor) and each.dim()]
    found = [f"cuda:{each}" for each in sorted(devices)]
    if hosts and name not in TAKES_HOST_INDICES:
        found.append("cpu")
    if len(found) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{found[0]} and {found[1]}! (in {name})"
        )
    (device,) = devices
    return device


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from (each for each in tree_flatten(value)[0] if isinstance(each, CudaTensor))


def _rows(name: str, args: Any, tensor: torch.Tensor) -> Any:
    """Offsets in bytes of the rows of `tensor` that are used, or None for all bytes."""
    if name not in BY_ROWS or tensor is not args[0] or args[1] != 0:
        return None
    offsets = tensor.storage_offset() + plain(args[2]).numpy().astype(np.int64) * tensor.stride(0)
    return offsets * tensor.itemsize


# ---- copies


def copy(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between the host and the devices, as `Tensor.copy_`."""
    ends = [block_of(each) if isinstance(each, CudaTensor) else None for each in (into, source)]
    with torch._C._DisableTorchDispatch():
        into.copy_(source)
    _copied(ends[0], ends[1], source, non_blocking, into.numel() * into.itemsize)
    return into


def _copied(
    into: Block | None, source: Block | None, host: torch.Tensor, non_blocking: bool, nbytes: int
) -> None:
    """Count a copy whose bytes have been copied already."""
    device = (source or into).device  # type: ignore[union-attr]
    stream = _machine.current_stream(device)
    what = "HtoD" if source is None else "DtoH" if into is None else "DtoD"
    if source is None and not host.is_pinned():
        what += " pageable"
    rate = DEVICE_BYTES_PER_S if what == "DtoD" else HOST_BYTES_PER_S
    across = into is not None and into.device != device
    if across:
        other = _machine.current_stream(into.device)  # type: ignore[union-attr]
        stream.wait_stream(other)
    reads = [] if source is None else [(source, None)]
    writes = [] if into is None else [(into, None)]
    _machine.launch(what, stream, reads, writes, LAUNCH_S + nbytes / rate, nbytes, "copy", across)
    if across:
        other.wait_stream(stream)
    if not non_blocking and what != "DtoD":
        stream.synchronize()


def to_host(tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A copy in host memory."""
    out = plain(tensor).clone()
    _copied(None, block_of(tensor), out, non_blocking, out.numel() * out.itemsize)
    return out


def to_device(tensor: torch.Tensor, device: int, non_blocking: bool = False) -> torch.Tensor:
    """A copy on a device."""
    source = block_of(tensor) if isinstance(tensor, CudaTensor) else None
    with torch.no_grad():
        whole = plain(tensor)
        if not (tensor.numel() and tensor.untyped_storage().nbytes() == tensor.nbytes):
            whole = whole.clone()
        out = adopt(whole, device)
    _copied(block_of(out), source, tensor, non_blocking, out.numel() * out.itemsize)
    return out


def moving(original: Any) -> Any:
    """`Tensor.to` for all tensors, made from torch's own."""

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copies = kwargs.pop("copy", False)
        device, dtype, non_blocking, _memory_format = _moves_parsed(*args, **kwargs)
        there = self.device
        if device is not None and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", _machine.current_device())
        if device is None or device == there or "cuda" not in (device.type, there.type):
            if dtype is None:
                return self.clone() if copies else self
            return original(self, dtype=dtype, copy=copies)
        if device.type == "cpu":
            out = to_host(self, non_blocking)
        else:
            _machine.check_device(device.index)
            out = to_device(self, device.index, non_blocking)
        return out if dtype is None else original(out, dtype=dtype)

    return to


def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False) -> Any:
    """`Tensor.cuda`."""
    return self.to(torch.device("cuda", _machine.index_of(device)), non_blocking=non_blocking)


def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`Tensor.pin_memory`."""
    if isinstance(self, CudaTensor):
        raise RuntimeError("cannot pin a tensor on a GPU: only dense CPU tensors can be pinned")
    return self if self.is_pinned() else _machine.pin(self)


def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    """`Tensor.is_pinned`."""
    host = not isinstance(self, CudaTensor)
    return host and bool(_machine.host.is_pinned(self.untyped_storage().data_ptr()))


def creating(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch that makes a tensor, which may be on a fake GPU."""

    def create(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        where = None if device is None else torch.device(device)
        if where is None or where.type != "cuda":
            if kwargs.pop("pin_memory", False):
                return pin_memory(create(*args, device=device, **kwargs))
            return original(*args, **kwargs, **({} if device is None else {"device": device}))
        index = _machine.index_of(where)
        grad = kwargs.pop("requires_grad", False)
        if name == "empty":
            made = allocate(original(*args, **kwargs, device="meta"), index)
        elif name in ("tensor", "as_tensor"):
            made = original(*args, **kwargs).to(torch.device("cuda", index))
        else:
            host = [plain(each) if isinstance(each, CudaTensor) else each for each in args]
            made = adopt(original(*host, **kwargs), index)
            stream = _machine.current_stream(index)
            _machine.launch(name, stream, [], [(block_of(made), None)], LAUNCH_S, made.nbytes)
        return made.requires_grad_() if grad else made

    return create


# ---- memory of other processes


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """`torch.multiprocessing.reductions.reduce_tensor` of a whole block of a fake GPU."""
    exported = _machine.memory.export(tensor.untyped_storage().data_ptr())
    counter = exported.path, exported.counter
    return rebuild_cuda_tensor, (
        CudaTensor, tensor.size(), tensor.stride(), tensor.storage_offset(), None, tensor.dtype,
        block_of(tensor).device, exported, tensor.nbytes, 0, False, *counter, b"event", True,
    )  # fmt: skip


def rebuild_cuda_tensor(
    cls: Any, size: Any, stride: Any, offset: int, storage: Any, dtype: torch.dtype, device: int,
    exported: Any, nbytes: int, begin: int, grad: bool, counter: bytes, at: int, event: bytes,
    waits: bool,
) -> torch.Tensor:  # fmt: skip
    """`torch.multiprocessing.reductions.rebuild_cuda_tensor`."""
    assert not waits, "CUDA may refuse an event of another GPU, and waits forever if it is gone"
    base = torch.from_numpy(_machine.open(exported, device, (counter, at)))
    with torch._C._DisableTorchDispatch():
        out = torch.empty(0, dtype=dtype).set_(base.untyped_storage(), offset, size, stride)
        made: torch.Tensor = torch.Tensor._make_subclass(CudaTensor, out)
        return made

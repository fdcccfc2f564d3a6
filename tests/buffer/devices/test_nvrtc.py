"""NVRTC, the compiler that CuPy calls, takes the kernel for every unit and every GPU: it needs no
GPU itself."""

from __future__ import annotations

import ctypes
import re
from importlib import metadata
from typing import Any

import pytest

from gnndrive.buffer.devices._kernels import LOADS, NAME, UNITS, code
from tests.soak import product

GPUS = ("sm_80", "sm_90", "sm_100")


class Nvrtc:
    """The library of the wheel nvidia-cuda-nvrtc."""

    def __init__(self) -> None:
        paths = [
            str(file.locate())
            for file in metadata.files("nvidia-cuda-nvrtc") or ()
            if re.fullmatch(r"libnvrtc(-builtins)?\.so\.[\d.]+", file.name)
        ]
        builtins, library = sorted(paths)  # the first is what the second opens
        ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
        self._lib = ctypes.CDLL(library)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def __call__(self, source: str, architecture: str) -> tuple[bytes, str]:
        """A cubin for sm_90, or PTX for compute_90, and messages, with the options of CuPy."""
        program = ctypes.c_void_p()
        made = ctypes.byref(program), source.encode(), b"move_rows.cu", 0, None, None
        self._check(self._lib.nvrtcCreateProgram(*made))
        options = [f"-arch={architecture}", "-std=c++17"]
        given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        failed = self._lib.nvrtcCompileProgram(program, len(options), given)
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode()
        assert not failed, log
        return self._text(program, "CUBIN" if architecture.startswith("sm_") else "PTX"), log

    def _text(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, result: int) -> None:
        assert result == 0, self._lib.nvrtcGetErrorString(result)


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return Nvrtc()


@product("unit,gpu", list(UNITS), GPUS)
def test_the_kernel_compiles(nvrtc, unit, gpu):
    cubin, log = nvrtc(code(unit), gpu)
    assert cubin.startswith(b"\x7fELF")
    assert NAME.encode() in cubin
    assert not log


def test_all_loads_come_before_the_first_store(nvrtc):
    """What each thread reads ahead is in registers, not in memory of its own, and reads take
    the read-only path (.nc)."""
    text, _ = nvrtc(code(16), "compute_80")
    ptx = text.decode()
    assert ".local" not in ptx
    moves = re.findall(r"\b(ld|st)\.global(\.nc)?\.v4", ptx)
    assert all(nc for what, nc in moves if what == "ld")
    order = "".join(what[0] for what, _ in moves)
    assert "l" * LOADS + "s" * LOADS in order

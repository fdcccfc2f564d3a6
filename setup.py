"""What pyproject.toml cannot say: cffi builds the C core, and its wheel is tagged abi3."""

from setuptools import setup

setup(
    cffi_modules=["build_ext.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

"""Samplers: they turn the seeds of a batch into a `Sample`.

To add one, write one file here with a subclass of `Sampler` (`base.py`) that has a `name` and a
class method `make(context: SamplerContext)`. `_native.py` calls the C sampler for all of them.
`tests/sampling/samplers/test_conformance.py` holds every plug-in of the kind to its contract.
"""

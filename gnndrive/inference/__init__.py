"""Inference over all nodes: run a model layer by layer, with hidden states as arrays on disk.

`infer` is `gnndrive.infer`. The other modules: `layers.py` (what a model's layers are),
`degrees.py` (normalisation by the whole graph), `targets.py` and `blocks.py` (the order of the
work), `row_cache.py` (the rows in memory), `subgraphs.py` (a batch), `layer_pass.py` (one layer),
`run.py`, `progress.py` and `outcome.py` (what is on disk), `memory.py` (how much is used for what).
"""

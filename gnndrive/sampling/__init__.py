"""Sampling: seeds become samples, the first stage of the pipeline (GNNDrive §4.1).

- `schedules/` say which seeds come next, in windows of batches.
- `samplers/` turn the seeds of a batch into a sample, in a worker thread.
- `topologies/` give samplers the adjacency: in memory, memory-mapped, or read from disk.
- `graph.py` opens the topologies of a store and the engine that reads for them.
- `window_graph.py` is the graph of a mega-batch, and `load_window.py` reads it.
- `rounds.py` holds what sampling threads wait with: stop token, lock, combined fetch.

Schedules, samplers and topologies are plug-ins: one new file in the folder, with one class that has
a `name` and a class method `make(context)`; see `gnndrive/common/plugins.py`.
"""

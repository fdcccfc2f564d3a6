"""The host service: one feature buffer and one topology for all ranks of a host (GNNDrive §4.4).

A process of its own extracts for the ranks of a loader: it owns the ring, the slot tables, the
feature buffer, the adjacency and the labels. The pipeline is cut at its queues: ranks sample,
gather and train, the service extracts. Memory is shared through memfds, so that a rank gathers
straight out of the feature buffer; requests and answers are small messages on a Unix socket.

In the service, from the outside to the inside:

1. `service.py` accepts clients, finds their group and passes their messages on; `run.py` runs it,
   in a process that `__main__.py` starts without PyTorch;
2. `budget.py` promises memory, `graphs.py` reads the graph, `group_buffer.py` makes feature
   buffers;
3. `group.py` is the ranks of one loader: it announces, extracts and releases their batches;
4. `turns.py` keeps their batches in the order of their turns (rule 15), and `window_graphs.py`
   the graphs of their windows.

In a rank: `start.py` starts a service, `connection.py` connects to it, and `remote_buffer.py`
stands where the feature buffer stands. Both sides use `messages.py`, `wire.py` and `arena.py`.

`gnndrive serve` runs the same service for several loaders of a user, by name (`names.py`).
`connect.py` opens its store, and `connection.ask` asks it what it does (`report.py`).
"""

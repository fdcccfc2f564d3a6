"""The exchange: the feature buffers of all ranks act as one (LSM-GNN, section 4.1).

For ranks that cannot share memory, such as those of several hosts. Each row of a table has an owner
(`owned_rows.py`), which alone reads it and keeps it. A rank asks the owners for a batch's rows
(`exchanged_buffer.py`); an owner extracts them in the order of the ranks' turns, as the host
service does, copies them (`slot_copies.py`, if a GPU has the slots), releases the slots and sends
the copies (`share.py`). So W ranks have the cache of W buffers, and a row that several need in one
step is read once. Over a slow net a rank may keep rows of others (`remote_rows.py`).

A lease waits for disk and copies alone, never for another rank or a user: a batch joins only when
there is memory for its rows here, and the thread that takes what arrives (`links.py`) waits for
nobody. Else rank A's slots could wait for B to take rows, and B for A's user.
"""

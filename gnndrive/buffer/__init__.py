"""The feature buffer (GNNDrive §4.2): which rows have a slot, which batches hold them, which leave.

The pipeline's extract stage asks for a batch's rows and gets a `Lease`. The way of a batch:

1. `feature_buffer.py`, the gate: a batch joins the admission queue (`admission_queue.py`) and is
   admitted when the rows that it misses fit into free and standby slots; a large one is admitted in
   parts (`partial_admission.py`).
2. `slot_table.py` maps rows to slots: the C core's mapping table, reverse map, reference counts and
   standby list.
3. `fetch_queue.py` fetches the missing rows from a tier (`gnndrive/disk/tiers/`) and makes them
   valid once the device has committed them.
4. The `Lease` gathers the rows and releases the slots, which is the only access to slots outside
   this folder.

A new policy, which chooses the standby slots that are reused first, is one file in `policies/`; a
new place for slots is one file in `devices/`. Both are found by their file's name.
"""

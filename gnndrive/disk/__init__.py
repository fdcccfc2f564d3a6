"""Disk: reads rows from files, and writes them, past the page cache (GNNDrive §4.2).

- `layouts/` know where rows lie on disk, and plan the reads of missing rows.
- `engines/` carry out planned reads and writes: with io_uring, with threads, or simulated for
  tests.
- `tiers/` are what lies below the feature buffer.
- `read_job.py` is the `ReadJob` that a layout plans, an engine carries out and a caller awaits.
- `block_file.py` is a file of blocks of rows that are written, read and written over.
- `row_reader.py` reads rows on demand, outside of a loader.
- `distribution.py` copies the rows of a table to the batches that need them, in one pass.
- `sequential_reader.py` reads a whole file of numbers in long direct reads.

Layouts, engines and tiers are plug-ins: one new file in the folder, with one class that has a
`name` and a class method `make(context)`; see `gnndrive/common/plugins.py`.
"""

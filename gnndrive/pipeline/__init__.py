"""The pipeline (GNNDrive §4.1): sample → extract → train → release.

`loader/runtime.py` makes an `Epoch` (`epoch.py`), which holds what the stages share, and runs
`run_epoch` (`run.py`) in the loop thread; iterators take batches from the epoch's `OutputQueue`.
docs/architecture.md follows a batch through the stages `sample.py`, `extract.py` and `train.py`,
and lists the protocol's rules 1 to 18; tests/pipeline/test_rules.py proves each.
"""

"""The pipeline (GNNDrive §4.1): sample → extract → train → release.

`loader/runtime.py` makes an `Epoch` and runs `run_epoch` in the loop thread; iterators take
batches from the epoch's `OutputQueue`. A batch goes through the modules in this order:

1. `sample.py` draws seeds, samples them in a worker thread, announces the batch's rows to the
   feature buffer and puts a `Sampled` into the extracting queue;
2. `extract.py` takes it, joins the feature buffer's admission queue, waits for the lease and its
   rows and puts an `Extracted` into the training queue;
3. `train.py` gathers the rows in a worker thread, puts the batch into the output queue and the
   lease into the releasing queue; the release stage, there too, waits for the gather's fence and
   releases the lease's slots.

`epoch.py` holds what the stages share; `run.py` starts them and cleans up behind them.
The stages mark each batch's record, from which `batch_times.py` makes statistics and `timeline.py`
a trace.

docs/architecture.md lists the protocol's rules 1 to 14; tests/pipeline/test_rules.py proves each.
"""

"""The pipeline (GNNDrive §4.1): sample → extract → train → release.

`loader/runtime.py` makes an `Epoch` and runs `run_epoch` in the loop thread; iterators take
batches from the epoch's `OutputQueue`. A batch goes through the modules in this order:

1. `sample.py` draws seeds, samples them in a worker thread and puts a `Sampled` into the extracting
   queue;
2. `extract.py` takes it, joins the feature buffer's admission queue, waits for the lease and its
   rows and puts an `Extracted` into the training queue;
3. `train.py` gathers the rows in a worker thread, puts the batch into the output queue and the
   lease into the releasing queue;
4. `release.py` waits for the gather's fence and releases the lease's slots.

`epoch.py` holds what the stages share; `run.py` starts them and cleans up behind them.
"""

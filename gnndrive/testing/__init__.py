"""Fakes for tests of the pipeline, and of plug-ins outside the package; they ship with gnndrive.

- `faults`: faults of the simulated disk, and the settings of its engine.
- `loop`: an event loop with a virtual clock, which raises `Deadlock` instead of hanging.
- `fake_cuda`: GPUs that do not exist, in the place of torch.cuda.
- `simulation`: the whole pipeline on a simulated disk; every row that it delivers is checked.
"""

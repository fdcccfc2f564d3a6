"""Code that all other folders use; it imports none of them.

- `errors.py`: the exceptions; `records.py`: the records that one part hands to another.
- `ffi.py`: the C core, and the only module that imports it; `plugins.py`: finds plug-ins by name.
- `array_pool.py`: recycles the memory of batches; `memory.py`: sizes, free memory, and
  returning what was freed to the system.
- `checked_json.py`: reads JSON and YAML of strangers.
- `io/`: long reads and writes past the page cache, and small files that exist whole or not at all.
- `imports.py`: imports PyTorch later, or in less time; `duration.py`: seconds in words.
- `loop_thread.py`: a thread that runs an event loop.
"""

import sys

if not sys.platform.startswith("linux"):  # here, because every other module imports this folder
    raise ImportError(
        "gnndrive runs on Linux only, because it reads with io_uring and O_DIRECT, and this is "
        f"{sys.platform}: use it on Linux, in WSL 2 or in a Linux container"
    )

"""Does the ring reach the disk's speed, and does planning beat one request a row?

usage: python bench/io.py --filename FILE --bs 4k --iodepth 128 --runtime 3 --against-fio --runs 5
       python bench/io.py --rows STORE --share 0.05 --against-fio --runs 5

The same as `gnndrive bench io`; options have fio's names, `--help` lists them. Nothing is written.
"""

from __future__ import annotations

import sys

from gnndrive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "io", *sys.argv[1:]]))

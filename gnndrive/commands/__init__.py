"""What each command of `gnndrive` does; `gnndrive/cli.py` says how it is called."""

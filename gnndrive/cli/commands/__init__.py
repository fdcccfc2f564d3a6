"""What each command of `gnndrive` does; `gnndrive/cli/main.py` says how it is called."""

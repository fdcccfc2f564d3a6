"""The commands of `gnndrive`; `gnndrive/cli/main.py` imports the one that is called."""

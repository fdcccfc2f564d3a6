"""The work of each command of `gnndrive`; `gnndrive/cli/main.py` declares their options."""

"""How much memory goes where, decided before the first read."""

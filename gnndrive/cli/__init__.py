"""The command line: its commands, what they measure and how they report."""

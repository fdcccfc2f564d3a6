"""The command line: commands, measurements and reports."""

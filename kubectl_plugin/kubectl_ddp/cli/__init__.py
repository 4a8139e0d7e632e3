"""Command line: a file per command or family of commands, which connects flags to functions.

All decisions are made in other packages.
"""

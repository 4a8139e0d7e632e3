"""Command line: one file per command, which connects flags to functions. All decisions are made in other packages."""

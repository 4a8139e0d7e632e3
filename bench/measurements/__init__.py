"""One measurement per module: what it takes, its bars."""

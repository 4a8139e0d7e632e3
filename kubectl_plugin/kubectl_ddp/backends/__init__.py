"""Places where jobs run: a cluster or this machine."""

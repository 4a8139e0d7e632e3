"""Free capacity of a place by machine, kind of GPU and queue, as its objects show it. Pure functions."""

"""Free capacity of a place by machine, kind of GPU and queue, and the jobs that fit there now. Pure functions."""

"""How a worker ended: exit codes, the reason of a failure, and the final report."""

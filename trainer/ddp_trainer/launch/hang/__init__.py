"""Hangs of ranks: watchdog, snapshots of all ranks, NCCL's report, and the page that serves them."""

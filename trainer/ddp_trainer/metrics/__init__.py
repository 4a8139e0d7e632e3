"""Metrics of a training job: every rank, also one that hangs or has died.

::

    rank ──▶ board ──▶ aggregator ──▶ Prometheus

A rank writes doubles into a file that it has mapped into memory, its *board*; so does the launcher. One small process
per pod, the *aggregator*, reads all boards whenever it is scraped. A rank that hangs, holds the GIL or is gone cannot
answer a scrape, but its board still can, and a process that is started again finds its counters where it left them.

Steps of a script that knows nothing of this are counted by :mod:`ddp_trainer.metrics.record.autolog`, which the
launcher lets into its workers. What only the script knows takes three lines::

    from ddp_trainer.metrics import attach

    log = attach.log()
    for batch in loader:
        ...
        log(loss=loss, tokens=batch.numel())

Without ``$DDP_METRICS_DIR``, which the launcher sets, all of this does nothing. Nothing here raises into training.
"""

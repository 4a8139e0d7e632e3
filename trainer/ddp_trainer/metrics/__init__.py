"""Metrics of a training job, available for every rank, including ranks that hang or have died.

::

    rank ──▶ metrics file ──▶ aggregator ──▶ Prometheus

A *metrics file* is a file of float64 values, mapped into the memory of its writer: a rank or the launcher. The
*aggregator* is one small process per pod that reads all metrics files at each scrape. A rank that hangs, holds the GIL
or has ended cannot answer a scrape, but its metrics file remains readable. A restarted process continues its counters
from the metrics file.

:mod:`ddp_trainer.metrics.record.autolog` counts the steps of a script that does not report them. The launcher loads it
into its workers. A script reports its own values in one line::

    from ddp_trainer.metrics import attach

    for batch in loader:
        ...
        attach.log(loss=loss, tokens=batch.numel(), val_accuracy=0.93)

Without ``$DDP_METRICS_DIR``, which the launcher sets, the package does nothing. No error in it reaches the training.
"""

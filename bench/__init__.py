"""Measurements of this project: one module each in ``measurements``.

::

    python -m bench --list              lists all measurements, with a summary each
    python -m bench NAME [--quick]      measures, and prints one line of JSON on stdout

``workloads`` holds the loops that are measured, ``drivers`` what starts, watches and harms processes and pods, and
``peers`` the same work by other libraries.

A measurement is a module with two names::

    '''What is measured, against what, and why it can be trusted.'''

    from bench.harness import Options, Report, interleaved

    SUMMARY = "how soon a job trains again after a worker is killed"

    def measure(options: Options) -> Report:
        rounds = 3 if options.quick else 30
        times = interleaved({"ours": kill_ours, "stock": kill_stock}, rounds=rounds, options=options)
        report = Report()
        ours = report.figure("worker_kill_seconds", times["ours"])
        report.baseline("stock_worker_kill_seconds", times["stock"])
        report.at_most("median seconds from SIGKILL to the next committed step", ours.median, 4.0)
        return report

The rules, which the harness keeps where it can:

- A name ends in its unit (:data:`bench.harness.UNITS`), and units are base units: seconds, bytes, ratios from 0 to 1.
- Many values become four figures: ``worker_kill_p50_seconds``, ``…_min_seconds``, ``…_max_seconds``, ``…_count``.
- What is compared is measured in the same run, in turns, and judged by the ratio where noise could decide
  (:func:`bench.harness.interleaved`, :func:`bench.harness.paired_ratio`).
- stdout is the JSON line. While a measurement runs, file descriptor 1 leads to stderr, for its children too.
- Progress goes through ``options.progress``; chance comes from ``options.random``; heavy imports stand inside
  ``measure``, so that ``--list`` stays quick.
- A measurement that is impossible here raises :class:`bench.harness.CannotMeasure`; the message names what is missing.

Exit codes: 0 all bars hold, 1 a bar does not, 2 no such measurement or it cannot be taken here, 130 interrupted.
"""

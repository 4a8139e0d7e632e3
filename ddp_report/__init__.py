"""Report page of one job: metrics over time, time breakdown, and events.

``kubectl ddp report`` finds :mod:`cli` by an entry point, and ``Job.report`` of the Python client
:func:`html_report.write_report`.
"""

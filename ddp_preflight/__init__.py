"""Checks before the first step, on all nodes: names, ports, clocks, versions, GPUs and limits.

::

    collect ─▶ Report ─▶ meeting ─▶ all reports ─▶ probing ─▶ all probes ─▶ checks ─▶ findings ─▶ present

The package never imports torch, since torch may be the broken part. After the meeting, every step is a pure function of
the exchanged reports and probes, so all nodes print the same table.
"""

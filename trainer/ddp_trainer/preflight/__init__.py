"""What is checked before the first step: names, ports, clocks, versions, GPUs, limits, on all nodes.

::

    collect ─▶ Report ─▶ meeting ─▶ all reports ─▶ probing ─▶ all probes ─▶ checks ─▶ findings ─▶ present

Standard library only, and never torch: it runs where torch may be what is broken. Everything after the meeting is a
pure function of what the nodes told one another, so every node comes to the same table. Only the package
`collectives`, which measures on the ranks themselves, needs torch.
"""

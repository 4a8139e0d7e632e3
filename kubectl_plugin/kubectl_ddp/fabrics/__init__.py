"""Settings that each kind of network between GPUs needs in a job, as data with reasons and sources.

::

  nodes, GPUs, machine, devices ─▶ choose ─▶ name ─▶ registry ─▶ profiles ─▶ effective_env ─▶ entries

The package is pure and depends on neither jobs nor objects. ``kubectl_ddp.spec`` turns entries into values of a job.
``kubectl_ddp.render`` writes entries without a job key into fields of the objects.
"""

"""What each kind of network between GPUs needs of a job, as data: values, why, and who says so.

::

    nodes, GPUs, machine, devices ─▶ choose ─▶ name ─▶ catalogue ─▶ profiles ─▶ emitted ─▶ entries

Pure, and it knows neither jobs nor objects: ``kubectl_ddp.spec`` turns entries into values of a job, and
``kubectl_ddp.render`` those that no key of a job stands for into fields of the objects.
"""

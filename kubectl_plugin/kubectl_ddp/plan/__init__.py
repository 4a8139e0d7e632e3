"""Search for the layouts of a model that fit a number of GPUs, with their costs. Pure arithmetic without a cluster.

The inputs are a :class:`~kubectl_ddp.plan.shape.Shape` (the model), a :class:`~kubectl_ddp.plan.work.Work` (one step)
and a :class:`~kubectl_ddp.plan.machine.Machine` (GPUs and links). ``memory``, ``traffic`` and ``timing`` each compute
one property of a :class:`~kubectl_ddp.plan.choice.Choice`. ``ranking`` sorts the choices.
"""

"""Which layouts of a model fit a number of GPUs, what each costs, and which is best: arithmetic, asked of nobody. Pure.

A :class:`~kubectl_ddp.plan.shape.Shape` (the model), a :class:`~kubectl_ddp.plan.work.Work` (what a step is) and a
:class:`~kubectl_ddp.plan.machine.Machine` (GPUs and what lies between them) come in. ``memory``, ``traffic`` and
``timing`` each say one thing about one :class:`~kubectl_ddp.plan.choice.Choice`, and ``ranking`` puts choices in order.
"""

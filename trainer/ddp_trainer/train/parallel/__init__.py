"""Parallel strategies: how ranks exchange gradients, weights and activations.

:class:`~ddp_trainer.train.parallel.strategy.Strategy` is the protocol. :mod:`ddp_trainer.train.parallel.factory` builds
the strategy that the flags name. A strategy decides which ranks exchange what, and when. :mod:`ddp_trainer.train.loop`
decides which samples a step consumes and whether the step is committed.
"""

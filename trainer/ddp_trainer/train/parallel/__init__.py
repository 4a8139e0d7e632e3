"""Strategies: how the ranks' copies of a model stay one model.

:class:`~ddp_trainer.train.parallel.strategy.Strategy` is the protocol. :mod:`ddp_trainer.train.parallel.factory` makes
the one that the flags name. A strategy decides who exchanges what and when. Which samples a step consumes, and whether
it counts, is decided in :mod:`ddp_trainer.train.loop`.
"""

"""Feeds, which read the samples of a step in this process, in loader workers, or from a stream.

:func:`~ddp_trainer.train.data.loaders.factory.make_feed` selects one. No feed has a cursor. The step requests the
samples of its slices by number, and the number advances only when a step is committed. A restart discards samples that
a feed has read ahead, and they are read again.
"""

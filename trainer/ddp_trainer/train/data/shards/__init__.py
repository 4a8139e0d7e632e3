"""Samples in shards of an object store or a directory, of which each rank reads its part.

The public entry points are :class:`ShardedSamples` and :func:`write_shards`.
"""

from ddp_trainer.train.data.shards.sharded_samples import ShardedSamples, write_shards

__all__ = ["ShardedSamples", "write_shards"]

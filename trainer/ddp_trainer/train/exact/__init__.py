"""``--level exact``: the same bits at any number of ranks, across kills and resizes.

What must be added up over logical shards - gradients, losses, running statistics, metrics - is added along one fixed
binary tree (:mod:`~ddp_trainer.train.exact.reduction_tree`), whoever computes the leaves. What must be equal before
that, the leaves themselves, rests on kernels that see one logical shard at a time, on one number of threads, and on
machines of one kind (:mod:`~ddp_trainer.train.exact.hardware_check`). The idea is that of EasyScale (M. Li et al., SC
2023).
"""

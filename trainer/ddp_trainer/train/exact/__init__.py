"""Results of ``--level exact``: the same bits at any number of ranks, across failures and resizes.

Sums over batch slices (gradients, losses, running statistics, metrics) follow one fixed binary tree
(:mod:`~ddp_trainer.train.exact.tree_allreduce`), independent of the ranks that compute the leaves. Equal leaves need
three conditions. A kernel processes one batch slice at a time, the number of threads is the same, and the machines
are of one kind (:mod:`~ddp_trainer.train.exact.tree_allreduce`). Source of the idea: EasyScale (M. Li et al., SC 2023).
"""

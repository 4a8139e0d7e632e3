"""Check and measurement of collectives: correctness of results, and bandwidth.

``ddp-launch collectives`` starts :mod:`worker` on every rank. Each rank derives from a seeded pattern the correct
contents of its buffers, without communication. Times and wrong elements travel through the store, not through the
collectives under test.
"""

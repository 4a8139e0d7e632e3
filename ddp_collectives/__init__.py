"""Check and measurement of collectives: correctness of results, bandwidth, and the bad node among many.

``ddp-launch collectives`` finds :mod:`cli` by an entry point, which starts :mod:`worker` on every rank. Each rank
derives the correct contents of its buffers from a pattern, without communication. Times and wrong elements travel
through the store, not through the collectives under test.
"""

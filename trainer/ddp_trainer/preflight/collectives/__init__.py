"""Collectives, one by one: are they right, and how fast are they.

``ddp-launch collectives`` starts :mod:`worker` on every rank. Each rank knows from a seeded pattern what every
collective must leave in its buffers, without a word from the others; times and wrong elements travel through the
store, not through the collectives that are under test.
"""

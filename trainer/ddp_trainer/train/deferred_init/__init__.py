"""Deferred initialization: a model gets memory after it is sharded, so no rank holds all of it."""

"""Optimizer, learning rate schedule and loss scale."""

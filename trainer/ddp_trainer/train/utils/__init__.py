"""Helpers that do not depend on the training loop."""

"""Checkpoints: writing, verification, and the choice of the one to resume from."""

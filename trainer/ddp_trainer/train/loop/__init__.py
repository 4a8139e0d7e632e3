"""The training step, its commit vote, and the state, metrics and time account around it."""

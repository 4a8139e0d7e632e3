"""Write, verify and load checkpoints, and choose the one to resume from."""

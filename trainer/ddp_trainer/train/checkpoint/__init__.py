"""Write, verify and load checkpoints, and choose the one to resume from. Fields: ``train/loop/train_state.py``."""

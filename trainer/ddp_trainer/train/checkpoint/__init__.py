"""Write, verify and load checkpoints, and choose the one to resume from.

The fields of a checkpoint are in ``train/loop/train_state.py``.
"""

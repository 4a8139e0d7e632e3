"""Launcher: one agent per pod, which starts the workers, and the store, which forms the worker groups.

Standard library only, so that an agent starts in 0.1 s.
"""

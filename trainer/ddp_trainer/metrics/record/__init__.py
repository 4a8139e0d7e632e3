"""Recorders that write metrics in a rank or a launcher, called explicitly or by hooks into torch."""

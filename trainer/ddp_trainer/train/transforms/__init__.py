"""Model transforms applied before training: precision, recomputation, compilation, determinism."""

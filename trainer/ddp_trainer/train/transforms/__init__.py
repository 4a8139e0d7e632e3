"""What is applied to a model before it trains: precision, recomputation, compilation, determinism."""

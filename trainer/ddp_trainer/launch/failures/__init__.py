"""Classification of worker failures, stop codes, and the final report of a run."""

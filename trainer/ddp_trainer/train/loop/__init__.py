"""The training step, and what it decides, records and reports."""

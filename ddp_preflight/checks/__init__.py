"""Checks of the collected facts, one module per subject, and the table of all checks."""

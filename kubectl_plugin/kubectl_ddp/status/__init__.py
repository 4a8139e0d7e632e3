"""State of a job, computed from its objects, metrics and logs, and its output as text and JSON. Pure functions."""

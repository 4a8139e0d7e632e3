"""Report page of one job: metrics over time, time breakdown, and events."""

"""Reading objects, logs and metrics from a cluster."""

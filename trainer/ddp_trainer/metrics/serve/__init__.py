"""What the aggregator exports: Prometheus text, history, TrainJob status, and the page of hangs."""

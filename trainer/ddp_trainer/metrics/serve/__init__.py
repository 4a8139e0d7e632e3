"""HTTP interface of the aggregator: Prometheus text, history, the hang report, and progress for TrainJobs."""

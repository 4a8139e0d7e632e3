"""The metrics that a job exports, as data: names, types, labels and help."""

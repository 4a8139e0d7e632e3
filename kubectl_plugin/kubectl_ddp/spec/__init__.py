"""Job specification: read from flags and files, complete, consistent, and with the origin of every value."""

"""Jobs from Python: submission, a handle for each job, and the same parts that the command line uses."""

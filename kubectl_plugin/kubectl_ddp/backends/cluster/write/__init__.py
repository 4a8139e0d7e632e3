"""Creating, changing and deleting the objects of jobs in a cluster."""

"""What a step trains on: the task, the order of its samples, batches, and random numbers by key."""

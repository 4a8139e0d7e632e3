"""Pipeline parallelism: stages, their state, and the transfers between them."""

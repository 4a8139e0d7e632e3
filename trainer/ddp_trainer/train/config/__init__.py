"""Options of the trainer, the environment of a worker, and the rules between options."""

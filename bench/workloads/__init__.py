"""Training loops and tasks that measurements run."""

"""Models by name, for ``--model``, and what a model of the user must offer."""

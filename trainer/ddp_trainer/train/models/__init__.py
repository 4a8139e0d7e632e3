"""Models for ``--model``, selected by name."""

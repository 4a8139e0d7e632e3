"""Values of single job keys, and their parsers."""

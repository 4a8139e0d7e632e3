"""One file per kind of root object: which templates make it, and what they need to know."""

"""Device mesh of a layout, and the state that is sharded over its ranks."""

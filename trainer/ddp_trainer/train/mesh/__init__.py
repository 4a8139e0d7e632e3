"""The device mesh of a layout, and the state that its ranks hold together."""
